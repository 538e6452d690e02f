"""How steps are run: traces, splits into calls, eager debugging."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.processes import lines_with_compiles
from tests.resume.faults import ALL

import loopwright as lw
from loopwright.distribute import replicas
from loopwright.distribute.team import Team
from loopwright.engine.engine import Engine
from loopwright.plans.plan import Plan, plan_of, settled

PLANS = [
    "graph",
    "xla",
    "fused",
    "eager",
    Plan("graph", "graph", "stream"),
    Plan("xla", "graph", "stream"),
    Plan("graph", "graph", "chunk"),
    Plan("xla", "graph", "chunk"),
    Plan("xla", "fused", "chunk"),
    Plan("graph", "python"),
    Plan("xla", "python"),
]
OTHERS = [plan for plan in PLANS if plan != "graph"]
"""Those that are compared with the first."""
SOME = [
    "fused",
    "eager",
    Plan("xla", "graph", "stream"),
    Plan("graph", "graph", "chunk"),
    Plan("graph", "python"),
]
"""Every way to step, to loop and to feed."""


class Descent(lw.Task):
    """A step without data."""

    def __init__(self):
        super().__init__()
        self.weight = tf.Variable(4.0, aggregation=tf.VariableAggregation.MEAN)
        self.optimizer = keras.optimizers.SGD(0.1)

    def train_step(self):  # pyright: ignore[reportIncompatibleMethodOverride]
        with tf.GradientTape() as tape:
            loss = self.weight**2
        self.minimize(loss, [self.weight], self.optimizer, tape)
        return {"loss": loss}


class Counted(lw.Task):
    """Counts how often Python runs through its steps: once per trace."""

    def __init__(self):
        super().__init__()
        keras.utils.set_random_seed(3)
        self.model = keras.Sequential(
            [
                keras.Input((4,)),
                keras.layers.Dropout(0.2, seed=5),
                keras.layers.Dense(1, use_bias=False),
            ]
        )
        self.optimizer = keras.optimizers.Adam(0.01)
        self.train_traces, self.test_traces = [], []

    def train_step(self, batch):
        self.train_traces.append(tf.executing_eagerly())
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.model(x, training=True) - y) ** 2)
        self.minimize(loss, self.model, self.optimizer, tape)
        return {"loss": loss}

    def test_step(self, batch):
        self.test_traces.append(tf.executing_eagerly())
        x, y = batch
        return {"loss": tf.reduce_mean((self.model(x, training=False) - y) ** 2)}


def data(rows=103):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 4)).astype("float32")
    return x, x[:, :1] * 3


def weights(trainer):
    return [w.numpy() for w in trainer.task.model.weights]


def test_three_epochs_with_odd_intervals_are_traced_once_after_building():
    trainer = lw.Trainer(Counted())
    trainer.fit(*data(), validation_data=data(37), validate_every="7 steps", epochs=3, verbose=0)
    assert trainer.task.train_traces == [False, False]  # one to build, one to run
    assert trainer.task.test_traces == [False, False]


@pytest.mark.parametrize("stream", ["known", "unknown", "endless"])
def test_streams_are_traced_once_after_building(stream):
    dataset = tf.data.Dataset.from_tensor_slices(data()).batch(16)
    dataset = {
        "known": dataset,
        "unknown": dataset.filter(lambda *_: True),
        "endless": dataset.repeat(),
    }[stream]
    trainer = lw.Trainer(Counted())
    steps = 5 if stream == "endless" else None
    trainer.fit(dataset, epochs=3, steps_per_epoch=steps, verbose=0)
    assert trainer.task.train_traces == [False, False]


@pytest.mark.parametrize("feed", ["stream", "chunk"])
def test_a_trainer_reads_datasets_of_known_and_of_unknown_length(feed):
    known = tf.data.Dataset.from_tensor_slices(data()).batch(16)
    unknown = known.filter(lambda *_: True)
    trainer = lw.Trainer(Counted(), plan=Plan("graph", "graph", feed))
    steps = [trainer.fit(dataset, verbose=0) and trainer.task.step for dataset in (known, unknown)]
    assert steps[1] == 2 * steps[0]


@pytest.mark.parametrize(
    "plan",
    ["graph", "xla", "fused", Plan("graph", "graph", "stream"), Plan("xla", "fused", "chunk")],
    ids=str,
)
def test_a_run_split_into_single_steps_ends_with_the_same_bits(plan):
    class EveryStep(keras.callbacks.Callback):
        needs_every_step = True

    whole, split = lw.Trainer(Counted(), plan=plan), lw.Trainer(Counted(), plan=plan)
    first = whole.fit(*data(), epochs=3, verbose=0)
    second = split.fit(*data(), epochs=3, callbacks=[EveryStep()], verbose=0)
    for one, other in zip(weights(whole), weights(split), strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_allclose(first.history["loss"], second.history["loss"], rtol=1e-12)


@functools.cache
def trained_and_scored(plan):
    x, y = data()
    weighted = np.linspace(0.5, 2.0, len(x)).astype("float32")
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(8, "tanh", use_bias=False, kernel_regularizer="l2"),
            keras.layers.BatchNormalization(scale=False),
            keras.layers.Dense(1, use_bias=False),
        ]
    )
    optimizer = keras.optimizers.Adam(0.01, global_clipnorm=1.0, gradient_accumulation_steps=2)
    trainer = lw.Trainer(lw.Supervised(model, "mse", optimizer, metrics=["mae"]), plan=plan)
    held = (x[:37], y[:37])
    history = trainer.fit(x, y, weighted, batch_size=16, epochs=3, validation_data=held, verbose=0)
    predictions = trainer.predict(x[:37], batch_size=16)
    return history.history, predictions, trainer.evaluate(*held, batch_size=16)


@pytest.mark.parametrize("plan", OTHERS, ids=str)
def test_every_plan_trains_and_scores_as_the_first(plan):
    history, predictions, scores = trained_and_scored("graph")
    other_history, other_predictions, other_scores = trained_and_scored(plan)
    assert history.keys() == other_history.keys()
    for name, values in history.items():
        np.testing.assert_allclose(other_history[name], values, rtol=2e-5, err_msg=name)
    np.testing.assert_allclose(other_predictions, predictions, atol=2e-5)
    assert other_scores == pytest.approx(scores, rel=2e-5)


class Two(lw.Task):
    def __init__(self):
        super().__init__()
        keras.utils.set_random_seed(3)
        self.models = [keras.layers.Dense(1, use_bias=False) for _ in range(2)]
        self.optimizers = [keras.optimizers.SGD(0.1), keras.optimizers.Adam(0.01)]

    def train_step(self, batch):
        with tf.GradientTape(persistent=True) as tape:
            both = [model(batch["x"]) for model in self.models]
            losses = [tf.reduce_mean((p - batch["y"]) ** 2) for p in both]
        self.minimize(losses[0], self.models[0], self.optimizers[0], tape)
        when = self.step % 3 == 0
        self.minimize(losses[1], self.models[1], self.optimizers[1], tape, when=when)
        return {"first": losses[0], "second": losses[1]}


@functools.cache
def trained_by_two_optimizers(plan):
    trainer = lw.Trainer(Two(), plan=plan)
    x, y = data()
    history = trainer.fit({"x": x, "y": y}, batch_size=16, epochs=2, verbose=0).history
    return history, int(trainer.task.optimizers[1].iterations)


@pytest.mark.parametrize("plan", OTHERS if ALL else SOME, ids=str)
def test_every_plan_runs_two_optimizers_conditions_and_dict_batches(plan):
    (first, expected_updates), (other, updates) = map(trained_by_two_optimizers, ("graph", plan))
    assert updates == expected_updates == 5
    for name, values in first.items():
        np.testing.assert_allclose(other[name], values, rtol=2e-5)


def test_a_compiled_model_and_a_step_without_data_run_fused():
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.01), "mse", metrics=["mae"])
    start = model.get_weights()
    ours = lw.Trainer(model, plan="fused").fit(*data(), shuffle=False, epochs=2, verbose=0).history
    model.set_weights(start)
    model.compile(keras.optimizers.SGD(0.01), "mse", metrics=["mae"])
    theirs = model.fit(*data(), shuffle=False, epochs=2, verbose=0).history
    for name, values in theirs.items():
        np.testing.assert_allclose(ours[name], values, rtol=2e-5)
    trainer = lw.Trainer(Descent(), plan="fused")
    trainer.fit(None, until="40 steps", verbose=0)
    assert float(trainer.task.weight) == pytest.approx(4.0 * 0.8**40, rel=1e-4)


def test_a_bound_that_xla_does_not_check_is_named_with_the_step_that_broke_it():
    y = np.zeros(20, "int32")
    y[9] = 7
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(5)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    trainer = lw.Trainer(lw.Supervised(model, loss, "sgd"), plan="fused")
    with pytest.raises(lw.StepError, match=r"received: label 7, in step 3 \(batch 3 of epoch 1"):
        trainer.fit(np.ones((20, 2), "float32"), y, batch_size=4, shuffle=False, verbose=0)


def test_a_fused_loop_is_traced_once_and_its_last_smaller_batch_once():
    trainer = lw.Trainer(Counted(), plan="fused")
    trainer.fit(*data(), validation_data=data(37), validate_every="7 steps", epochs=3, verbose=0)
    assert trainer.task.train_traces == [False] * 3  # to build, the loop, the last batch
    assert trainer.task.test_traces == [False] * 3


COUNT_COMPILES = """
    import loopwright as lw
    from tests.engine.test_runner import Counted, data

    for plan in ("fused", "xla"):
        before = compiled()
        trainer = lw.Trainer(Counted(), plan=plan)
        trainer.fit(*data(96), epochs=1, verbose=0)
        first = compiled()
        held = {"validation_data": data(96), "validate_every": "1 step"}
        trainer.fit(*data(96), epochs=2, verbose=0, **held)
        trainer.fit(*data(96), until="10 steps", verbose=0)
        print(plan, first - before, compiled() - before)
