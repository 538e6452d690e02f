"""Validation and evaluation: right numbers, and no trace left in the training."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import loopwright as lw


class Noisy(lw.Task):
    """Dropout, batch norm, a metric, and a test step that draws from the same seed generator."""

    def __init__(self):
        super().__init__()
        keras.utils.set_random_seed(7)
        self.model = keras.Sequential(
            [
                keras.Input((3,)),
                keras.layers.Dense(8, "relu"),
                keras.layers.BatchNormalization(),
                keras.layers.Dropout(0.5, seed=1),
                keras.layers.Dense(1),
            ]
        )
        self.optimizer = keras.optimizers.Adam(0.01)
        self.error = keras.metrics.MeanAbsoluteError(name="error")
        self.seed = keras.random.SeedGenerator(4)
        self.tests = tf.Variable(0, trainable=False)

    def train_step(self, batch):
        x, y = batch
        x += 0.1 * keras.random.normal(tf.shape(x), seed=self.seed)
        with tf.GradientTape() as tape:
            predictions = self.model(x, training=True)
            loss = tf.reduce_mean((predictions - y) ** 2)
        self.minimize(loss, self.model, self.optimizer, tape)
        self.error.update_state(y, predictions)
        return {"loss": loss}

    def test_step(self, batch):
        x, y = batch
        self.tests.assign_add(1)
        predictions = self.model(x + keras.random.normal(tf.shape(x), seed=self.seed))
        self.error.update_state(y, predictions)
        return {"loss": tf.reduce_mean((predictions - y) ** 2)}

    def predict_step(self, batch):
        keras.random.normal((1,), seed=self.seed)
        return self.model(batch, training=False)


def data(rows=100, seed=0):
    x = np.random.default_rng(seed).normal(size=(rows, 3)).astype("float32")
    return x, x.sum(axis=1, keepdims=True)


def bits(task):
    variables = [*task.model.variables, *task.optimizer.variables, *task.error.variables]
    variables += [task.seed.state, task.tests, task.step_counter]
    return [np.asarray(v.numpy()).tobytes() for v in variables]


@pytest.mark.parametrize("plan", ["graph", "eager"])
def test_validation_in_mid_epoch_leaves_no_trace_in_training(plan):
    rows = 100 if plan == "graph" else 40
    without, with_it = lw.Trainer(Noisy(), plan=plan), lw.Trainer(Noisy(), plan=plan)
    plain = without.fit(*data(rows), batch_size=8, epochs=2, verbose=0)
    scored = with_it.fit(
        *data(rows),
        batch_size=8,
        epochs=2,
        validation_data=data(33, seed=1),
        validate_every="2 steps",
        verbose=0,
    )
    assert len(scored.history["val_loss"]) > 4
    assert bits(without.task) == bits(with_it.task)
    for name in ("loss", "error"):
        np.testing.assert_allclose(scored.history[name], plain.history[name], rtol=1e-12)


class SharesSeeds(Noisy):
    """Also draws from the generators that all of Keras and TensorFlow share."""

    def drawn(self, batch):
        x, y = batch
        noise = keras.random.normal(tf.shape(x))
        return x + noise + tf.random.get_global_generator().normal(tf.shape(x)), y

    def train_step(self, batch):
        return super().train_step(self.drawn(batch))

    def test_step(self, batch):
        return super().test_step(self.drawn(batch))

    def predict_step(self, batch):
        return super().predict_step(self.drawn((batch, None))[0])


def test_scoring_and_predicting_do_not_consume_the_generators_that_all_share():
    ends = []
    for scores in (False, True):
        tf.random.set_global_generator(tf.random.Generator.from_seed(1))
        trainer = lw.Trainer(SharesSeeds(), plan="graph")
        trainer.fit(*data(), validation_data=data(20) if scores else None, verbose=0)
        if scores:
            trainer.evaluate(*data(20))
            trainer.predict(data(20)[0])
        trainer.fit(*data(), verbose=0)
        ends.append(bits(trainer.task))
    assert ends[0] == ends[1]


def test_each_validation_starts_with_fresh_metrics():
    trainer = lw.Trainer(Noisy())
    first, second = (trainer.evaluate(*data(50)) for _ in range(2))
    assert first == second


def test_scores_are_means_over_examples_and_validation_steps_bound_them():
    values = np.arange(10, dtype="float32")
    trainer = lw.Trainer(Sum())
    history = trainer.fit(
        values, validation_data=lw.Arrays(values), validation_steps=1, batch_size=4, verbose=0
    ).history
    assert trainer.evaluate(values, batch_size=4)["mean"] == pytest.approx(values.mean())
    # Arrays wrapped by their owner keep their own batch size of 32: one batch is everything.
    assert history["val_mean"] == [pytest.approx(values.mean())]
    history = trainer.fit(
        values, validation_data=(values,), validation_steps=1, batch_size=4, verbose=0
    ).history
    assert history["val_mean"] == [pytest.approx(1.5)]


def test_data_that_gives_no_batch_is_named():
    with pytest.raises(lw.DataError, match="gave no batch"):
        lw.Trainer(Noisy()).evaluate(
            tf.data.Dataset.from_tensor_slices(data(4)).filter(lambda *_: False).batch(2)
        )


class Sum(lw.Task):
    def train_step(self, batch):
        return {"mean": tf.reduce_mean(batch)}

    def test_step(self, batch):
        return {"mean": tf.reduce_mean(batch)}


@pytest.mark.parametrize("plan", ["graph", "eager"])
def test_batches_that_change_their_shape_are_scored_to_the_end(plan):
    batches = [np.full((2, width), width, "float32") for width in (3, 3, 5, 4)]
    trainer = lw.Trainer(Sum(), plan=plan)
    assert trainer.evaluate(iter(batches)) == {"mean": pytest.approx((3 + 3 + 5 + 4) / 4)}


class Metered(lw.Task):
    """Holds three metrics, and updates those that each step is given."""

    def __init__(self, train=(), test=(), returned=()):
        super().__init__()
        self.weight, self.optimizer = tf.Variable(1.0), keras.optimizers.SGD(0.01)
        self.first = keras.metrics.Mean(name="first")
        self.second = keras.metrics.FalsePositives(name="second")
        self.others = [keras.metrics.Sum(name="third")]
        self.updated = {"train": set(train), "test": set(test)}
        self.returned = returned

    def _update(self, values, which):
        for metric in (self.first, *self.others):
            if metric.name in self.updated[which]:
                metric.update_state(0.0 * values)
        if "second" in self.updated[which]:
            # In a branch that is taken now and then, and never counts anything.
            tf.cond(values[0] > 2.0, lambda: self._count(values), lambda: tf.constant(0))
        return {m.name: m.result() for m in self.metrics if m.name in self.returned}

    def _count(self, values):
        self.second.update_state(tf.ones_like(values), values)
        return tf.constant(0)

    def train_step(self, batch):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(batch - self.weight))
        self.minimize(loss, [self.weight], self.optimizer, tape)
        return {"loss": loss} | self._update(batch, "train")

    def test_step(self, batch):
        return {"loss": tf.reduce_mean(batch)} | self._update(batch, "test")


VALUES = np.arange(8, dtype="float32")


def left_out(task, **options):
    """The names in the history, and what was said of those that are missing."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        trainer = lw.Trainer(task, **{"plan": "graph", **options})
        data = {"validation_data": (VALUES,), "batch_size": 4, "verbose": 0}
        trainer.fit(VALUES, epochs=2, **data)
        history = trainer.fit(VALUES, epochs=2, **data).history
        trainer.evaluate(VALUES)
    return history, [str(one.message) for one in said if one.category is lw.StepWarning]


