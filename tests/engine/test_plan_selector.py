"""Plans found out while training: real steps, real compiles, real threads."""

import json
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.processes import run_code
from tests.tasks import ByHand

import loopwright as lw
from loopwright.data.source import Epochs
from loopwright.distribute import replicas
from loopwright.distribute.team import Team
from loopwright.engine.engine import Engine
from loopwright.errors import StepError
from loopwright.plans import cache
from loopwright.plans.evidence import CacheRow
from loopwright.plans.record import PlanChange
from loopwright.plans.selector import asked_for

LAYERS = keras.layers


def data(rows: int = 2048):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 8)).astype("float32")
    return x, x[:, :1] * 3


def task(*layers):
    keras.utils.set_random_seed(3)
    inner = layers or (LAYERS.Dense(16, "relu"), LAYERS.Dropout(0.2, seed=5))
    model = keras.Sequential([keras.Input((8,)), *inner, LAYERS.Dense(1)])
    return lw.Supervised(model, "mse", keras.optimizers.Adam(0.001))


def weights(trainer):
    return np.concatenate([w.numpy().ravel() for w in trainer.task.model.weights])


def steps_until_chosen(trainer, *given, most_seconds: int = 90, **options):
    """Trains until the tuner has made up its mind; returns the event and the steps done."""
    chosen, step = None, 0
    for event in trainer.events(*given, until=f"{most_seconds} seconds", **options):
        step = event.step if isinstance(event, lw.Trained) else step
        if isinstance(event, lw.PlanChosen):
            chosen = event
        elif chosen is not None and isinstance(event, lw.Trained):
            return chosen, step
    raise AssertionError(f"nothing was chosen; {trainer.plan_history}")


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """A training of the small network until its plan is chosen; what was chosen is remembered.

    The trainer, the event, the steps done, the weights then, and where the choice is remembered.
    """
    remembered = tmp_path_factory.mktemp("choices")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOPWRIGHT_CACHE_DIR", str(remembered))
        trainer = lw.Trainer(task())
        chosen, steps = steps_until_chosen(trainer, *data())
    return trainer, chosen, steps, weights(trainer), remembered


def test_a_small_network_on_arrays_ends_inside_xla_and_its_history_gives_the_same_bits(
    tuned, tmp_path
):
    trainer, chosen, steps, ended, _ = tuned
    assert trainer.plan == lw.Plan("xla", "fused", "resident", ("threefry", "recurrent"))
    assert chosen.plan == "loop inside XLA, arrays on the device"
    assert chosen.repeat == (
        "plan=Plan(step='xla', loop='fused', feed='resident', rewrites=('threefry', 'recurrent'))"
    )
    changes = trainer.plan_history.changes
    assert changes[0] == PlanChange(0, lw.Plan("graph", "graph", "resident"))
    assert len(changes) > 2
    assert [c.plan for c in changes if c.is_trial]
    assert not changes[-1].is_trial
    assert trainer.plan_history.in_force == trainer.plan

    trainer.plan_history.save(tmp_path / "plan.json")
    forms = (trainer.plan_history, tmp_path / "plan.json", str(tmp_path / "plan.json"))
    for recorded in forms:  # one of them is trained by: they are the same plans
        followed = asked_for(recorded)
        assert followed is not None
        assert followed.changes == changes
    again = lw.Trainer(task(), plan=forms[-1])
    again.fit(*data(), until=f"{steps} steps", verbose=0)
    np.testing.assert_array_equal(weights(again), ended)
    assert again.plan_history.changes == changes
    other = lw.Trainer(task(), plan="graph")
    other.fit(*data(), until=f"{steps} steps", verbose=0)
    assert not np.array_equal(weights(other), ended)


