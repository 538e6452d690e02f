"""Samples of arrays: few enough examples, as NumPy arrays, to be checked quickly."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from loopwright.data import batches
from loopwright.data.arrays import Arrays

MOST_ROWS, MOST_BYTES = 2**17, 2**25
"""Larger arrays are sampled at random."""
MOST_COMPARED_ROWS, MOST_COMPARED_BYTES = 10_000, 2**23
"""Comparing rows takes longer, so fewer are sampled."""


@dataclass(frozen=True)
class Sample:
    """Some examples of arrays in their order; all examples of small arrays."""

    places: np.ndarray
    """The indices of these examples, counted from 0."""
    examples: int
    """The total number of examples."""
    batch: Any
    """The examples as a batch: numbers as NumPy arrays, other leaves unchanged."""

    @property
    def inputs(self) -> Any:
        """The inputs of the model."""
        return self.batch[0] if isinstance(self.batch, tuple) else self.batch

    @property
    def labels(self) -> Any:
        """The labels; None if the batch has none."""
        is_labelled = isinstance(self.batch, tuple) and len(self.batch) in (2, 3)
        return self.batch[1] if is_labelled else None

    @property
    def looked_at(self) -> str:
        """The number of examples in the sample, as text."""
        count = len(self.places)
        return f"{count:,} examples" + ("" if count == self.examples else " looked at")


def sample(data: Arrays) -> Sample:
    """Return all examples, or a fixed random part of large arrays."""
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
    """Return the number of validation rows found in training, of how many, and their share.

    Both sets are sampled, so a common row may be in one of the samples only; the share is an
    estimate that corrects for that. It is 0 if training rows repeat each other about as often.
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
    """Return a random part of the input rows, as bytes."""
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
