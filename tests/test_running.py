"""How steps are run: traces, splits into calls, eager debugging."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import loopwright as lw
from loopwright.plans import Plan, plan_of
from loopwright.running import StepRunner


class Counted(lw.Task):
    """Counts how often Python runs through its steps: once per trace."""

    def __init__(self):
        super().__init__()
        keras.utils.set_random_seed(3)
        self.model = keras.Sequential(
            [keras.Input((4,)), keras.layers.Dropout(0.2, seed=5), keras.layers.Dense(1)]
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


def test_a_run_split_into_single_steps_ends_with_the_same_bits():
    class EveryStep(keras.callbacks.Callback):
        needs_every_step = True

    whole, split = lw.Trainer(Counted()), lw.Trainer(Counted())
    first = whole.fit(*data(), epochs=3, verbose=0)
    second = split.fit(*data(), epochs=3, callbacks=[EveryStep()], verbose=0)
    for one, other in zip(weights(whole), weights(split), strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_allclose(first.history["loss"], second.history["loss"], rtol=1e-12)


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


def test_the_eager_plan_trains_as_the_graph_plan_does():
    histories = []
    for plan in ("graph", "eager"):
        task = Counted()
        task.model.layers[0].rate = 0.0
        trainer = lw.Trainer(task, plan=plan)
        histories.append(trainer.fit(*data(), validation_data=data(37), epochs=2, verbose=0))
    for name, values in histories[0].history.items():
        np.testing.assert_allclose(histories[1].history[name], values, rtol=1e-5)


def test_a_runner_says_how_many_steps_it_ran_before_the_data_ended():
    task = Counted()
    feed = lw.Arrays(*data()).in_batches_of(10).one_pass(steps=None)
    strategy = tf.distribute.get_strategy()
    runner = StepRunner(
        task, "train_step", feed.batch_spec, strategy=strategy, plan=plan_of("graph")
    )
    iterator = iter(feed.dataset)
    ran, totals = runner.run(iterator, feed.end, 8)
    assert (ran, totals["loss"][1]) == (8, 80)
    ran, totals = runner.run(iterator, feed.end, 100)
    assert (ran, totals["loss"][1]) == (3, 23)
    assert int(task.step) == 11


def test_the_last_smaller_batch_is_trained():
    class Sizes(lw.Task):
        def __init__(self):
            super().__init__()
            self.examples = tf.Variable(0)

        def train_step(self, batch):
            self.examples.assign_add(tf.shape(batch)[0])
            return {"size": tf.shape(batch)[0]}

    trainer = lw.Trainer(Sizes())
    history = trainer.fit(np.zeros((70, 2)), batch_size=32, epochs=1, verbose=0).history
    assert int(trainer.task.examples) == 70
    assert history["size"] == [pytest.approx((32 * 32 + 32 * 32 + 6 * 6) / 70)]


def test_plans_that_do_not_exist_are_refused_in_words():
    with pytest.raises(lw.ConfigurationError, match="no plan of this name") as unknown:
        plan_of("warp")
    assert "'graph' or 'eager'" in str(unknown.value)
    with pytest.raises(lw.ConfigurationError, match="no such plan"):
        Plan(step="eager", loop="graph")