def test_a_validation_during_a_trial_compiles_nothing_new(tmp_path):
    class Counting(ByHand):
        def __init__(self):
            super().__init__(keras.Sequential([keras.Input((8,)), LAYERS.Dense(1)]))
            self.traces = []

        def test_step(self, batch):
            self.traces.append("test_step")
            return {"loss": tf.reduce_mean(tf.square(batch[1] - self.model(batch[0])))}

    def fitted(change):
        counting = Counting()
        plans = [
            {"step": 0, "plan": {"step": "graph", "loop": "graph"}},
            {"step": 4, "plan": {"step": "xla", "loop": "graph"}, **change},
        ]
        history = {"format": 1, "changes": plans, "notes": [], "choices": {}}
        (tmp_path / "plan.json").write_text(json.dumps(history))
        trainer = lw.Trainer(counting, plan=tmp_path / "plan.json")
        x, y = data(64)
        every = {"validate_every": "2 steps", "verbose": 0}
        trainer.fit(x, y, batch_size=8, validation_data=(x, y), **every)
        trainer.evaluate(x, y, batch_size=8)
        assert trainer.plan.step == "xla"
        return len(counting.traces), trainer.plan_history

    in_trial, recorded = fitted({"trial": True})
    in_force, _ = fitted({})
    assert in_trial < in_force
    assert [change.is_trial for change in recorded.changes] == [False, True]


def test_chunks_are_tried_on_a_pipeline_and_the_history_gives_the_same_bits():
    def dataset():  # a shuffled dataset that was read before would go on in another order
        return tf.data.Dataset.from_tensor_slices(data(1000)).shuffle(1000, seed=1).batch(32)

    trainer = lw.Trainer(task())
    _, steps = steps_until_chosen(trainer, dataset())
    again = lw.Trainer(task(), plan=trainer.plan_history)
    again.fit(dataset(), until=f"{steps} steps", verbose=0)
    np.testing.assert_array_equal(weights(again), weights(trainer))
    tried = {change.plan for change in trainer.plan_history.changes}
    assert lw.Plan("xla", "fused", "chunk", ("threefry", "recurrent")) in tried


def test_the_tuner_goes_on_in_the_next_fit_and_tells_its_choice_once(tuned):
    told = []
    trainer = lw.Trainer(tuned[0].task, sinks=[told.append])
    for _ in range(3):
        trainer.fit(*data(), verbose=0)
    assert not [event for event in told if isinstance(event, lw.PlanChosen)]


def test_a_candidate_is_prepared_for_the_data_of_the_fit_that_goes_on():
    trainer = lw.Trainer(task())
    for _ in range(2000):
        trainer.fit(*data(), epochs=4, verbose=0)  # each too short to try anything by itself
        if trainer.plan_history.notes:
            break
    assert "steps/s against" in trainer.plan_history.notes[0]


@pytest.fixture
def remembered(tuned, tmp_path, monkeypatch):
    """The remembered choice in a copy: a test that compiles the plan again changes it."""
    own = shutil.copytree(tuned[-1], tmp_path / "cache")
    monkeypatch.setenv("LOOPWRIGHT_CACHE_DIR", str(own))
    (choice,) = (own / "plans").iterdir()
    return choice


