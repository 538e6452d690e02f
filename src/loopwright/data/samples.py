"""Samples of arrays: some examples as NumPy arrays, few enough to be looked at in no time."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from loopwright.data import nests
from loopwright.data.arrays import Arrays

MOST_BYTES = 2**25
"""A gigabyte of examples is looked at in this much of it."""
MOST_COMPARED_ROWS, MOST_COMPARED_BYTES = 10_000, 2**23
"""Rows are compared one by one, which takes longer."""


@dataclass(frozen=True)
class Sample:
    """Some examples of arrays, in their order; all of them where they are few."""

    places: np.ndarray
    """Which examples these are, counted from 0."""
    examples: int
    """How many there are in all."""
    batch: Any
    """The examples, as a batch of tensors."""

    @property
    def inputs(self) -> Any:
        """What the model gets."""
        return self.batch[0] if isinstance(self.batch, tuple) else self.batch

    @property
    def labels(self) -> Any:
        """The labels; None where the batch has none."""
        is_labelled = isinstance(self.batch, tuple) and len(self.batch) in (2, 3)
        return self.batch[1] if is_labelled else None

    @property
    def looked_at(self) -> str:
        """How many examples were looked at, in words."""
        count = len(self.places)
        return f"{count:,} examples" + ("" if count == self.examples else " looked at")

    def some(self, rows: int) -> "Sample":
        """Return at most `rows` examples of it, spread over all of it."""
        if len(self.places) <= rows:
            return self
        kept = _places(len(self.places), rows, seed=self.examples)
        batch = tf.nest.map_structure(lambda leaf: nests.gather(leaf, kept), self.batch)
        return Sample(self.places[kept], self.examples, batch)


def sample(data: Arrays) -> Sample:
    """Return the examples to look at: all up to 32 MB, else a random part, the same each time."""
    places = _places(len(data), max(64, MOST_BYTES // data.row_bytes), seed=len(data))
    return Sample(places, len(data), data.rows(places))


def numbers(nest: Any, path: str) -> Iterator[tuple[str, np.ndarray]]:
    """Yield every dense leaf that holds numbers, with its path: `x`, `x['image']`."""
    for name, leaf in nests.leaves(nest, path):
        if isinstance(leaf, tf.Tensor) and leaf.dtype != tf.string:
            yield name, leaf.numpy()


def is_dense(nest: Any) -> bool:
    """Return whether every leaf is a dense tensor of numbers."""
    leaves = [leaf for _, leaf in nests.leaves(nest, "")]
    return all(isinstance(leaf, tf.Tensor) and leaf.dtype != tf.string for leaf in leaves)


def shared_rows(training: Sample, validation: Sample) -> tuple[int, int, float]:
    """Return how many validation rows are training rows, of how many, and the estimated share.

    Of both sets a part is looked at, so that a row that both have may be seen on one side only;
    the share allows for that. It is 0 where training rows repeat each other about as often.
    """
    row_bytes = sum(leaf.nbytes for _, leaf in numbers(validation.inputs, "x"))
    row_bytes = max(1, row_bytes // max(len(validation.places), 1))
    rows = min(MOST_COMPARED_ROWS, max(64, MOST_COMPARED_BYTES // row_bytes))
    training, validation = training.some(rows), validation.some(rows)
    trained, held = _row_bytes(training.inputs), _row_bytes(validation.inputs)
    known = set(trained)
    shared = sum(row in known for row in held)
    repeated = 1 - len(known) / len(trained)
    if shared / len(held) <= 4 * repeated:
        return shared, len(held), 0.0
    seen = len(training.places) / training.examples
    return shared, len(held), min(1.0, shared / (len(held) * seen))


def _row_bytes(inputs: Any) -> list[bytes]:
    leaves = [leaf.reshape(len(leaf), -1) for _, leaf in numbers(inputs, "x")]
    return [b"".join(leaf[row].tobytes() for leaf in leaves) for row in range(len(leaves[0]))]


def _places(count: int, most: int, *, seed: int) -> np.ndarray:
    if count <= most:
        return np.arange(count)
    return np.unique(np.random.default_rng(seed).integers(0, count, size=most))
