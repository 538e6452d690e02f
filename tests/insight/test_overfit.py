"""One batch: its loss falls, or the measured reason is named."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.insight.rehearsed import X, Y, bits

import loopwright as lw
from loopwright.insight.rehearsal_report import Overfit

LABELS = (np.arange(50) % 5).astype("int32")


def learned(layers: Any, loss: Any, optimizer: Any, y: Any = Y, **options: Any) -> Overfit:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), *layers])
    one = lw.Trainer(lw.Supervised(model, loss, optimizer), plan="graph")
    before = bits(one)
    found = one.rehearse(X, y, overfit="1 batch", **options).overfit
    assert found is not None
    assert {name: value for name, value in bits(one).items() if name in before} == before
    return found


def dense(units: int = 1, **options: Any) -> keras.layers.Dense:
    return keras.layers.Dense(units, **options)


def test_a_step_that_learns_brings_the_loss_down():
    found = learned([dense(16, activation="relu"), dense()], "mse", keras.optimizers.Adam(0.02))
    assert found.falls
    assert found.last < 0.1 * found.first
    assert not found.reasons


def test_dead_relus_are_named_with_their_share():
    dead = dense(16, activation="relu", bias_initializer=keras.initializers.Constant(-100.0))
    found = learned([dead, dense()], "mse", keras.optimizers.SGD(0.01))
    assert not found.falls
    assert any("dead ReLUs: 100% of the units" in each for each in found.reasons)


def test_variables_without_a_gradient_are_named():
    class Detached(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            return keras.ops.stop_gradient(x)

    layers = [dense(8), Detached(), dense(1, kernel_initializer="zeros", use_bias=False)]
    found = learned(layers, "mse", keras.optimizers.SGD(1e-9))
    assert any("frozen: 2 of 3 trained variables" in each for each in found.reasons)


@pytest.mark.parametrize(("rate", "size"), [(1e-6, "small"), (300.0, "large")])
def test_a_wrong_learning_rate_is_found_by_trying_others(rate, size):
    found = learned([dense()], "mae", keras.optimizers.SGD(rate))
    assert not found.falls
    assert any(f"learning rate too {size}" in each for each in found.reasons)


def test_a_loss_above_chance_is_called_wrong():
    # Softmax, then a cross-entropy that takes its outputs for logits.
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    blind = dense(5, kernel_initializer="zeros", activation="softmax", trainable=False)
    found = learned([dense(4, trainable=True), blind], loss, "sgd", LABELS)
    assert not found.falls
    assert any("no better than a constant answer" in each for each in found.reasons)


def test_a_step_without_data_has_no_batch():
    class Alone(lw.Task):
        def __init__(self) -> None:
            super().__init__()
            self.weight = keras.Variable(1.0)
            self.optimizer = keras.optimizers.SGD(0.1)

        def train_step(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            with tf.GradientTape() as tape:
                loss = self.weight * self.weight
            self.minimize(loss, [self.weight], self.optimizer, tape)
            return {"loss": loss}

    with pytest.raises(lw.ConfigurationError, match="no batch to train on"):
        lw.Trainer(Alone()).rehearse(None, until="50 steps", overfit="1 batch")
