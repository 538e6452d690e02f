"""Mistakes that only the numbers of a run show."""

import keras
import numpy as np
import tensorflow as tf
from tests.programs.wrong.wrong_program import Wrong, on_every_plan

import loopwright as lw

X = np.random.default_rng(3).normal(size=(64, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)
BINARY = (Y > 0).astype("float32")
EPOCHS = {"batch_size": 4}


def _network(activation: str | None = None, units: int = 1, bias: float = 0.0) -> keras.Model:
    start = keras.initializers.Constant(bias)
    dense = keras.layers.Dense(units, activation, bias_initializer=start, name="output")
    return keras.Sequential([keras.Input((4,)), dense], name="net")


@on_every_plan
def dead_relu(mistake: bool) -> Wrong:
    model = _network("relu", bias=-100.0 if mistake else 1.0)
    model.compile(keras.optimizers.SGD(0.01), "mse")
    return Wrong(model, X, np.abs(Y), options=EPOCHS)


def saturated_sigmoid(mistake: bool) -> Wrong:
    model = _network("sigmoid", bias=200.0 if mistake else 0.0)
    return Wrong(
        lw.Supervised(model, "mse", keras.optimizers.Adam(0.01)), X, BINARY, options=EPOCHS
    )


def clipped_loss(mistake: bool) -> Wrong:
    class Clipped(lw.Task):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.optimizer = _network(), keras.optimizers.SGD(0.01)

        def train_step(self, batch):
            x, y = batch
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(y + 10.0 - self.model(x, training=True)))
                loss = tf.minimum(loss, 1.0 if mistake else 1e6)
            self.minimize(loss, self.model, self.optimizer, tape)
            return {"loss": loss}

    return Wrong(Clipped(), X, Y, options=EPOCHS)


@on_every_plan
def learning_rate_of_zero(mistake: bool) -> Wrong:
    return Wrong(
        lw.Supervised(_network(), "mse", keras.optimizers.SGD(0.0 if mistake else 0.01)),
        X,
        Y,
        options=EPOCHS,
    )


@on_every_plan
def generator_without_gradients(mistake: bool) -> Wrong:
    class Pair(lw.Task):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = _network(), _network("relu", bias=-99.0 if mistake else 1.0)
            self.first_optimizer = keras.optimizers.SGD(0.01)
            self.second_optimizer = keras.optimizers.SGD(0.02)

        def train_step(self, batch):
            x, y = batch
            losses = {}
            for name in ("first", "second"):
                model = getattr(self, name)
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(tf.square(y - model(x, training=True)))
                self.minimize(loss, model, getattr(self, f"{name}_optimizer"), tape)
                losses[f"{name}_loss"] = loss
            return losses

    return Wrong(Pair(), X, np.abs(Y), options=EPOCHS)


def sgd_that_diverges_to_nan(mistake: bool) -> Wrong:
    model = _network()
    model.layers[0].set_weights([np.zeros((4, 1)), np.zeros(1)])
    x = np.ones((64, 4), "float32")
    return Wrong(
        lw.Supervised(model, "mse", keras.optimizers.SGD(1e3 if mistake else 1e-3)),
        x,
        np.full_like(Y, 2.0),
        options=EPOCHS | {"shuffle": False},
    )
