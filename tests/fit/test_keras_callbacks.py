"""Keras callbacks run as in Keras' own `fit`: the same model, batches and callbacks, side by side.

Models are compiled once and put back to their beginning for each test: see `beginning`.
"""

import contextlib
import csv
import functools
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import callbacks as kc
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import loopwright as lw
from loopwright.fit.callback_model import callback_model

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(55, 4)).astype("float32")
Y = np.argmax(X[:, :3] + RANDOM.normal(size=(55, 3)), axis=1)
XV = RANDOM.normal(size=(25, 4)).astype("float32")
YV = np.argmax(XV[:, :3] + RANDOM.normal(size=(25, 3)), axis=1)
STEPS = 6  # the last batch has five examples
NO_VALIDATION: dict[str, Any] = {"batch_size": 10, "shuffle": False, "verbose": 0}
DATA: dict[str, Any] = NO_VALIDATION | {"validation_data": (XV, YV)}
ROUTES = ["supervised", "compiled"]


def network(name: str = "net") -> keras.Model:
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Dense(8, "tanh", name="first"), keras.layers.Dense(3, name="last")]
    return keras.Sequential([keras.Input((4,)), *layers], name=name)


def settings(**options: Any) -> dict[str, Any]:
    return {
        "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "optimizer": keras.optimizers.SGD(0.2, momentum=0.9, **options),
        "metrics": ["accuracy"],
    }


@dataclass(frozen=True)
class Rig:
    """A model that is traced once and trained many times."""

    fit: Callable[..., Any]
    model: keras.Model
    optimizer: keras.optimizers.Optimizer
    trainer: lw.Trainer | None

    @functools.cached_property
    def first_values(self) -> list[Any]:
        return [variable.numpy() for variable in self.variables]

    @property
    def variables(self) -> list[Any]:
        return [*self.model.variables, *self.optimizer.variables]


@functools.cache
def rig(route: str, use_ema: bool) -> Rig:
    model, parts = network(), settings(use_ema=use_ema)
    parts["optimizer"].build(model.trainable_variables)
    if route == "supervised":
        trainer = lw.Trainer(lw.Supervised(model, **parts))
        return Rig(trainer.fit, model, parts["optimizer"], trainer)
    model.compile(**parts, jit_compile=False)
    if route == "keras":
        return Rig(model.fit, model, parts["optimizer"], None)
    trainer = lw.Trainer(model)
    return Rig(trainer.fit, model, parts["optimizer"], trainer)


def beginning(route: str, use_ema: bool = False) -> Rig:
    """The model of this route as if it had never been trained."""
    found = rig(route, use_ema)
    for variable, value in zip(found.variables, found.first_values, strict=True):
        variable.assign(value)
    return found


def trainer_of(route: str = "supervised") -> lw.Trainer:
    trainer = beginning(route).trainer
    assert trainer is not None
    return trainer


