"""A small network with everything that a rehearsal could spoil: dropout, batch norm, lazy parts."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

import loopwright as lw
from loopwright.task import variables

X = np.random.default_rng(0).normal(size=(50, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def trainer(run_dir: Any = None, loss: Any = "mse", optimizer: Any = "adam", **own: Any) -> Any:
    """Return a trainer whose model is built by its first batch."""
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(8, "relu"), keras.layers.Dropout(0.5, seed=1)]
    model = keras.Sequential([*layers, keras.layers.BatchNormalization(), keras.layers.Dense(1)])
    task = lw.Supervised(model, loss, optimizer)
    return lw.Trainer(task, run_dir=run_dir, **{"plan": "graph", **own})


def shuffled() -> tf.data.Dataset:
    """Return a pipeline that shuffles anew in each epoch."""
    return tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(50, seed=3).batch(16)


def bits(trainer: lw.Trainer) -> dict[str, bytes]:
    """Return the bytes of every variable of a task."""
    return {name: v.numpy().tobytes() for name, v in variables.named(trainer.task).items()}