@pytest.mark.parametrize("plan", ["graph", "eager", "fused"])
def test_a_metric_is_reported_where_it_is_updated_and_named_once_elsewhere(plan):
    task = Metered(train=["first", "second"], test=["third", "second"])
    history, said = left_out(task, plan=plan)
    reported = {"loss", "first", "second", "val_loss", "val_third", "val_second"}
    assert history.keys() == reported
    assert history["second"] == history["val_second"] == [0.0, 0.0]  # updated, and still zero
    train, test = sorted(said, key=lambda text: "test_step" in text)
    assert "Metered.train_step does not update the metric 'third'" in train
    assert "Metered.test_step does not update the metric 'first'" in test
    assert "update_state" in test


def test_a_result_that_a_step_returns_of_a_metric_it_does_not_update_is_left_out():
    task = Metered(train=["first"], returned=["first", "second"])
    history, _ = left_out(task)
    assert history.keys() == {"loss", "first", "val_loss"}


def test_a_scalar_under_the_name_of_a_metric_that_is_not_updated_is_reported():
    class Own(Metered):
        def test_step(self, batch):
            return {"first": tf.reduce_mean(batch)}

    history, _ = left_out(Own(train=["first", "second", "third"]))
    assert history["val_first"] == [pytest.approx(3.5)] * 2


def test_a_metric_that_is_changed_without_update_state_is_reported():
    class Own(Metered):
        def train_step(self, batch):
            self.first.total.assign_add(tf.reduce_sum(batch))
            self.first.count.assign_add(4.0)
            return super().train_step(batch)

    for plan in ("graph", "eager"):
        history, _ = left_out(Own(), plan=plan)
        assert history["first"] == [pytest.approx(3.5)] * 2


def test_a_compiled_model_reports_its_metrics_as_keras_does():
    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)
            self.idle = keras.metrics.Mean(name="idle")

        def call(self, x):
            return self.dense(x)

    def made():
        keras.utils.set_random_seed(0)
        model = Own()
        model.compile("sgd", "mse")
        return model

    x, y = data(16)
    theirs = made().fit(x, y, shuffle=False, verbose=0).history
    with pytest.warns(lw.StepWarning, match="returns the metric 'idle' without an update"):
        ours = lw.Trainer(made(), plan="graph").fit(x, y, shuffle=False, verbose=0).history
    assert ours.keys() == theirs.keys()


@pytest.mark.parametrize("plan", ["graph", "eager"])
def test_a_run_that_is_resumed_at_the_end_of_an_epoch_leaves_out_the_same_metrics(tmp_path, plan):
    def history(run_dir, fails):
        trainer = lw.Trainer(Metered(train=["first", "second"]), run_dir=run_dir, plan=plan)
        options = {"batch_size": 4, "save_every": "2 steps", "epochs": 2}
        for event in trainer.events(VALUES, **options):
            if fails and isinstance(event, lw.Saved):
                raise RuntimeError("the machine failed")
        return trainer.history.history

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lw.StepWarning)
        with pytest.raises(RuntimeError, match="the machine failed"):
            history(tmp_path / "run", fails=True)
        resumed = history(tmp_path / "run", fails=False)
        assert resumed == history(tmp_path / "whole", fails=False)
    assert resumed.keys() == {"loss", "first", "second"}
