"""Two replicas, and a variable with its optimizer."""

import functools
from typing import Any

import keras
import tensorflow as tf


@functools.cache
def two_replicas() -> tf.distribute.Strategy:
    return tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )


def one_variable(optimizer: Any) -> keras.Variable:
    """A variable in reach of the optimizer, which is built for it."""
    w = keras.Variable(0.0)
    optimizer.build([w])
    return w
