"""One strategy of two replicas for all tests of a process.

TensorFlow numbers the collectives of each new strategy from the start again, and two of them clash.
"""

import functools
from typing import Any

import tensorflow as tf


@functools.cache
def mirrored() -> Any:
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
