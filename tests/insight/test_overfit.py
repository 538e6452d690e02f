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


class Detached(keras.layers.Layer):
    def call(self, x: Any) -> Any:
        return keras.ops.stop_gradient(x)


DEAD = {"activation": "relu", "bias_initializer": keras.initializers.Constant(-100.0)}
# Softmax, then a cross-entropy that takes its outputs for logits.
BLIND = {"kernel_initializer": "zeros", "activation": "softmax", "trainable": False}
LOGITS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@pytest.mark.parametrize(
    ("layers", "loss", "rate", "reason"),
    [
        ([(16, DEAD), (1, {})], "mse", 0.01, "dead ReLUs: 100% of the units"),
        (
            [(8, {}), (1, {"kernel_initializer": "zeros", "use_bias": False})],
            "mse",
            1e-9,
            "frozen: 2 of 3 trained variables",
        ),
        ([(1, {})], "mae", 1e-6, "learning rate too small"),
        ([(1, {})], "mae", 300.0, "learning rate too large"),
        ([(4, {}), (5, BLIND)], LOGITS, 0.01, "no better than a constant answer"),
    ],
    ids=["dead", "frozen", "small", "large", "constant"],
)
def test_why_a_loss_does_not_fall_is_named(layers, loss, rate, reason):
    made = [dense(units, **options) for units, options in layers]
    if "frozen" in reason:
        made.insert(1, Detached())
    labels = LABELS if loss is LOGITS else Y
    found = learned(made, loss, keras.optimizers.SGD(rate), labels)
    assert not found.falls
    assert any(reason in each for each in found.reasons)


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
