"""Validation and evaluation: right numbers, and no trace left in the training."""

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


def test_evaluate_and_predict_between_two_fits_leave_no_trace():
    without, with_it = lw.Trainer(Noisy()), lw.Trainer(Noisy())
    for trainer in (without, with_it):
        trainer.fit(*data(), epochs=1, verbose=0)
        if trainer is with_it:
            trainer.evaluate(*data(20))
            trainer.predict(data(20)[0])
        trainer.fit(*data(), epochs=1, verbose=0)
    assert bits(without.task) == bits(with_it.task)


def test_scores_are_means_over_examples_not_over_batches():
    class Identity(lw.Task):
        def test_step(self, batch):
            return {"value": tf.reduce_mean(batch)}

    values = np.arange(10, dtype="float32")
    scores = lw.Trainer(Identity()).evaluate(values, batch_size=4)
    assert scores == {"value": pytest.approx(values.mean())}


def test_each_validation_starts_with_fresh_metrics():
    trainer = lw.Trainer(Noisy())
    first, second = (trainer.evaluate(*data(50)) for _ in range(2))
    assert first == second


def test_named_validation_sets_report_under_their_names():
    trainer = lw.Trainer(Noisy())
    sets = {"near": data(20, seed=1), "far": tf.data.Dataset.from_tensors(data(20, seed=2))}
    history = trainer.fit(*data(), validation_data=sets, epochs=2, verbose=0).history
    names = {"val_near_loss", "val_near_error", "val_far_loss", "val_far_error"}
    assert names <= history.keys()
    assert all(len(history[name]) == 2 for name in names)
    assert history["val_near_loss"] != history["val_far_loss"]


def test_validation_steps_bound_each_validation():
    class Sum(lw.Task):
        def train_step(self, batch):
            return {"mean": tf.reduce_mean(batch)}

        def test_step(self, batch):
            return {"mean": tf.reduce_mean(batch)}

    values = np.arange(12, dtype="float32")
    trainer = lw.Trainer(Sum())
    history = trainer.fit(
        values, validation_data=lw.Arrays(values), validation_steps=1, batch_size=4, verbose=0
    ).history
    whole = trainer.evaluate(values, batch_size=4)["mean"]
    assert whole == pytest.approx(5.5)
    # Arrays wrapped by their owner keep their own batch size of 32: one batch is everything.
    assert history["val_mean"] == [pytest.approx(5.5)]
    history = trainer.fit(
        values, validation_data=(values,), validation_steps=1, batch_size=4, verbose=0
    ).history
    assert history["val_mean"] == [pytest.approx(1.5)]


def test_data_that_gives_no_batch_is_named():
    with pytest.raises(lw.DataError, match="gave no batch"):
        lw.Trainer(Noisy()).evaluate(
            tf.data.Dataset.from_tensor_slices(data(4)).filter(lambda *_: False).batch(2)
        )


@pytest.mark.parametrize("plan", ["graph", "eager"])
def test_batches_that_change_their_shape_are_scored_to_the_end(plan):
    class Sums(lw.Task):
        def test_step(self, batch):
            return {"mean": tf.reduce_mean(batch)}

    batches = [np.full((2, width), width, "float32") for width in (3, 3, 5, 4)]
    trainer = lw.Trainer(Sums(), plan=plan)
    assert trainer.evaluate(iter(batches)) == {"mean": pytest.approx((3 + 3 + 5 + 4) / 4)}
