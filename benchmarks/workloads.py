"""What is trained in a benchmark: a model, a loss, data in memory."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np


@dataclass(frozen=True)
class Workload:
    """One model on one data set; `steps` are run per round by each contender."""

    name: str
    make_model: Callable[[], keras.Model]
    loss: str
    x: Any
    y: Any
    batch_size: int
    epochs: int
    without: tuple[str, ...] = ()
    """Contenders that make no sense here."""

    @property
    def steps(self) -> int:
        return self.epochs * -(-len(self.x) // self.batch_size)


def mlp() -> Workload:
    """20-64-64-1 on batches of 32: the step costs less than the Python around it."""
    rng = np.random.default_rng(0)
    layers = [keras.Input((20,)), _dense(64), _dense(64), keras.layers.Dense(1)]
    return Workload(
        name="mlp 20-64-64-1, batch 32",
        make_model=lambda: keras.models.clone_model(keras.Sequential(layers)),
        loss="mse",
        x=rng.normal(size=(8192, 20)).astype("float32"),
        y=rng.normal(size=(8192, 1)).astype("float32"),
        batch_size=32,
        epochs=12,
    )


def cnn() -> Workload:
    """A small CNN on 28x28 images, batches of 64: the step is the cost."""
    rng = np.random.default_rng(0)
    layers = [
        keras.Input((28, 28, 1)),
        keras.layers.Conv2D(32, 3, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Conv2D(64, 3, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dense(10, activation="softmax"),
    ]
    return Workload(
        name="cnn 28x28, batch 64",
        make_model=lambda: keras.models.clone_model(keras.Sequential(layers)),
        loss="sparse_categorical_crossentropy",
        x=rng.normal(size=(2048, 28, 28, 1)).astype("float32"),
        y=rng.integers(0, 10, size=2048),
        batch_size=64,
        epochs=4,
        without=('Loopwright, plan="fused"',),
    )


def _dense(units: int) -> keras.Layer:
    return keras.layers.Dense(units, activation="relu")
