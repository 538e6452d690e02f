"""A program that was edited since its run began is refused, unless the edit was accepted."""

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import loopwright as lw
from loopwright.checkpoints.manifest import signed
from loopwright.fit import run_spec
from loopwright.run_changes import NAMES, edits

LAYERS = keras.layers
RATES = keras.optimizers.schedules
X = np.linspace(-1, 1, 96).reshape(24, 4).astype("float32")
Y = X[:, :1]


def task(
    rate: Any = 0.01, *, activation="relu", loss: Any = "mse", kind: Any = keras.optimizers.Adam
):
    keras.utils.set_random_seed(3)
    layers = [keras.Input((4,)), LAYERS.Dense(3, activation), LAYERS.Dense(1)]
    return lw.Supervised(keras.Sequential(layers), loss, kind(rate))


def trained(run_dir: Path, given: Any, *, trainer: Any = None, **fit: Any) -> lw.Trainer:
    made = lw.Trainer(given, run_dir=run_dir, plan="graph", **(trainer or {}))
    options = {"batch_size": 8, "epochs": 1, "verbose": 0, "save_every": "1 step", **fit}
    made.fit(X, Y, **options)
    return made


def rate_of(trainer: lw.Trainer) -> float:
    return round(float(trainer.task.optimizer.learning_rate.numpy()), 6)


def asides(run_dir: Path) -> list[Path]:
    return sorted(run_dir.parent.glob(f"{run_dir.name}.old-*"))


def steps(run_dir: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in (run_dir / "checkpoints").glob("step-????????"))


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    """One epoch of three steps."""
    run_dir = tmp_path_factory.mktemp("finished") / "run"
    trained(run_dir, task())
    return run_dir


@pytest.fixture
def run_dir(finished_run, tmp_path):
    return Path(shutil.copytree(finished_run, tmp_path / "run"))


def refused(run_dir: Path, given: Any, **options: Any) -> str:
    with pytest.raises(lw.ConfigurationError, match="program differs") as caught:
        trained(run_dir, given, **options)
    return str(caught.value)


@pytest.mark.parametrize("epochs", [1, 2], ids=["skipped", "continued"])
def test_an_edited_program_is_refused_in_one_message_before_anything_changes(run_dir, epochs):
    given = task(0.5, activation="tanh", loss="mae", kind=keras.optimizers.SGD)
    weights = given.model.get_weights()
    files = {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}
    options: Any = {"shuffle": False, "class_weight": {0: 2.0}, "steps_per_epoch": 2}
    text = refused(run_dir, given, trainer={"seed": 7}, epochs=epochs, **options)
    for line in (
        "seed: 0 -> 7",
        "shuffle: True -> False",
        "steps_per_epoch: none -> 2",
        "class_weight: none -> {0: 2}",
        "learning_rate: 0.01 -> 0.5",
        "optimizer: Adam -> SGD",
        "loss: mean_squared_error -> mean_absolute_error",
        "layers (model.layers[0].activation): relu -> tanh",
    ):
        assert f"    {line}\n" in text
    assert "fresh" not in text
    assert 'on_change="start_over"' in text
    assert all(map(np.array_equal, given.model.get_weights(), weights))
    assert {p: p.read_bytes() for p in run_dir.rglob("*") if p.is_file() and p in files} == files


def test_the_message_names_what_would_accept_the_edit(run_dir):
    text = refused(run_dir, task(0.5, activation="tanh"), epochs=2)
    assert 'on_change=["learning_rate", "layers"]' in text
    wider = lw.Supervised(keras.Sequential([LAYERS.Dense(5), LAYERS.Dense(1)]), "mse", "adam")
    assert "on_change=[" not in refused(run_dir, wider)  # its variables differ as well