class Two(lw.Task):
    """Two models, each with its own optimizer; the second learns more slowly."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = network("left"), network("right")
        self.left_optimizer = keras.optimizers.SGD(0.1, name="fast")
        self.right_optimizer = keras.optimizers.SGD(0.01, name="slow")
        self.loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def train_step(self, batch: Any) -> Any:
        x, y = batch
        with tf.GradientTape(persistent=True) as tape:
            left, right = self.loss(y, self.left(x)), self.loss(y, self.right(x))
        self.minimize(left, self.left, self.left_optimizer, tape)
        self.minimize(right, self.right, self.right_optimizer, tape)
        return {"loss": left + right}

    def test_step(self, batch: Any) -> Any:
        x, y = batch
        return {"loss": self.loss(y, self.left(x)) + self.loss(y, self.right(x))}


# --- side by side -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """Callbacks that write into a directory, if at all, and for how many epochs they run."""

    callbacks: Callable[[Path], Sequence[kc.Callback]]
    epochs: int
    use_ema: bool = False


CASES = {
    "EarlyStopping": Case(lambda _: [kc.EarlyStopping(patience=2, restore_best_weights=True)], 9),
    "ReduceLROnPlateau": Case(
        lambda _: [kc.ReduceLROnPlateau(factor=0.5, patience=1, min_delta=0.05)], 4
    ),
    "LearningRateScheduler": Case(
        lambda _: [kc.LearningRateScheduler(lambda epoch, rate: rate / (epoch + 1))], 3
    ),
    "LambdaCallback with a number of its own": Case(
        lambda _: [
            kc.LambdaCallback(on_epoch_end=lambda n, logs: logs.update(gap=n - logs["loss"]))
        ],
        2,
    ),
    "CSVLogger": Case(
        lambda to: [
            kc.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
            kc.CSVLogger(to / "log.csv"),
        ],
        2,
    ),
    "ModelCheckpoint of the best": Case(
        lambda to: [kc.ModelCheckpoint(to / "{epoch}-{val_loss:.3f}.keras", save_best_only=True)], 4
    ),
    "ModelCheckpoint of weights": Case(
        lambda to: [kc.ModelCheckpoint(to / "{epoch}.weights.h5", save_weights_only=True)], 2
    ),
    "ModelCheckpoint by steps": Case(
        lambda to: [kc.ModelCheckpoint(to / "{epoch}-{batch}-{accuracy:.2f}.keras", save_freq=4)], 2
    ),
    "TensorBoard by steps": Case(
        lambda to: [kc.TensorBoard(to, histogram_freq=1, update_freq="batch")], 2
    ),
    "SwapEMAWeights": Case(lambda _: [kc.SwapEMAWeights()], 3, use_ema=True),
    "SwapEMAWeights by epochs": Case(
        lambda _: [kc.SwapEMAWeights(swap_on_epoch=True)], 3, use_ema=True
    ),
}


@dataclass(frozen=True)
class Outcome:
    """What can be seen after a run."""

    epochs: Sequence[int]
    history: Mapping[str, Sequence[float]]
    weights: Sequence[Any]
    learning_rate: float
    files: Mapping[str, Mapping[str, Any]]


def outcome(name: str, route: str, directory: Path) -> Outcome:
    case = CASES[name]
    rig = beginning(route, case.use_ema)
    history = rig.fit(X, Y, epochs=case.epochs, callbacks=case.callbacks(directory), **DATA)
    learning_rate = float(rig.optimizer.learning_rate.numpy())
    weights = rig.model.get_weights()
    return Outcome(history.epoch, history.history, weights, learning_rate, contents(directory))


def contents(directory: Path) -> dict[str, dict[str, Any]]:
    """What the files in a directory say, by name."""
    found: dict[str, dict[str, Any]] = {}
    for file in directory.rglob("*"):
        if file.suffix == ".csv":
            with file.open() as lines:
                rows = list(csv.DictReader(lines))
            found[file.name] = {key: [float(row[key]) for row in rows] for key in rows[0]}
        elif file.suffix in (".keras", ".h5"):
            found[file.name] = {weight.path: weight.numpy() for weight in loaded(file).weights}
        elif file.is_dir():
            found |= shown_by_tensorboard(file)
    return found


def loaded(file: Path) -> keras.Model:
    if file.suffix == ".keras":
        return keras.models.load_model(file)
    model = network()
    model.load_weights(file)
    return model


def shown_by_tensorboard(directory: Path) -> dict[str, dict[str, Any]]:
    """Steps by tag, and for scalars the values too."""
    reader = EventAccumulator(str(directory), size_guidance={"tensors": 0})
    reader.Reload()
    found: dict[str, dict[str, Any]] = {}
    for tag in reader.Tags()["tensors"]:
        events = reader.Tensors(tag)
        shown = found[f"{directory.name}/{tag}"] = {"steps": [event.step for event in events]}
        if tag.startswith(("epoch_", "batch_", "evaluation_")):
            shown["values"] = [float(tf.make_ndarray(event.tensor_proto)) for event in events]
    return found


@functools.cache
def outcome_of_keras(name: str, directory: Path) -> Outcome:
    (directory / name).mkdir()
    return outcome(name, "keras", directory / name)


@pytest.fixture(scope="module")
def files_of_keras(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keras")


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("name", CASES)
def test_a_callback_does_what_it_does_in_keras(
    name: str, route: str, files_of_keras: Path, tmp_path: Path
):
    expected, ours = outcome_of_keras(name, files_of_keras), outcome(name, route, tmp_path)

    assert ours.epochs == expected.epochs
    assert ours.learning_rate == pytest.approx(expected.learning_rate)
    assert_same(ours.history, expected.history)
    for got, wanted in zip(ours.weights, expected.weights, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-5)
    assert sorted(ours.files) == sorted(expected.files)
    for file, wanted in expected.files.items():
        assert_same(ours.files[file], wanted)


def assert_same(ours: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    assert set(ours) == set(expected)
    for key, wanted in expected.items():
        np.testing.assert_allclose(ours[key], wanted, rtol=1e-3, atol=1e-5, err_msg=key)


# --- stopping ---------------------------------------------------------------------------------


@pytest.mark.parametrize("route", ROUTES)
def test_terminate_on_nan_stops_inside_the_epoch(route: str, capsys: pytest.CaptureFixture[str]):
    poisoned = X.copy()
    poisoned[12] = np.nan
    heard: list[lw.Event] = []
    trainer = trainer_of(route)

    for event in trainer.events(poisoned, Y, epochs=50, callbacks=[kc.TerminateOnNaN()], **DATA):
        heard.append(event)

    assert trainer.history.epoch == [0]
    assert np.isnan(trainer.history.history["loss"]).all()
    assert isinstance(heard[-1], lw.Finished)
    assert heard[-1].reason == "stopped"
    assert "Batch 1: Invalid loss, terminating training" in capsys.readouterr().out


class StopAfter(kc.Callback):
    """Asks to stop after so many steps, and gets every step."""

    needs_every_step = True

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.steps -= 1
        self.model.stop_training = self.steps == 0


@pytest.mark.parametrize("route", ROUTES)
def test_stop_training_ends_the_run_at_that_step_and_not_the_next_one(route: str):
    expected = beginning("keras").fit(X, Y, epochs=9, callbacks=[StopAfter(8)], **DATA)
    trainer = trainer_of(route)
    before = int(trainer.task.step)

    ours = trainer.fit(X, Y, epochs=9, callbacks=[StopAfter(8)], **DATA)
    steps = int(trainer.task.step) - before
    again = trainer.fit(X, Y, epochs=2, callbacks=[kc.Callback()], **DATA)

    assert steps == 8
    assert ours.epoch == expected.epoch == [0, 1]
    np.testing.assert_allclose(ours.history["loss"], expected.history["loss"], rtol=2e-4)
    np.testing.assert_allclose(ours.history["val_loss"], expected.history["val_loss"], rtol=2e-4)
    assert again.epoch == [0, 1]  # the wish of the run before is forgotten


class StopBefore(kc.Callback):
    """Asks to stop when an epoch begins."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.model.stop_training = epoch == 1


