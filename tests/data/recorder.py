"""A task that writes down every batch it is given, by whatever plan the step is run."""

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import loopwright as lw

PLANS = ["graph", "eager"]


class Recorder(lw.Task):
    """Its numbers are those of the batch's first leaf: `loss` is the mean, as losses are."""

    def __init__(self) -> None:
        super().__init__()
        self.trained: list[Any] = []
        self.tested: list[Any] = []
        self.kinds: Any = None

    def train_step(self, batch):
        return self.note(batch, self.trained)

    def test_step(self, batch):
        return self.note(batch, self.tested)

    def predict_step(self, batch):
        return batch

    def note(self, batch: Any, into: list[Any]) -> dict[str, Any]:
        self.kinds = tf.nest.map_structure(lambda leaf: type(leaf).__name__, batch)
        structure = tf.nest.map_structure(lambda _: 0, batch)
        leaves = [dense(leaf) for leaf in tf.nest.flatten(batch)]

        def write(*arrays: np.ndarray) -> None:
            into.append(tf.nest.pack_sequence_as(structure, [np.array(a) for a in arrays]))

        # Unlike Python code in a step, this runs at every step of a compiled loop.
        tf.numpy_function(write, leaves, [])
        first = tf.strings.length(leaves[0]) if leaves[0].dtype == tf.string else leaves[0]
        return {"loss": tf.reduce_mean(tf.cast(first, tf.float64))}


def dense(leaf: Any) -> Any:
    if isinstance(leaf, tf.SparseTensor):
        return tf.sparse.to_dense(leaf)
    return leaf.to_tensor() if isinstance(leaf, tf.RaggedTensor) else leaf


def fit(*data: Any, plan: str = "eager", seed: int = 0, **arguments: Any) -> Recorder:
    """Trains a new recorder, and returns it."""
    task = Recorder()
    lw.Trainer(task, plan=plan, seed=seed).fit(*data, verbose=0, **arguments)
    return task


class Failure(keras.callbacks.Callback):
    """Fails after some steps of a run, before the last of them is saved."""

    def __init__(self, step: int | None) -> None:
        super().__init__()
        self.step, self.seen = step, 0

    def on_train_batch_end(self, batch, logs=None):
        self.seen += 1
        if self.seen == self.step:
            raise InterruptedError


def fit_until_failure(data: Any, run_dir: Path, fails_at: int | None, **arguments: Any) -> Recorder:
    """Trains in a run directory that is saved after each step."""
    task, failure = Recorder(), Failure(fails_at)
    options: Any = {"callbacks": [failure], "save_every": "1 steps", "verbose": 0, **arguments}
    trainer = lw.Trainer(task, plan="graph", run_dir=run_dir, exact="best_effort")
    with contextlib.suppress(InterruptedError):
        trainer.fit(data, **options)
    return task


def sizes(batches: list[Any]) -> list[int]:
    return [len(tf.nest.flatten(batch)[0]) for batch in batches]


def ids(batches: list[Any], read: Callable[[Any], Any] = lambda b: b) -> list[float]:
    """The examples of all batches in a row, by the first number of each."""
    first = [read(batch).reshape(len(read(batch)), -1)[:, 0] for batch in batches]
    return np.concatenate(first).tolist()


@contextlib.contextmanager
def refused(
    sentence: str, *, received: str = "", error: type[Exception] = lw.DataError
) -> Iterator[pytest.ExceptionInfo[Exception]]:
    """The block raises `error` with this sentence and all the parts that a message has."""
    with pytest.raises(error, match=re.escape(sentence)) as caught:
        yield caught
    text = str(caught.value)
    for part in ("\n  expected: ", f"\n  received: {received}", "\n  do: "):
        assert part in text
