"""Samples of arrays: some examples as NumPy arrays, few enough to be looked at in no time."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from loopwright.data import batches
from loopwright.data.arrays import Arrays

MOST_ROWS, MOST_BYTES = 2**17, 2**25
"""Of more than this a random part is looked at."""
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
    """The examples, as a batch: numbers as NumPy arrays, other leaves as they are."""

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


def sample(data: Arrays) -> Sample:
    """Return the examples to look at: all, or of large arrays a part, the same each time."""
    most = min(MOST_ROWS, max(64, MOST_BYTES // data.row_bytes))
    places = _places(len(data), most, seed=len(data))
    batch = tf.nest.map_structure(_as_numbers, data.rows(places))
    return Sample(places, len(data), batch)


def numbers(nest: Any, path: str) -> Iterator[tuple[str, np.ndarray]]:
    """Yield every dense leaf that holds numbers, with its path: `x`, `x['image']`."""
    for name, leaf in batches.leaves(nest, path):
        if isinstance(leaf, np.ndarray):
            yield name, leaf


def is_dense(nest: Any) -> bool:
    """Return whether every leaf is a dense array of numbers."""
    return all(isinstance(leaf, np.ndarray) for _, leaf in batches.leaves(nest, ""))


def shared_rows(training: Sample, validation: Sample) -> tuple[int, int, float]:
    """Return how many validation rows are training rows, of how many, and the estimated share.

    Of both sets a part is looked at, so that a row that both have may be seen on one side only;
    the share allows for that. It is 0 where training rows repeat each other about as often.
    """
    trained, held = _some_rows(training), _some_rows(validation)
    known = set(trained)
    shared = sum(row in known for row in held)
    repeated = 1 - len(known) / len(trained)
    if shared / len(held) <= 4 * repeated:
        return shared, len(held), 0.0
    seen = len(trained) / training.examples
    return shared, len(held), min(1.0, shared / (len(held) * seen))


def _some_rows(some: Sample) -> list[bytes]:
    """Return rows of the inputs as bytes, spread over all of them."""
    leaves = [leaf.reshape(len(leaf), -1) for _, leaf in numbers(some.inputs, "x")]
    row_bytes = max(1, sum(leaf[:1].nbytes for leaf in leaves))
    most = min(MOST_COMPARED_ROWS, max(64, MOST_COMPARED_BYTES // row_bytes))
    rows = _places(len(some.places), most, seed=some.examples)
    return [b"".join(leaf[row].tobytes() for leaf in leaves) for row in rows]


def _as_numbers(leaf: Any) -> Any:
    is_numbers = isinstance(leaf, tf.Tensor) and leaf.dtype != tf.string
    return leaf.numpy() if is_numbers else leaf


def _places(count: int, most: int, *, seed: int) -> np.ndarray:
    if count <= most:
        return np.arange(count)
    return np.unique(np.random.default_rng(seed).integers(0, count, size=most))