def test_an_accepted_learning_rate_is_used_and_recorded(run_dir):
    accepts = {"on_change": ["learning_rate"]}
    halves = [keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)]
    run_without = Path(shutil.copytree(run_dir, run_dir.with_name("other")))
    assert rate_of(trained(run_without, task(0.5), trainer=accepts, epochs=2)) == 0.5
    # From here on it is the program's: the same program continues without a word.
    assert rate_of(trained(run_without, task(0.5), epochs=2)) == 0.5
    assert "learning_rate: 0.5 -> 0.01" in refused(run_without, task(), epochs=2)
    # What training made of it is not asked for, and is not undone by naming the edit again.
    halved = run_dir.with_name("halved")
    trained(halved, task(0.4), callbacks=halves)
    assert rate_of(trained(halved, task(0.4), callbacks=halves, epochs=2)) == 0.1
    options: Any = {"trainer": accepts, "callbacks": halves}
    assert rate_of(trained(halved, task(0.8), **options, epochs=3)) == 0.4
    assert rate_of(trained(halved, task(0.8), **options, epochs=4)) == 0.2


def test_a_schedule_is_compared_and_can_replace_a_number(run_dir):
    accepts = {"on_change": ["learning_rate"]}
    trained(run_dir, task(RATES.CosineDecay(0.1, 100)), trainer=accepts, epochs=2)
    trained(run_dir, task(RATES.CosineDecay(0.1, 100)), epochs=2)
    text = refused(run_dir, task(RATES.CosineDecay(0.1, 200)), epochs=3)
    assert "learning_rate (decay_steps): 100 -> 200" in text
    assert rate_of(trained(run_dir, task(0.25), trainer=accepts, epochs=3)) == 0.25


def test_starting_over_moves_the_old_run_aside_only_if_something_differs(run_dir):
    over = {"on_change": "start_over"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained(run_dir, task(), trainer=over)
        trained(run_dir, task(), trainer=over, epochs=2)  # more epochs are no edit
    assert asides(run_dir) == []
    with pytest.warns(lw.LoopwrightWarning, match=r"relu -> tanh\nStarting over; the previous"):
        again = trained(run_dir, task(activation="tanh"), trainer=over)
    assert again.history.epoch == [0]
    (aside,) = asides(run_dir)
    assert max(steps(aside)) == 6
    assert (aside / "metrics.jsonl").exists()
    assert max(steps(run_dir)) == 3
    trained(run_dir, task(activation="tanh"), trainer=over)
    assert len(asides(run_dir)) == 1


def test_starting_over_covers_other_data_and_other_variables(run_dir):
    made = lw.Trainer(task(), run_dir=run_dir, plan="graph", on_change="start_over")
    with pytest.warns(lw.LoopwrightWarning, match="The data differs"):
        made.fit(X[:16], Y[:16], batch_size=8, verbose=0)
    other: Any = task()
    other.added = tf.Variable(1.0)
    with pytest.warns(lw.LoopwrightWarning, match="added"):
        trained(run_dir, other, trainer={"on_change": "start_over"})
    assert len(asides(run_dir)) == 2


def legs(run_dir: Path, rate: float | None, first: float = 0.01, **options: Any) -> list[str]:
    """A script of two calls of `fit`; how each of them ended."""
    told: list[Any] = []
    trainer = {"sinks": [told.append], **options}
    callbacks = [keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)]
    made = trained(run_dir, task(first), trainer=trainer, callbacks=callbacks)
    if rate is not None:
        made.task.optimizer.learning_rate = rate
    made.fit(X, Y, batch_size=8, epochs=1, verbose=0, callbacks=callbacks)
    return [event.reason for event in told if isinstance(event, lw.Finished)]


def test_a_learning_rate_between_two_calls_of_fit_belongs_to_the_second(tmp_path):
    for rate in (0.003, None):  # none: the second call inherits that of the first
        assert legs(tmp_path / str(rate), rate) == ["complete", "complete"]
        assert legs(tmp_path / str(rate), rate) == ["skipped", "skipped"]
    accepts = {"on_change": ["learning_rate"]}
    assert legs(tmp_path / "None", None, first=0.04, **accepts) == ["skipped", "skipped"]
    run_dir = tmp_path / "0.003"
    for rate, line in ((0.002, "0.003 -> 0.002"), (None, "0.003 -> 0.01")):
        with pytest.raises(lw.ConfigurationError, match=f"learning_rate: {line}"):
            legs(run_dir, rate)
    # Starting over repeats the leg that differs, and no other.
    kept = steps(run_dir)[0]
    with pytest.warns(lw.LoopwrightWarning, match=r"0\.003 -> 0\.002\nStarting over"):
        assert legs(run_dir, 0.002, on_change="start_over") == ["skipped", "complete"]
    assert kept in steps(run_dir)
    assert legs(run_dir, 0.002, on_change="start_over") == ["skipped", "skipped"]


