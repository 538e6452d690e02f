"""A task whose step is written by hand, for tests that change one part of it."""

from typing import Any

import keras
import tensorflow as tf

import loopwright as lw


class ByHand(lw.Task):
    """Trains `model` with `optimizer` on `loss_of(*batch)`, by default a squared error."""

    def __init__(self, model: Any, optimizer: Any = None) -> None:
        super().__init__()
        self.model, self.optimizer = model, optimizer or keras.optimizers.SGD(0.01)

    def train_step(self, batch: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = self.loss_of(*batch) if isinstance(batch, tuple) else self.loss_of(batch, None)
        self.minimize(loss, self.model, self.optimizer, tape)
        return {"loss": loss}

    def loss_of(self, x: Any, y: Any) -> Any:
        return tf.reduce_mean(tf.square(y - self.model(x, training=True)))
