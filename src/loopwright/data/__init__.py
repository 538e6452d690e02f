"""Data of every kind, made ready for training: arrays, streams, Python batches."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from loopwright.data.arrays import Arrays
from loopwright.data.iterables import Batches
from loopwright.data.source import Data, Feed
from loopwright.data.stream import Stream
from loopwright.errors import DataError, message

__all__ = ["Arrays", "Data", "Feed", "Stream", "as_data"]


def as_data(
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    batch_size: int | None = None,
    class_weight: Mapping[int, float] | None = None,
) -> Data:
    """What was given to `fit`, `evaluate` or `predict`, as data."""
    data = x if isinstance(x, Data) else _wrap(x, y, sample_weight)
    if data is x or not isinstance(data, Arrays):
        _refuse_beside(x, y=y, sample_weight=sample_weight)
    if isinstance(data, Arrays):
        data = data if batch_size is None else data.in_batches_of(batch_size)
    else:
        _refuse_beside(x, batch_size=batch_size)
    if class_weight is not None and isinstance(data, Arrays | Stream | Batches):
        data = data.weighted_by_class(class_weight)
    return data


def _wrap(x: Any, y: Any, sample_weight: Any) -> Data:
    if isinstance(x, tf.data.Dataset):
        return Stream(x)
    if isinstance(x, keras.utils.PyDataset | Iterator) or (
        isinstance(x, Iterable) and not _is_array_like(x)
    ):
        return Batches(x)
    if callable(x) and not _is_array_like(x):
        raise DataError(
            message(
                "A function is not data.",
                expected="arrays, a tf.data.Dataset, a PyDataset, or a generator",
                received=f"the function {getattr(x, '__name__', x)!r}",
                do="call it: fit(make_batches())",
            )
        )
    return Arrays(x, y, sample_weight)


def _is_array_like(x: Any) -> bool:
    kinds = (np.ndarray, tf.Tensor, tf.Variable, tf.SparseTensor, tf.RaggedTensor)
    if isinstance(x, (*kinds, list, tuple, Mapping, str, bytes, keras.Variable)):
        return True
    return hasattr(x, "__array__") or hasattr(x, "to_numpy") or hasattr(x, "tocoo")


def _refuse_beside(x: Any, **given: Any) -> None:
    kind = "tf.data.Dataset" if isinstance(x, tf.data.Dataset) else type(x).__name__
    for name, value in given.items():
        if value is not None:
            raise DataError(
                message(
                    f"{name} cannot be given beside data of type {kind}.",
                    expected="data that holds inputs, labels and weights, and batches of them",
                    received=f"{name} as well",
                    do=f"leave {name} out, and let the {kind} give it",
                )
            )
