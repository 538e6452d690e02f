"""What a step trains: in which mode, and how often."""

from typing import Any

import keras
import pytest
import tensorflow as tf
from keras import layers
from tests.guards.regression_step import (
    Regression,
    X,
    dense,
    fit,
    squared_error,
    warned,
)

import loopwright as lw

# --- in which mode -------------------------------------------------------------------


def frozen() -> keras.Model:
    model = dense(layers.BatchNormalization())
    model.layers[0].trainable = False
    return model


@pytest.mark.parametrize(
    ("loss", "model"),
    [
        (squared_error, lambda: dense(layers.Dropout(0.5, seed=1))),
        (lambda model, x, y: squared_error(model, x, y) + 0 * model(x)[0, 0], dense),
        (
            lambda model, x, y: tf.reduce_mean(tf.square(y - model(x, training=False))),
            lambda: dense(layers.BatchNormalization()),
        ),
        (lambda model, x, y: tf.reduce_mean(tf.square(y - model(x))), dense),
        (lambda model, x, y: tf.reduce_mean(tf.square(y - model(x))), frozen),
    ],
    ids=["training", "once each", "meant", "no modes", "frozen"],
)
def test_a_model_that_is_called_as_it_should_be_is_no_mistake(loss: Any, model: Any):
    fit(Regression(loss, model()))  # a warning would be an error here


# --- how often --------------------------------------------------------------------------------


def updating(times: int) -> Regression:
    """A step that makes the same update several times, by the optimizer itself."""

    class ByHand(Regression):
        def train_step(self, batch):
            x, y = batch
            loss = tf.zeros(())
            for _ in range(times):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(tf.square(y - self.model(x, training=True)))
                variables = self.model.trainable_variables
                self.optimizer.apply(tape.gradient(loss, variables), variables)
            return {"loss": loss}

    return ByHand()


def test_many_updates_by_the_optimizer_itself_are_unrolled_too_a_few_are_meant():
    assert warned(updating(12)).startswith(
        "ByHand.train_step makes the same update 12 times: a Python loop was unrolled 12 times"
    )
    fit(updating(5))


def test_a_loop_in_the_train_step_of_a_keras_model_is_unrolled_too():
    class ByHand(keras.Sequential):
        def train_step(self, data):
            x, y = data
            loss = tf.zeros(())
            for _epoch in range(12):
                with tf.GradientTape() as tape:
                    loss = self.compute_loss(x, y, self(x, training=True))
                gradients = tape.gradient(loss, self.trainable_variables)
                self.optimizer.apply_gradients(
                    zip(gradients, self.trainable_variables, strict=True)
                )
            return {"loss": loss}

    model = ByHand([keras.Input((X.shape[1],)), layers.Dense(1)])
    model.compile("sgd", "mse")
    assert "makes the same update 12 times" in warned(model)


def test_a_loop_of_tensorflow_inside_a_step_is_not_unrolled():
    class Looping(Regression):
        def train_step(self, batch):
            loss = tf.zeros(())
            for _ in tf.range(12):
                loss = Regression.train_step(self, batch)["loss"]
            return {"loss": loss}

    task = Looping()
    fit(task)
    assert int(task.optimizer.iterations) == 24


# --- in which precision ------------------------------------------------------------------------


class Half(Regression):
    """Trains a layer that computes in float16, by `minimize` or by the optimizer itself."""

    def __init__(self, optimizer: Any, by_hand: bool = False, dtype: str = "mixed_float16") -> None:
        self.by_hand = by_hand
        half, cast = layers.Dense(1, dtype=dtype), layers.Activation("linear", dtype="float32")
        model = keras.Sequential([keras.Input((4,)), half, cast])
        super().__init__(squared_error, model)
        self.optimizer = optimizer

    def train_step(self, batch: Any) -> Any:
        if not self.by_hand:
            return super().train_step(batch)
        x, y = batch
        with tf.GradientTape() as tape:
            loss = squared_error(self.model, x, y)
            scaled = self.optimizer.scale_loss(loss)
        variables = self.model.trainable_variables
        gradients = tape.gradient(scaled, variables)
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return {"loss": loss}


def compiled_half() -> keras.Model:
    """Keras scales the loss of a model whose own policy is float16, and of no other."""
    model = keras.Sequential([keras.Input((4,)), layers.Dense(1, dtype="mixed_float16")])
    model.compile("adam", "mse")
    return model


UNSCALED = {
    "minimize": lambda: Half(keras.optimizers.Adam()),
    "by hand": lambda: Half(keras.optimizers.Adam(), by_hand=True),
    "compiled": compiled_half,
}
SCALED = {
    "minimize": lambda: Half(keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())),
    "by hand": lambda: Half(
        keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()), by_hand=True
    ),
    "factor": lambda: Half(keras.optimizers.Adam(loss_scale_factor=1024.0)),
    "bfloat16": lambda: Half(keras.optimizers.Adam(), dtype="mixed_bfloat16"),
}


@pytest.mark.parametrize("make", UNSCALED.values(), ids=UNSCALED)
def test_float16_without_a_loss_scale_is_named(make: Any):
    text = warned(make())
    assert "computes in float16, with Adam, which does not scale the loss" in text
    assert "write keras.optimizers.LossScaleOptimizer(Adam(...))" in text
    silent = lw.Trainer(make(), plan="graph", silence=["unscaled-float16"])
    silent.fit(X, X[:, :1], verbose=0)


@pytest.mark.parametrize("make", SCALED.values(), ids=SCALED)
def test_a_loss_scale_and_bfloat16_are_no_mistake(make: Any):
    fit(make())  # a warning would be an error here