def test_the_second_run_of_the_same_thing_starts_by_the_choice_and_resumes_by_its_record(
    tuned, remembered, tmp_path
):
    first, chosen, *_ = tuned
    told, is_first = [], True

    class FailOnce(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if is_first and epoch == 100:
                raise RuntimeError(f"after epoch {epoch}")

    failing = lw.Trainer(task(), run_dir=tmp_path / "run", sinks=[told.append])
    options = {"save_every": "2000 steps", "callbacks": [FailOnce()], "verbose": 0}
    with pytest.raises(RuntimeError) as failed:
        failing.fit(*data(), epochs=400, **options)  # too short to try the others again
    assert failing.plan_history.changes == (PlanChange(0, first.plan),)
    (again,) = [event for event in told if isinstance(event, lw.PlanChosen)]
    assert (again.plan, again.why) == (chosen.plan, f"measured before: {chosen.why}")
    row = cache.read("plans", remembered.stem, CacheRow)
    assert row is not None
    assert (row.choice.plan, row.choice.why) == (first.plan, chosen.why)
    assert {known.plan: known.state for known in row.evidence}[first.plan] == "measured"

    epochs = int(str(failed.value).split()[-1]) + 2
    is_first = False
    resumed = lw.Trainer(task(), run_dir=tmp_path / "run")
    resumed.fit(*data(), epochs=epochs, **options)
    assert resumed.plan_history.changes == failing.plan_history.changes
    losses = failing.history.history["loss"]
    assert len(losses) >= epochs - 2
    assert resumed.history.history["loss"][: len(losses)] == losses


def test_a_memory_that_was_edited_to_an_eager_plan_is_not_followed(tuned, tmp_path, monkeypatch):
    place = tmp_path / "plans"
    place.mkdir()
    (choice,) = (tuned[-1] / "plans").iterdir()
    edited = json.loads(choice.read_text())
    edited["choice"]["plan"] = {"step": "eager", "loop": "python", "feed": None, "rewrites": []}
    (place / choice.name).write_text(json.dumps(edited))
    monkeypatch.setenv("LOOPWRIGHT_CACHE_DIR", str(tmp_path))
    trainer = lw.Trainer(task())
    trainer.fit(*data(), epochs=1, verbose=0)
    assert [c.plan.step for c in trainer.plan_history.changes] == ["graph"]


def test_what_was_remembered_is_used_for_the_same_thing_only_and_never_waited_for(remembered):
    same = lw.Trainer(task())
    same.fit(*data(), verbose=0)  # too short to pay for a compile
    wider = lw.Trainer(task(LAYERS.Dense(24, "relu"), LAYERS.Dropout(0.2, seed=5)))
    wider.fit(*data(), verbose=0)
    other_batch = lw.Trainer(task())
    other_batch.fit(*data(), batch_size=64, verbose=0)
    for other in (same, wider, other_batch):
        assert other.plan == lw.Plan("graph", "graph", "resident")


def test_the_identity_of_a_step_is_the_same_in_every_process(left):
    assert left.stdout.splitlines()[0] == recurrent_identity()


def recurrent_identity() -> str:
    inner = [LAYERS.Reshape((4, 2)), LAYERS.GRU(4), LAYERS.Dropout(0.1)]
    learned = task(*inner)
    feed = lw.Arrays(*data(64)).training(Epochs())
    return Engine(learned, Team(tf.distribute.get_strategy())).kind(feed).identity()


@pytest.mark.parametrize(
    ("layer", "plans"),
    [
        (lambda: LAYERS.Dense(4), [("xla", "fused"), ("xla", "graph")]),
        (lambda: LAYERS.Conv2D(2, 2), [("xla", "graph")]),
        (lambda: LAYERS.DepthwiseConv2D(2), [("xla", "graph")]),
        (lambda: LAYERS.Conv2DTranspose(2, 2), [("xla", "graph")]),
    ],
)
def test_a_loop_inside_xla_is_never_tried_where_there_are_convolutions_on_a_cpu(layer, plans):
    learned = task(LAYERS.Reshape((2, 2, 2)), layer(), LAYERS.Flatten())
    assert candidates(learned, lw.Arrays(*data(64))) == plans


def candidates(learned, given, strategy=None):
    feed = given.training(Epochs())
    engine = Engine(learned, Team(strategy or tf.distribute.get_strategy()))
    found = engine.kind(feed).candidates()
    return [(candidate.plan.step, candidate.plan.loop) for candidate in found]


class Sizes(lw.Task):
    def train_step(self, batch):
        return {"size": replicas.count_examples(batch)}


def test_plans_that_cannot_serve_are_never_candidates():
    lengths = tf.data.Dataset.range(1, 9).map(lambda n: tf.zeros([2, n]))
    assert candidates(Sizes(), lw.Stream(lengths)) == []  # a compile for each length
    strings = tf.data.Dataset.from_tensor_slices(["a", "b", "c"]).batch(2)
    assert candidates(Sizes(), lw.Stream(strings)) == []
    ragged = tf.ragged.constant([[1], [2, 3]])
    assert candidates(Sizes(), lw.Arrays(ragged)) == []


def test_a_step_that_xla_cannot_compile_trains_on_and_the_reason_is_noted():
    class Counting(lw.Task):
        def __init__(self):
            super().__init__()
            self.weight = tf.Variable(1.0)
            self.optimizer = keras.optimizers.SGD(0.001)

        def train_step(self, batch):
            lengths = tf.strings.length(tf.strings.as_string(batch[0]))
            with tf.GradientTape() as tape:
                loss = self.weight**2 * tf.reduce_mean(tf.cast(lengths, tf.float32))
            self.minimize(loss, [self.weight], self.optimizer, tape)
            return {"loss": loss}

    trainer = lw.Trainer(Counting())
    chosen, _ = steps_until_chosen(trainer, *data(64))
    assert trainer.plan == lw.Plan("graph", "graph", "resident")
    assert chosen.why == "nothing faster was found"
    notes = trainer.plan_history.notes
    assert len(notes) == 2
    assert all("could not be compiled (InvalidArgumentError" in note for note in notes)


def test_a_plan_that_is_prepared_before_the_first_step_refuses_values_that_python_computed():
    class Drawing(lw.Task):
        def __init__(self):
            super().__init__()
            self.weight = tf.Variable(1.0)
            self.optimizer = keras.optimizers.SGD(0.001)

        def train_step(self, batch):
            with tf.GradientTape() as tape:
                loss = self.weight * np.random.rand() * tf.reduce_mean(batch[0])
            self.minimize(loss, [self.weight], self.optimizer, tape)
            return {"loss": loss}

    feed = lw.Arrays(*data(64)).training(Epochs())
    steps = Engine(Drawing(), Team(tf.distribute.get_strategy()))
    loop = steps.loop("train_step", feed, lw.Plan("xla", "fused", "resident"))
    with pytest.raises(StepError, match="Python computed while the step was traced"):
        loop.prepare(loop.open(feed))


def test_preparing_a_plan_leaves_every_variable_as_it_was():
    assert_preparing_changes_nothing(lw.Plan("xla", "fused", "resident"), lw.Arrays(*data(70)))
    x, y = data(70)
    stream = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)
    unknown = stream.filter(lambda *_: True)
    assert_preparing_changes_nothing(lw.Plan("xla", "fused", "chunk"), lw.Stream(unknown))
    assert_preparing_changes_nothing(lw.Plan("xla", "graph", "stream"), lw.Stream(stream))


