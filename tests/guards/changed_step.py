"""A regression by hand; a test changes its batch, or what it holds."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import loopwright as lw

RNG = np.random.default_rng(5)
X = RNG.normal(size=(16, 4)).astype("float32")
Y = X @ np.array([[1.0], [-2.0], [0.5], [0.0]], "float32")


class Regression(lw.Task):
    """A step by hand; `change` is what a test does in it."""

    def __init__(self, change: Callable[..., Any] = lambda task, x, y: (x, y)):
        super().__init__()
        keras.utils.set_random_seed(1)
        self.model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        self.optimizer = keras.optimizers.SGD(0.01)
        self.seed = keras.random.SeedGenerator(0)
        self.change = change
        self.traces: list[str] = []

    @property
    def traced(self) -> int:
        return len(self.traces)

    def train_step(self, batch):
        self.traces.append("train_step")
        x, y = self.change(self, *batch)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(y - self.model(x, training=True)))
        self.minimize(loss, self.model, self.optimizer, tape)
        return {"loss": loss}

    def test_step(self, batch):
        x, y = batch
        return {"loss": tf.reduce_mean(tf.square(y - self.model(x, training=False)))}


class Alone(Regression):
    """The same without a batch argument."""

    def train_step(self):  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().train_step((X, Y))


def fit(task: lw.Task, *data: Any, plan: Any = "graph", **options: Any) -> lw.Trainer:
    how = {name: options.pop(name) for name in ("run_dir", "silence", "on_nan") if name in options}
    trainer = lw.Trainer(task, plan=plan, **how)
    if data and data[0] is None:
        trainer.fit(None, until="4 steps", verbose=0, **options)
    else:
        trainer.fit(*(data or (X, Y)), batch_size=8, verbose=0, **options)
    return trainer


def refused(task: lw.Task, *data: Any, **options: Any) -> str:
    """The message with which `fit` refuses to take the first step."""
    with pytest.raises(lw.StepError) as caught:
        fit(task, *data, **options)
    assert int(task.step) == 0
    assert "\n  do: " in str(caught.value)
    return str(caught.value)
