"""Settings that a callback changes during `fit`: named once, and taken by the next `fit`."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from tests.guards.regression_step import X, Y

import loopwright as lw


class Weighted(lw.Task):
    """Reports the weight that its step multiplies with."""

    def __init__(self) -> None:
        super().__init__()
        keras.utils.set_random_seed(1)
        body = keras.Sequential([keras.Input((4,)), layers.Dense(3), layers.Dropout(0.5)])
        self.body, self.head = body, layers.Dense(1)
        self.optimizer = keras.optimizers.SGD(0.01)
        self.alpha, self.scales = 0.5, (1.0, 2.0)
        self.best = float("inf")

    def train_step(self, batch):
        x, y = batch
        with tf.GradientTape() as tape:
            error = y - self.head(self.body(x, training=True))
            loss = self.alpha * self.scales[0] * tf.reduce_mean(tf.square(error))
        self.minimize(loss, [self.body, self.head], self.optimizer, tape)
        return {"loss": loss, "alpha": tf.constant(self.alpha)}


def changing(change: Callable[[int], Any]) -> keras.callbacks.Callback:
    return keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: change(epoch))


def fit(trained: Any, change: Callable[[int], Any], plan: str = "graph", epochs: int = 3) -> Any:
    trainer = lw.Trainer(trained, plan=plan)
    callbacks = [changing(change)]
    history = trainer.fit(X, Y, batch_size=8, epochs=epochs, verbose=0, callbacks=callbacks)
    return trainer, history.history


def named(trained: Any, change: Callable[[int], Any], plan: str = "graph") -> Any:
    """The text of the only warning, the trainer and its history."""
    with pytest.warns(lw.StepWarning) as caught:
        trainer, history = fit(trained, change, plan)
    (warning,) = [each.message for each in caught if isinstance(each.message, lw.StepWarning)]
    assert warning.id == "late-change"
    return str(warning), trainer, history


@pytest.mark.parametrize("plan", ["graph", "fused"])
def test_a_number_that_a_callback_sets_is_named_once_and_taken_by_the_next_fit(plan: str):
    task = Weighted()
    text, trainer, history = named(task, lambda epoch: setattr(task, "alpha", epoch + 1.0), plan)

    assert history["alpha"] == [0.5, 0.5, 0.5]
    assert text == (
        "alpha changed during fit, and Weighted.train_step does not see it: the compiled step "
        "keeps what it was traced with.\n"
        "  expected: settings of the task and of its layers that stay the same during fit\n"
        "  received: alpha: 0.5, now 1.0\n"
        "  do: end this fit and call fit again: it continues with the new value; hold a number "
        "that changes while training in a tf.Variable (assign it) or an lw.Scheduled; or run "
        'Python in each step with plan="eager"\n'
        '  silence: Trainer(..., silence=["late-change"]), if this is intended'
    )
    assert trainer.fit(X, Y, batch_size=8, verbose=0).history["alpha"] == [3.0]


def test_a_body_that_is_frozen_during_fit_is_named_and_frozen_in_the_next_fit():
    task = Weighted()
    text, trainer, _ = named(task, lambda epoch: setattr(task.body, "trainable", False))

    assert "received: body.trainable: True, now False, " in text
    before = task.body.get_weights()[0]
    trainer.fit(X, Y, batch_size=8, verbose=0)
    np.testing.assert_array_equal(task.body.get_weights()[0], before)


@pytest.mark.parametrize("kind", ["task", "supervised", "compiled"])
def test_an_optimizer_that_is_replaced_during_fit_is_named_and_used_by_the_next_fit(kind: str):
    model = keras.Sequential([keras.Input((4,)), layers.Dense(1)])
    model.compile("sgd", "mse")
    made = {"task": Weighted, "supervised": lambda: lw.Supervised(model, "mse", "sgd")}
    trained, adam = made.get(kind, lambda: model)(), keras.optimizers.Adam()
    text, trainer, _ = named(trained, lambda epoch: setattr(trained, "optimizer", adam))

    assert "optimizer: a SGD, now a Adam" in text
    trainer.fit(X, Y, batch_size=8, verbose=0)
    assert int(adam.iterations) == 2


def test_a_tuple_and_the_rate_of_a_dropout_are_settings_too():
    task = Weighted()

    def change(epoch: int) -> None:
        task.scales = (1.0, 4.0)
        task.body.layers[1].rate = 0.1

    text, _, _ = named(task, change)
    assert "received: scales: (1.0, 2.0), now (1.0, 4.0), body.dropout" in text
    assert ".rate: 0.5, now 0.1" in text


class Annealed(keras.Model):
    """A compiled model whose step multiplies with a plain attribute, as many a VAE does."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.beta = layers.Dense(1), 0.5
        self.compile("sgd", "mse")

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        return {**super().train_step(data), "beta": tf.constant(self.beta)}


def test_an_attribute_of_a_compiled_keras_model_is_named_and_taken_by_the_next_fit():
    model = Annealed()
    text, trainer, history = named(model, lambda epoch: setattr(model, "beta", 1.0))

    assert history["beta"] == [0.5, 0.5, 0.5]
    assert text.startswith("model.beta changed during fit, and Annealed.train_step does not see it")
    assert trainer.fit(X, Y, batch_size=8, verbose=0).history["beta"] == [1.0]


def test_a_change_before_the_first_step_is_named():
    task = Weighted()
    begin = keras.callbacks.LambdaCallback(on_train_begin=lambda logs: setattr(task, "alpha", 2.0))
    with pytest.warns(lw.StepWarning, match="alpha: 0.5, now 2.0"):
        lw.Trainer(task, plan="graph").fit(X, Y, verbose=0, callbacks=[begin])


def test_an_eager_step_takes_the_change_at_once():
    task = Weighted()
    _, history = fit(task, lambda epoch: setattr(task, "alpha", epoch + 1.0), "eager")
    assert history["alpha"] == [0.5, 1.0, 2.0]


def test_what_callbacks_change_in_right_programs_is_no_setting():
    task, model = Weighted(), Annealed()

    def of_task(epoch: int) -> None:
        task.best = 1.0 / (epoch + 1)  # the step does not read it
        task.optimizer.learning_rate = 0.001
        task.alpha = 0.25 + 0.25  # the same number
        task.note = f"epoch {epoch}"  # pyright: ignore[reportAttributeAccessIssue]

    def of_model(epoch: int) -> None:
        model.stop_training = epoch == 1

    fit(task, of_task)
    _, history = fit(model, of_model)
    assert len(history["beta"]) == 2
    task = Weighted()
    fit(task, lambda epoch: setattr(task, "alpha", 0.1), epochs=1)  # for the next fit


@pytest.mark.parametrize("is_compiled", [False, True])
def test_what_keras_own_loops_set_in_a_model_is_no_setting(is_compiled: bool, tmp_path: Any):
    model = keras.Sequential([keras.Input((4,)), layers.Dense(1)])
    model.compile("sgd", "mse")

    def use(_: int) -> None:
        model.predict(X, verbose=0)
        model.evaluate(X, Y, verbose=0)
        model.save(tmp_path / "model.keras")

    trained = model if is_compiled else lw.Supervised(model, "mse", "sgd")
    _, history = fit(trained, use)
    assert len(history["loss"]) == 3