"""


def test_one_compile_serves_every_range_of_steps(tmp_path):
    # With dropout: where a bound was a constant to XLA, each new range was compiled anew.
    # The train step's program, then the test step's.
    assert lines_with_compiles(COUNT_COMPILES, tmp_path) == ["fused 1 2", "xla 1 2"]


def test_the_same_seed_gives_the_same_bits():
    trainers = [lw.Trainer(Counted(), seed=seed) for seed in (1, 1, 2)]
    for trainer in trainers:
        trainer.fit(*data(), epochs=2, verbose=0)
    first, same, other = (np.concatenate([w.ravel() for w in weights(t)]) for t in trainers)
    np.testing.assert_array_equal(first, same)
    assert not np.array_equal(first, other)


def test_the_eager_plan_runs_python_for_each_step_with_real_values():
    trainer = lw.Trainer(Counted(), plan="eager")
    trainer.fit(*data(), validation_data=data(37), batch_size=32, epochs=2, verbose=0)
    assert trainer.task.train_traces == [True] * 8
    assert trainer.task.test_traces == [True] * 4


class Mean(lw.Task):
    def train_step(self, batch):
        return {"loss": tf.reduce_mean(batch[0])}


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_a_loop_says_how_many_steps_it_ran_before_the_data_ended(plan):
    task = Mean()
    feed = lw.Arrays(*data()).in_batches_of(10).one_pass(steps=None)
    strategy = tf.distribute.get_strategy()
    steps = Engine(task, Team(strategy))
    loop = steps.loop("train_step", feed, settled(plan_of(plan), steps.kind(feed).terms))
    reader = loop.open(feed)
    ran = loop.run(reader, 8)
    assert (ran.steps, ran.totals["loss"][1]) == (8, 80)
    ran = loop.run(reader, 100)
    assert (ran.steps, ran.totals["loss"][1]) == (3, 23)
    assert int(task.step) == 11


def test_plans_that_do_not_exist_are_refused_in_words():
    with pytest.raises(lw.ConfigurationError, match="Unknown plan '") as unknown:
        plan_of("warp")
    assert "'graph' or 'eager'" in str(unknown.value)
    with pytest.raises(lw.ConfigurationError, match="Unknown plan"):
        Plan(step="eager", loop="graph")


class GeneratesTwice:
    def __init__(self, batch):
        self.batch = batch

    def __iter__(self):
        yield self.batch


@pytest.mark.parametrize(
    ("plan", "kind", "reason", "remedy"),
    [
        (Plan("xla", "fused", "stream"), "stream", "cannot read from an iterator", "plan='fused'"),
        ("fused", "generator", "Python makes them one by one", "plan='xla'"),
        (Plan("graph", "graph", "chunk"), "generator", "stacked from dense", "plan='graph'"),
        (Plan("graph", "graph", "chunk"), "ragged", "stacked from dense", "plan='graph'"),
        (Plan("graph", "graph", "resident"), "stream", "only arrays can be kept", "plan='graph'"),
        ("xla", "strings", "dense numbers only", "plan='graph'"),
        ("fused", "ragged", "dense numbers only", "plan='graph'"),
    ],
    ids=str,
)
def test_a_plan_that_cannot_serve_names_the_reason_and_the_nearest_that_can(
    plan, kind, reason, remedy
):
    class Sizes(lw.Task):
        def train_step(self, batch):
            if kind in ("strings", "ragged"):
                return {"size": replicas.count_examples(batch)}
            return {"mean": tf.reduce_mean(batch)}

    numbers = np.zeros((8, 2), "float32")
    given = {
        "stream": tf.data.Dataset.from_tensors(numbers),
        "generator": GeneratesTwice(numbers),
        "strings": np.array(["a", "b"]),
        "ragged": tf.ragged.constant([[1], [2, 3]]),
    }[kind]
    trainer = lw.Trainer(Sizes(), plan=plan)
    with pytest.raises(lw.ConfigurationError, match=reason) as refusal:
        trainer.fit(given, verbose=0)
    assert f"use {remedy}" in str(refusal.value)
    assert int(trainer.task.step) == 0
    lw.Trainer(Sizes(), plan=remedy.partition("=")[2].strip("'")).fit(given, verbose=0)


def test_scores_are_given_of_any_data_whatever_the_plan():
    x, y = data(40)
    trainer = lw.Trainer(Counted(), plan="fused")
    stream = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)
    assert trainer.evaluate(stream) == pytest.approx(trainer.evaluate(x, y), rel=1e-5)


def test_what_xla_cannot_compile_is_said_in_words():
    class Unique(lw.Task):
        def train_step(self, batch):
            found = tf.strings.length(tf.strings.as_string(batch))
            return {"length": tf.reduce_sum(found)}

    with pytest.raises(lw.ConfigurationError, match=r"XLA cannot compile Unique\.train_step") as no:
        lw.Trainer(Unique(), plan="xla").fit(np.zeros(8, "float32"), verbose=0)
    assert 'use plan="graph"' in str(no.value)


def test_a_size_that_fails_in_xla_is_explained_although_the_step_draws():
    class Fours(lw.Task):
        def __init__(self):
            super().__init__()
            self.noise = keras.layers.Dropout(0.5, seed=1)

        def train_step(self, batch):
            return {"mean": tf.reduce_mean(tf.reshape(self.noise(batch, training=True), [-1, 4]))}

    with pytest.raises(lw.StepError, match="a tensor with 2 values, but the requested shape"):
        lw.Trainer(Fours(), plan="fused").fit(np.ones((10, 1)), batch_size=4, verbose=0)


@pytest.mark.parametrize("plan", ["graph", "fused"])
def test_other_class_weights_in_the_next_fit_are_the_ones_that_count(plan):
    x, y = data()
    labels = (y > 0).astype("float32")

    def losses(*class_weights):
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        trainer = lw.Trainer(lw.Supervised(model, "mse", keras.optimizers.SGD(0.0)), plan=plan)
        fits = [trainer.fit(x, labels, class_weight=w, verbose=0) for w in class_weights]
        return [fit.history["loss"][0] for fit in fits]

    light, heavy = {0: 1.0, 1: 1.0}, {0: 3.0, 1: 3.0}
    first, second = losses(light, heavy)
    assert second == pytest.approx(3 * first, rel=1e-5)