def test_cells_run_again_over_the_same_objects_give_no_alarm(tmp_path):
    halves = [keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)]
    built = task()
    trained(tmp_path / "run", built, callbacks=halves)
    trained(tmp_path / "run", built, callbacks=halves)
    again = lw.Supervised(built.model, "mse", built.optimizer)
    trained(tmp_path / "run", again, callbacks=halves, epochs=2)
    built.optimizer.learning_rate = 0.3  # by a person
    assert "learning_rate: 0.01 -> 0.3" in refused(tmp_path / "run", built, callbacks=halves)
    # A refusal does not make it the value that the run was left with.
    assert "learning_rate: 0.01 -> 0.3" in refused(tmp_path / "run", built, callbacks=halves)


def test_an_extended_leg_is_skipped_with_its_last_end(run_dir):
    trained(run_dir, task(), epochs=3)
    assert trained(run_dir, task(), epochs=3).history.epoch == [0, 1, 2]


OWN = """
class Own(lw.Task):
    def __init__(self):
        super().__init__()
        keras.utils.set_random_seed(3)
        self.model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        self.optimizer = keras.optimizers.SGD(0.01)

    def train_step(self, batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(y - self.model(x, training=True)))
        self.minimize(loss, self.model, self.optimizer, tape)
        return {"loss": loss}
"""


def own(*changes: tuple[str, str]) -> Any:
    source = OWN
    for before, after in changes:
        assert before in source
        source = source.replace(before, after)
    names: dict[str, Any] = {"lw": lw, "tf": tf, "keras": keras, "__name__": "mine"}
    exec(source, names)
    return names["Own"]()


def test_an_edited_step_is_a_warning_and_its_comments_are_not_looked_at(tmp_path):
    run_dir = tmp_path / "run"
    trained(run_dir, own())
    described = ("batch):\n", 'batch):\n        """One step, on None."""\n        # by hand\n\n')
    edited = ("tf.square", "tf.abs")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained(run_dir, own(described), trainer={"on_change": "start_over"})
        trained(run_dir, own(edited), trainer={"on_change": ["step"]})
    with pytest.warns(lw.LoopwrightWarning, match=r"The code of Own\.train_step has changed"):
        trained(run_dir, own(edited), epochs=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained(run_dir, own(edited), epochs=2)  # said once


def test_a_checkpoint_of_an_earlier_version_is_continued_and_then_compared(run_dir):
    for path in (run_dir / "checkpoints").glob("*/manifest.json"):
        manifest = json.loads(path.read_text())
        del manifest["sha256"], manifest["content"]["declared"]
        path.write_bytes(signed(manifest))
    trained(run_dir, task(activation="tanh"), epochs=2)
    assert "tanh -> relu" in refused(run_dir, task(), epochs=2)


def test_the_order_of_callbacks_may_change(tmp_path):
    def callbacks() -> list[Any]:
        lowers = keras.callbacks.ReduceLROnPlateau("loss", patience=3)
        stops = keras.callbacks.EarlyStopping("loss", restore_best_weights=True, patience=5)
        return [lowers, stops]

    trained(tmp_path / "run", task(), callbacks=callbacks())
    second = callbacks()[::-1]
    trained(tmp_path / "run", task(), callbacks=second, epochs=2)
    assert second[0].best_weights is not None
    with pytest.raises(lw.ConfigurationError, match="different callbacks"):
        trained(tmp_path / "run", task(), callbacks=second[:1], epochs=2)


@pytest.mark.parametrize("given", ["learning_rate", ["rate"], ["steps_per_epoch"], None, "over"])
def test_an_unknown_on_change_is_refused_with_the_known_ones(given):
    with pytest.raises(lw.ConfigurationError, match="Unknown on_change") as caught:
        lw.Trainer(task(), on_change=given)
    assert ", ".join(NAMES) in str(caught.value)


# No false alarms: the same program, built again, declares the same.


@keras.saving.register_keras_serializable("tests")
class WithoutConfig(LAYERS.Layer):
    def __init__(self, function):
        super().__init__()
        self.function, self.inner = function, LAYERS.Dense(2)

    def call(self, inputs):
        return self.function(self.inner(inputs))


class Warmup(RATES.LearningRateSchedule):
    def __init__(self, peak):
        self.peak = peak

    def __call__(self, step):
        return self.peak * tf.cast(step, "float32")


def functional() -> keras.Model:
    inputs = keras.Input((4,))
    shared = LAYERS.Dense(4)
    hidden = shared(shared(inputs)) + 2 * inputs
    inner = keras.Sequential([LAYERS.Dense(3), LAYERS.Dropout(0.1)])
    sides = LAYERS.Concatenate()([inner(hidden), LAYERS.Lambda(lambda x: x * 2)(hidden)])
    return keras.Model(inputs, LAYERS.Dense(1)(sides))


def sequential() -> keras.Model:
    return keras.Sequential(
        [
            LAYERS.Dense(4, kernel_initializer="he_normal", kernel_regularizer="l2"),
            LAYERS.GaussianNoise(0.1),
            WithoutConfig(lambda x: x + 1),
            LAYERS.Lambda(lambda x: x[..., None]),
            LAYERS.Bidirectional(LAYERS.SimpleRNN(2)),
            LAYERS.Dense(1),
        ]
    )


def compiled() -> keras.Model:
    model = functional()
    model.compile(keras.optimizers.SGD(Warmup(0.1)), lambda y, p: (y - p) ** 2, loss_weights=2.0)
    return model


def mixed() -> lw.Task:
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.1))
    made: Any = lw.Supervised(sequential(), keras.losses.Huber(0.5), optimizer)
    made.weight = lw.Scheduled(lambda step: 0.5)
    made.other = lw.Scheduled(RATES.ExponentialDecay(1.0, 10, 0.5))
    return made


