"""A look at one batch: its examples, shapes, ranges, NaN and constant columns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import tensorflow as tf

from loopwright.data.batches import leaves

_MOST_LISTED = 5


@final
@dataclass(frozen=True)
class ArrayLook:
    """One array of a batch, in numbers."""

    path: str
    """`x`, `y`, `x['tokens']`."""
    dtype: str
    shape: tuple[int, ...]
    range: tuple[float, float, float] | None
    """The smallest, the mean and the largest finite number; None if there is none."""
    not_finite: int
    """How many numbers are NaN or infinite."""
    rows: tuple[int, ...]
    """The rows of the batch that hold them, counted from 0."""
    constant_columns: int
    """How many columns have the same number in every row."""
    columns: int


@final
@dataclass(frozen=True)
class BatchLook:
    """A batch of a step: where it comes from, and what is in it."""

    words: str
    """`batch 3 of epoch 1: examples 16, 17, 18`."""
    examples: tuple[int, ...] | None
    """The indices of its examples in the data; None if the data does not number them."""
    arrays: tuple[ArrayLook, ...]
    values: Mapping[str, np.ndarray]
    """The arrays themselves, by path."""

    def bad_examples(self, array: ArrayLook) -> tuple[int, ...]:
        """Return the examples of an array with NaN or infinity: indices, or rows of the batch."""
        if self.examples is None:
            return array.rows
        return tuple(self.examples[row] for row in array.rows)

    def save(self, path: str | Path) -> Path:
        """Write the batch as `.npz`, with the indices of its examples as `examples`."""
        content = dict(self.values)
        if self.examples is not None:
            content.setdefault("examples", np.asarray(self.examples))
        with Path(path).open("wb") as file:
            np.savez_compressed(file, **content)  # pyright: ignore[reportArgumentType]
        return Path(path)

    def __str__(self) -> str:
        return "\n".join([self.words, *(f"  {line}" for line in self.lines())])

    def lines(self) -> list[str]:
        """Return a line or two for each array."""
        found = list[str]()
        for one in self.arrays:
            sizes = ", ".join(map(str, one.shape))
            text = f"{one.path}: {one.dtype} ({sizes})"
            if one.range is not None:
                low, mean, high = one.range
                text += f", min {low:.4g}, mean {mean:.4g}, max {high:.4g}"
            found.append(text)
            if one.not_finite:
                kind = "row" if self.examples is None else "example"
                bad = self.bad_examples(one)
                some = ", ".join(map(str, bad[:_MOST_LISTED]))
                more = f" and {len(bad) - _MOST_LISTED} more" if len(bad) > _MOST_LISTED else ""
                found.append(f"  NaN or infinity: {one.not_finite:,}, in {kind} {some}{more}")
            if one.constant_columns:
                found.append(f"  constant columns: {one.constant_columns:,} of {one.columns:,}")
        return found


def look(batch: Any, words: str, examples: Sequence[int] | None) -> BatchLook:
    """Return a look at a batch.

    >>> x = tf.constant([[1.0, 5.0], [float("nan"), 5.0]])
    >>> print(look((x, tf.constant([0, 1])), "batch 7", [40, 41]))
    batch 7
      x: float32 (2, 2), min 1, mean 3.667, max 5
        NaN or infinity: 1, in example 41
        constant columns: 1 of 2
      y: int32 (2), min 0, mean 0.5, max 1
    """
    values = dict(_arrays(batch))
    looks = tuple(_look(path, array) for path, array in values.items())
    return BatchLook(words, None if examples is None else tuple(examples), looks, values)


def _arrays(batch: Any) -> Sequence[tuple[str, np.ndarray]]:
    if batch is None:
        return []
    named = ("x", "y", "sample_weight")
    parts = batch if isinstance(batch, tuple) and len(batch) <= len(named) else (batch,)
    found = list[tuple[str, np.ndarray]]()
    for name, part in zip(named, parts, strict=False):
        for path, leaf in leaves(part, name):
            found += [(f"{path}{end}", array) for end, array in _dense(leaf)]
    return found


def _dense(leaf: Any) -> Sequence[tuple[str, np.ndarray]]:
    """Return the arrays of a leaf: one, or those that a ragged or sparse tensor is made of."""
    if isinstance(leaf, tf.Tensor):
        array = leaf.numpy()
        # NumPy would pickle objects.
        return [("", array.astype("S") if array.dtype == object else np.asarray(array))]
    if isinstance(leaf, tf.RaggedTensor):
        return [
            *_dense_part(".values", leaf.flat_values),
            *_dense_part(".row_lengths", leaf.row_lengths()),
        ]
    if isinstance(leaf, tf.SparseTensor):
        return [*_dense_part(".values", leaf.values), *_dense_part(".indices", leaf.indices)]
    return []


def _dense_part(end: str, tensor: Any) -> Sequence[tuple[str, np.ndarray]]:
    return [(end, array) for _, array in _dense(tensor)]


def _look(path: str, array: np.ndarray) -> ArrayLook:
    is_number = array.dtype.kind in "fiub" or array.dtype.name == "bfloat16"
    if not is_number or not array.size:
        return ArrayLook(path, array.dtype.name, array.shape, None, 0, (), 0, 0)
    numbers = array.astype(np.float64)
    is_finite = np.isfinite(numbers)
    known = numbers[is_finite]
    limits = (known.min(), known.mean(), known.max()) if known.size else None
    rows, constant, columns = (), 0, 0
    if array.ndim:
        whole = is_finite.reshape(len(array), -1).all(axis=1)
        rows = tuple(np.flatnonzero(~whole).tolist())
    if array.ndim > 1 and len(array) > 1:
        flat = numbers.reshape(len(array), -1)
        columns = flat.shape[1]
        constant = int((flat == flat[:1]).all(axis=0).sum())
    return ArrayLook(
        path,
        array.dtype.name,
        array.shape,
        None if limits is None else (float(limits[0]), float(limits[1]), float(limits[2])),
        int((~is_finite).sum()),
        rows,
        constant,
        columns,
    )