def assert_preparing_changes_nothing(plan, given):
    """Two runs of the same steps; one of them prepares another plan in between."""
    ends = []
    for prepares in (False, True):
        learned = task()
        steps = Engine(learned, Team(tf.distribute.get_strategy()))
        feed = given.training(Epochs())
        graph = steps.loop("train_step", feed, lw.Plan("graph", "graph", plan.feed))
        reader = graph.open(feed)
        graph.run(reader, 5)
        if prepares:
            steps.loop("train_step", feed, plan).prepare(reader)()
        graph.run(reader, 5)
        ends.append(np.concatenate([w.numpy().ravel() for w in learned.model.weights]))
        assert int(learned.step) == 10 if given.__class__ is lw.Arrays else int(learned.step) > 4
    np.testing.assert_array_equal(*ends)


EXIT = """
    import keras, numpy as np, sys, threading
    import loopwright as lw
    from tests.engine.test_plan_selector import data, recurrent_identity, task
    print(recurrent_identity(), flush=True)
    layers = [keras.layers.Dense(32, "relu") for _ in range(12)]
    trainer = lw.Trainer(task(*layers))
    for event in trainer.events(*data(), until="1000 seconds"):
        if any("loopwright-compile" == thread.name for thread in threading.enumerate()):
            print("leaving while XLA compiles")
            sys.exit(7)
"""


@pytest.fixture(scope="module")
def left():
    """Another process, which told the identity of a step and ended while XLA compiled."""
    return run_code(EXIT, exits=None, env={"PYTHONHASHSEED": "1"})


def test_a_process_may_end_while_a_compile_is_under_way(left):
    assert left.stdout.splitlines()[1:] == ["leaving while XLA compiles"]
    assert left.returncode == 7, left.stderr[-2000:]