def declared(made: Any) -> dict[str, Any]:
    return run_spec.record(made, {"seed": 0}, leg=0, before=None)


@pytest.mark.parametrize("make", [task, mixed, compiled])
def test_a_model_that_is_built_twice_gives_no_alarm(make):
    made = [lw.Trainer(make()).task for _ in range(2)]
    for each in made:
        each.model(tf.zeros((2, 4)))
    one, other = map(declared, made)
    assert one == other
    assert all(one[name] for name in ("learning_rate", "optimizer", "loss", "layers"))
    assert "dense_" not in json.dumps(one)  # an automatic name
    assert "0x" not in json.dumps(one)


def test_what_a_layer_or_a_loss_is_made_with_is_compared():
    def differing(one: Any, other: Any) -> list[str]:
        return [str(edit) for edit in edits(declared(one), declared(other))]

    def of(model: keras.Model, loss: Any = "mse", rate: Any = 0.1) -> lw.Task:
        return lw.Supervised(model, loss, keras.optimizers.Adam(rate))

    def wired(*, swapped: bool) -> keras.Model:
        inputs = [keras.Input((2,)), keras.Input((2,))]
        first, second = LAYERS.Dense(2), LAYERS.Dense(2)
        outputs = [first(inputs[0]), second(inputs[1])]
        return keras.Model(inputs, outputs[1] - outputs[0] if swapped else outputs[0] - outputs[1])

    (line,) = differing(of(wired(swapped=False)), of(wired(swapped=True)))
    assert line.startswith("layers (model.connections):")
    huber = [of(functional(), keras.losses.Huber(delta)) for delta in (0.5, 1.0)]
    assert differing(*huber) == ["loss (delta): 0.5 -> 1"]
    warm = [of(functional(), rate=Warmup(peak)) for peak in (0.5, 1.0)]
    assert differing(*warm) == ["learning_rate (peak): 0.5 -> 1"]
    frozen: Any = of(functional())
    frozen.model.layers[1].trainable = False
    assert differing(of(functional()), frozen) == [
        "layers (model.layers[1].trainable): True -> False"
    ]


def test_another_keras_may_write_other_keys_into_its_configs():
    before: Any = {"layers": {"model": {"class": "Dense", "units": 2}}, "versions": {"keras": "1"}}
    now: Any = {
        "layers": {"model": {"class": "Dense", "units": 2, "lora": 4}},
        "versions": {"keras": "2"},
    }
    assert edits(before, now) == []
    assert len(edits(before | {"versions": now["versions"]}, now)) == 1