def test_stop_training_at_the_beginning_of_an_epoch_runs_one_more_step_as_in_keras():
    expected = beginning("keras").fit(X, Y, epochs=9, callbacks=[StopBefore()], **DATA)
    trainer = trainer_of()
    before = int(trainer.task.step)
    ours = trainer.fit(X, Y, epochs=9, callbacks=[StopBefore()], **DATA)
    assert int(trainer.task.step) - before == -(-len(X) // DATA["batch_size"]) + 1
    assert ours.epoch == expected.epoch == [0, 1]
    np.testing.assert_allclose(ours.history["loss"], expected.history["loss"], rtol=2e-4)


# --- hooks ------------------------------------------------------------------------------------


def fail(*_: Any, **__: Any) -> None:
    raise RuntimeError("from the callback")


class Recorder(kc.Callback):
    """Notes every hook, its number and the names in its logs."""

    def __init__(self, every_step: bool = True) -> None:
        super().__init__()
        self.needs_every_step = every_step
        self.calls: list[tuple[Any, ...]] = []

    def hooks(self) -> list[str]:
        return [hook for hook, *_ in self.calls]


def note(hook: str) -> Any:
    def record(self: Recorder, *given: Any, logs: Any = None) -> None:
        number = next((each for each in given if isinstance(each, int)), None)
        given_logs = next((each for each in given if isinstance(each, dict)), logs)
        self.calls.append((hook, number, sorted(given_logs or {})))

    return record


PLACES = ["train", "epoch", "train_batch", "test"]
for hook in [f"on_{place}_{edge}" for place in PLACES for edge in ("begin", "end")]:
    setattr(Recorder, hook, note(hook))


@pytest.mark.parametrize("route", ROUTES)
def test_hooks_come_in_the_order_of_keras_with_its_numbers_and_names(route: str):
    expected, ours, rig = Recorder(), Recorder(), beginning(route)
    beginning("keras").fit(X, Y, epochs=2, callbacks=[expected], **DATA)

    rig.fit(X, Y, epochs=2, callbacks=[ours], **DATA)

    assert ours.calls == expected.calls
    assert ours.hooks().count("on_train_batch_end") == 2 * STEPS
    assert ours.model is rig.model
    assert {key: ours.params[key] for key in ("epochs", "steps")} == {"epochs": 2, "steps": STEPS}


def test_batch_hooks_come_at_stops_and_leave_no_step_out():
    recorder = Recorder(every_step=False)
    trained: list[lw.Trained] = []

    for event in trainer_of().events(X, Y, epochs=9, callbacks=[recorder], **DATA):
        if isinstance(event, lw.Trained):
            trained.append(event)

    begun = [number for hook, number, _ in recorder.calls if hook == "on_train_batch_begin"]
    ended = [number for hook, number, _ in recorder.calls if hook == "on_train_batch_end"]
    assert ended == [event.step_in_epoch - 1 for event in trained]
    assert begun == [event.step_in_epoch - event.steps for event in trained]
    assert ended.count(STEPS - 1) == 9


@pytest.mark.parametrize(
    "hook", ["on_train_begin", "on_epoch_begin", "on_train_batch_end", "on_epoch_end"]
)
def test_an_exception_in_a_callback_reaches_the_caller_and_there_is_no_end(hook: str):
    recorder, failing = Recorder(), kc.Callback()
    setattr(failing, hook, fail)
    with pytest.raises(RuntimeError, match="from the callback"):
        trainer_of().fit(X, Y, epochs=2, callbacks=[recorder, failing], **DATA)
    assert recorder.hooks()[-1] == hook


def test_the_end_of_a_with_block_ends_the_callbacks_too():
    recorder = Recorder()
    with trainer_of().events(X, Y, epochs=9, callbacks=[recorder], **DATA) as events:
        next(event for event in events if isinstance(event, lw.EpochStarted) and event.epoch == 1)
    assert recorder.hooks()[-2:] == ["on_epoch_begin", "on_train_end"]
    assert recorder.hooks().count("on_train_end") == 1


@pytest.mark.parametrize("wrong", ["EarlyStopping", kc.EarlyStopping, print])
def test_what_is_no_callback_is_refused_in_words_before_any_step(wrong: Any):
    trainer = trainer_of()
    before = int(trainer.task.step)
    with pytest.raises(lw.ConfigurationError) as caught:
        trainer.fit(X, Y, callbacks=[kc.TerminateOnNaN(), wrong], **DATA)
    assert repr(wrong) in str(caught.value)
    assert "do: create the object first" in str(caught.value)
    assert int(trainer.task.step) == before


def test_one_callback_needs_no_list_and_none_is_none():
    recorder = Recorder()
    one: Any = recorder
    none: Any = None
    trainer_of().fit(X, Y, callbacks=one, **DATA)
    trainer_of().fit(X, Y, callbacks=none, **DATA)
    assert recorder.hooks().count("on_epoch_end") == 1


# --- the model and its optimizer --------------------------------------------------------------


def see_optimizer(seen: list[Any], then: Callable[[], None] = lambda: None) -> kc.Callback:
    class See(kc.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            seen.append(self.model.optimizer)
            then()

    return See()


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("then", [lambda: None, fail, interrupt])
def test_the_model_has_the_optimizer_of_the_task_only_while_it_trains(then: Callable[[], None]):
    rig, seen = beginning("supervised"), []
    assert not hasattr(rig.model, "optimizer")
    with contextlib.suppress(RuntimeError, KeyboardInterrupt):
        rig.fit(X, Y, callbacks=[see_optimizer(seen, then)], **DATA)
    assert seen == [rig.optimizer]
    assert not hasattr(rig.model, "optimizer")


def test_a_model_that_was_compiled_with_another_optimizer_gets_that_one_back():
    model, seen = network(), []
    model.compile(**settings())
    before = model.optimizer
    task = lw.Supervised(model, **settings())

    schedule = kc.LearningRateScheduler(lambda epoch, rate: 0.125)
    lw.Trainer(task).fit(X, Y, callbacks=[schedule, see_optimizer(seen)], **NO_VALIDATION)

    assert seen == [task.optimizer]
    assert model.optimizer is before
    assert float(before.learning_rate.numpy()) == pytest.approx(0.2)
    assert float(task.optimizer.learning_rate.numpy()) == 0.125


def test_a_failing_end_gives_the_optimizer_back_as_well():
    class Failing(kc.Callback):
        def on_train_end(self, logs: Any = None) -> None:
            raise RuntimeError("from the end")

    rig = beginning("supervised")
    with pytest.raises(RuntimeError, match="from the end"):
        rig.fit(X, Y, callbacks=[Failing()], **DATA)
    assert not hasattr(rig.model, "optimizer")


# --- BackupAndRestore -------------------------------------------------------------------------


def test_backup_and_restore_puts_weights_back_and_says_that_epochs_are_counted_anew(
    tmp_path: Path,
):
    weights: list[Any] = []
    found: list[Any] = []

    class Interrupt(kc.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 2:
                weights.extend(self.model.get_weights())
                raise KeyboardInterrupt

    class Look(kc.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            found.append(self.model.get_weights())

    backup = tmp_path / "backup"
    callbacks = [kc.BackupAndRestore(backup), Interrupt()]
    with pytest.raises(KeyboardInterrupt):
        beginning("supervised").fit(X, Y, epochs=5, callbacks=callbacks, **DATA)
    assert backup.exists()

    rig = beginning("supervised")
    callbacks = [kc.BackupAndRestore(backup), Look()]
    with pytest.warns(lw.LoopwrightWarning, match="lower epochs by 2"):
        history = rig.fit(X, Y, epochs=3, callbacks=callbacks, **DATA)

    for got, wanted in zip(found[0], weights, strict=True):
        np.testing.assert_array_equal(got, wanted)
    assert history.epoch == [0, 1, 2]
    assert not backup.exists()  # as in Keras: a finished run needs no backup


# --- several models ---------------------------------------------------------------------------


@functools.cache
def trainer_of_two() -> lw.Trainer:
    return lw.Trainer(Two())


def two() -> Two:
    task = trainer_of_two().task
    assert isinstance(task, Two)
    task.left_optimizer.learning_rate, task.right_optimizer.learning_rate = 0.1, 0.01
    return task


def test_early_stopping_restores_the_best_weights_of_every_model():
    task, after_first = two(), []

    def keep(epoch: int, logs: Any) -> None:
        if epoch == 0:
            after_first.extend(task.left.get_weights() + task.right.get_weights())

    # The loss falls, so that with mode="max" the first epoch stays the best.
    stop = kc.EarlyStopping("loss", mode="max", patience=2, restore_best_weights=True)
    watch = kc.LambdaCallback(on_epoch_end=keep)
    history = trainer_of_two().fit(X, Y, epochs=9, callbacks=[watch, stop], **NO_VALIDATION)

    assert history.epoch == [0, 1, 2]
    assert len(after_first) == 8
    restored = task.left.get_weights() + task.right.get_weights()
    for got, wanted in zip(restored, after_first, strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_learning_rates_of_several_optimizers_are_scheduled_and_reported(tmp_path: Path):
    two()
    schedule = kc.LearningRateScheduler(lambda epoch, rate: rate * 0.5)
    board = kc.TensorBoard(tmp_path, write_steps_per_second=True)

    history = trainer_of_two().fit(X, Y, epochs=2, callbacks=[schedule, board], **NO_VALIDATION)

    assert history.history["learning_rate_fast"] == pytest.approx([0.05, 0.025])
    assert history.history["learning_rate_slow"] == pytest.approx([0.005, 0.0025])
    shown = shown_by_tensorboard(tmp_path / "train")
    assert shown["train/epoch_learning_rate_slow"]["values"] == pytest.approx([0.005, 0.0025])


def test_callback_model_names_the_model_that_callbacks_see(tmp_path: Path):
    class Named(Two):
        def __init__(self) -> None:
            super().__init__()
            self.callback_model = self.right

    task, seen = Named(), []
    save = kc.ModelCheckpoint(tmp_path / "right.keras")
    schedule = kc.LearningRateScheduler(lambda epoch, rate: rate * 0.5)

    history = lw.Trainer(task).fit(
        X, Y, callbacks=[save, schedule, see_optimizer(seen)], **NO_VALIDATION
    )

    assert seen == [task.right_optimizer]
    assert history.history["learning_rate"] == pytest.approx([0.005])
    assert float(task.left_optimizer.learning_rate.numpy()) == pytest.approx(0.1)
    for got, wanted in zip(
        loaded(tmp_path / "right.keras").weights, task.right.weights, strict=True
    ):
        np.testing.assert_array_equal(got, wanted)


def test_several_models_cannot_be_saved_as_one_but_their_weights_can(tmp_path: Path):
    as_one = kc.ModelCheckpoint(tmp_path / "all.keras")
    with pytest.raises(lw.ConfigurationError, match=r"self\.callback_model = ") as caught:
        trainer_of_two().fit(X, Y, callbacks=[as_one], **NO_VALIDATION)
    assert "received: 2 models" in str(caught.value)

    weights = kc.ModelCheckpoint(tmp_path / "all.weights.h5", save_weights_only=True)
    trainer_of_two().fit(X, Y, callbacks=[weights], **NO_VALIDATION)

    fresh = Two()
    callback_model(fresh).load_weights(tmp_path / "all.weights.h5")
    for of_fresh, of_trained in [(fresh.left, two().left), (fresh.right, two().right)]:
        for got, wanted in zip(of_fresh.weights, of_trained.weights, strict=True):
            np.testing.assert_array_equal(got, wanted)


def test_a_callback_that_calls_the_model_of_a_task_with_several_is_told_what_to_do():
    class Calling(kc.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model(XV)

    with pytest.raises(lw.ConfigurationError, match="A callback called the model"):
        trainer_of_two().fit(X, Y, callbacks=[Calling()], **NO_VALIDATION)


def test_averaged_weights_are_swapped_for_the_model_that_has_them():
    task = Two()
    task.right_optimizer = keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5)
    scored: list[list[Any]] = []

    class Look(kc.Callback):
        def on_test_begin(self, logs: Any = None) -> None:
            scored.append(task.left.get_weights() + task.right.get_weights())

        def on_test_end(self, logs: Any = None) -> None:
            scored.append(task.left.get_weights() + task.right.get_weights())

    lw.Trainer(task).fit(X, Y, callbacks=[kc.SwapEMAWeights(), Look()], **DATA)

    during, after = scored
    changed = [not np.allclose(a, b) for a, b in zip(during, after, strict=True)]
    assert changed == [False] * 4 + [True] * 4
