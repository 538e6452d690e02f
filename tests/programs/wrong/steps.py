"""Mistakes inside a step that its trace shows."""

import keras
import numpy as np
import tensorflow as tf
from tests.programs.wrong.corpus import Wrong

import loopwright as lw

X = np.random.default_rng(3).normal(size=(16, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


class _Regression(lw.Task):
    """A step by hand, with the loss that a program gives it."""

    def __init__(self) -> None:
        super().__init__()
        self.model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        self.optimizer = keras.optimizers.SGD(0.01)

    def train_step(self, batch):
        with tf.GradientTape() as tape:
            loss = self.loss_of(*batch)
        self.minimize(loss, self.model, self.optimizer, tape)
        return {"loss": loss}

    def loss_of(self, x, y):
        return tf.reduce_mean(tf.square(y - self.model(x, training=True)))


def labels_without_their_axis(mistake: bool) -> Wrong:
    class Spread(_Regression):
        def loss_of(self, x, y):
            difference = y - self.model(x, training=True)  # here
            return tf.reduce_mean(tf.square(difference))

    return Wrong(
        Spread(),
        "Spread.train_step combines shapes (None,) and (None, 1), which broadcasts to (n, n) "
        '(file "steps.py", line {line}: difference = y - self.model(x, training=True)  # here).\n'
        "  do: give both the same shape, for instance labels[:, None] or tf.squeeze(predictions, "
        "-1); if it is meant, use both axes: a[:, None] and b[None, :]",
        X,
        Y[:, 0] if mistake else Y,
        id="broadcast",
    )
