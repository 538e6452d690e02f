"""Slow programs, one function each."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from tests.programs.slow.slow_program import Slow, batches, regression, rows, work

import loopwright as lw


def python_in_a_map(slow: bool) -> Slow:
    """Decode every batch with Python code."""

    def busy(x: Any) -> Any:
        work(40)
        return x

    def decode(x: Any, y: Any) -> Any:  # here
        return tf.ensure_shape(tf.py_function(busy, [x], tf.float32), (None, 16)), y

    data = batches(16)
    return Slow(
        regression,
        "Waiting for data took SHARE of the time: map(decode) at slow_programs.py:{line} runs "
        "Python (tf.py_function), one call at a time; write it with TensorFlow operations, or "
        "cache its results, .cache() after it.",
        data.map(decode) if slow else data,
    )


def map_on_one_thread(slow: bool) -> Slow:
    """Map every batch, one after the other, by operations that take long."""

    def smooth(x: Any, y: Any) -> Any:  # here
        return _worked(x), y

    calls = None if slow else tf.data.AUTOTUNE
    return Slow(
        regression,
        "Waiting for data took SHARE of the time: map(smooth) at slow_programs.py:{line} has no "
        "num_parallel_calls; write .map(smooth, num_parallel_calls=tf.data.AUTOTUNE), and "
        ".cache() after it if the results fit in memory.",
        batches(16).map(smooth, num_parallel_calls=calls),
    )


def no_prefetch(slow: bool) -> Slow:
    """Read from a pipeline that makes a batch only when it is asked for."""
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    data = batches(16).map(lambda x, y: (_worked(x), y), num_parallel_calls=1).with_options(options)
    return Slow(
        regression,
        "Waiting for data took SHARE of the time: the pipeline does not prefetch, so reading and "
        "training alternate; end it with .prefetch(tf.data.AUTOTUNE).",
        data if slow else data.prefetch(2),
    )


def generator(slow: bool) -> Slow:
    """Make batches in a Python generator."""

    def make_batches() -> Iterator[Any]:  # here
        x, y = rows(8)
        for _ in range(16):
            work(40 * slow)
            yield x, y

    return Slow(
        regression,
        "Waiting for data took SHARE of the time: make_batches at slow_programs.py:{line} makes "
        "one batch at a time in Python; use a keras.utils.PyDataset with workers=4, or a "
        "tf.data pipeline with .map(..., num_parallel_calls=tf.data.AUTOTUNE).",
        make_batches(),
    )


def batch_hook(slow: bool) -> Slow:
    """Do work after every batch in a callback."""

    class Plotter(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            work(40 * slow)

    return Slow(
        regression,
        "Callbacks took SHARE of the time, most of it in Plotter.on_train_batch_end: move the work "
        "to on_epoch_end, or set needs_every_step = False on the callback to call it at stops "
        "only.",
        batches(16),
        options={"callbacks": [Plotter()]},
    )


def long_validation(slow: bool) -> Slow:
    """Validate on much more data than the training has."""
    return Slow(
        regression,
        "Validation took SHARE of the time, training SHARE: validate less often, "
        'validate_every="5 epochs", or pass validation_steps=100.',
        batches(),
        options={"validation_data": rows(300_000 if slow else 32)},
    )


def saving_every_step(slow: bool) -> Slow:
    """Save after every step."""
    return Slow(
        _saving,
        'Saving took SHARE of the time, 32 checkpoints: save less often, save_every="10 minutes".',
        batches(32),
        options={"save_every": "1 step" if slow else "1 hour"},
    )


def changing_shapes(slow: bool) -> Slow:
    """Give batches whose second axis is of another length each time."""
    lengths = (4, 7) if slow else (4, 4)
    return Slow(
        _of_any_length,
        "Compiling took SHARE of the time: the step was traced 2 times, for batches of different "
        "shapes; pad them to one shape, .padded_batch(n, padded_shapes=...).",
        iter([tf.ones((8, length)) for length in lengths]),
    )


def float64(slow: bool) -> Slow:
    """Compute in float64."""
    data = tf.data.Dataset.from_tensors((tf.ones((256, 256)), tf.ones((256, 256)))).cache()
    return Slow(
        _in_float64 if slow else _in_float32,
        "The step took SHARE of the time and computes in float64: unless you need the precision, "
        'use dtype="float32" in the layers and tf.cast(x, tf.float32) in the step.',
        data.repeat(160),
        warms=True,
    )


def batches_of_one(slow: bool) -> Slow:
    """Train on one example at a time."""
    x, y = rows(6144)
    return Slow(
        regression,
        "The step took SHARE of the time with 1 example per batch, most of it overhead: use larger "
        "batches, batch_size=32 or .batch(32).",
        x,
        y,
        options={"batch_size": 1 if slow else 32},
        warms=True,
    )


def python_in_the_step(slow: bool) -> Slow:
    """Call Python code in every step."""
    return Slow(
        _calling_python if slow else regression,
        "The step took SHARE of the time and runs Python (tf.numpy_function), one call at a time: "
        "write that part with TensorFlow operations.",
        batches(16),
        warms=True,
    )


def run_eagerly(slow: bool) -> Slow:
    """Run every step eagerly."""
    return Slow(
        _eager if slow else regression,
        'The step took SHARE of the time and ran eagerly: leave out plan="eager" or '
        "run_eagerly=True, unless you debug.",
        batches(96),
    )


def _worked(x: Any) -> Any:
    """Take long, on one core, in TensorFlow."""

    def again(count: Any, x: Any) -> Any:
        return count + 1, tf.sin(x)

    return tf.while_loop(lambda count, _: count < 8000, again, (0, x))[1]


def _saving(directory: Path) -> lw.Trainer:
    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(1)])
    task = lw.Supervised(model, "mse", keras.optimizers.SGD(1e-3))
    return lw.Trainer(task, plan="graph", run_dir=directory / "run")


def _calling_python(directory: Path) -> lw.Trainer:
    def busy(x: Any) -> Any:
        work(40)
        return x

    class Calling(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            return tf.ensure_shape(tf.numpy_function(busy, [x], tf.float32), (None, 16))

    model = keras.Sequential([keras.Input((16,)), Calling(), keras.layers.Dense(1)])
    return lw.Trainer(lw.Supervised(model, "mse", keras.optimizers.SGD(1e-3)), plan="graph")


def _eager(directory: Path) -> lw.Trainer:
    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(1)])
    return lw.Trainer(lw.Supervised(model, "mse", keras.optimizers.SGD(1e-3)), plan="eager")


def _of_any_length(directory: Path) -> lw.Trainer:
    class Sum(lw.Task):
        def __init__(self) -> None:
            self.weight = keras.Variable(0.0)
            self.optimizer = keras.optimizers.SGD(1e-3)

        def train_step(self, batch: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self.weight * tf.reduce_sum(batch, axis=1) - 1.0) ** 2)
            self.minimize(loss, [self.weight], self.optimizer, tape)
            return {"loss": loss}

    return lw.Trainer(Sum(), plan="graph")


def _in_float64(directory: Path) -> lw.Trainer:
    return _wide("float64")


def _in_float32(directory: Path) -> lw.Trainer:
    return _wide("float32")


def _wide(dtype: str) -> lw.Trainer:
    dense = keras.layers.Dense(256, dtype=dtype)
    model = keras.Sequential([keras.Input((256,)), dense])
    return lw.Trainer(lw.Supervised(model, "mse", keras.optimizers.SGD(1e-6)), plan="graph")
