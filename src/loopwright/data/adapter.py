"""Turns what users pass to `fit`, `evaluate` and `predict` into `Data`."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from loopwright.data.arrays import Arrays
from loopwright.data.generators import Batches
from loopwright.data.source import Data
from loopwright.data.stream import Stream
from loopwright.errors import ConfigurationError, DataError, message
from loopwright.step_warnings import warn_at_call

_KINDS: tuple[tuple[type, Callable[[Any], Data]], ...] = (
    (tf.data.Dataset, Stream),
    (keras.utils.PyDataset, Batches),
    (Iterator, Batches),
)
"""The kinds of data by the types that users pass; everything else is an iterable or arrays."""


def as_data(
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    batch_size: int | None = None,
    class_weight: Mapping[int, float] | None = None,
) -> Data:
    """Return the data that was passed to `fit`, `evaluate` or `predict`."""
    data = x if isinstance(x, Data) else _wrap(x, y, sample_weight)
    if data is x or not isinstance(data, Arrays):
        for name, value in (("y", y), ("sample_weight", sample_weight)):
            if value is not None:
                raise DataError(
                    f"{name} cannot be combined with data of type {_kind(x)}.",
                    expected="data that yields batches of inputs, labels and weights",
                    received=f"a {_kind(x)} and {name}",
                    do=f"leave {name} out, and let the {_kind(x)} yield it",
                )
    if isinstance(data, Arrays):
        data = data if batch_size is None else data.in_batches_of(batch_size)
    elif batch_size is not None:
        warn_at_call(
            message(
                f"batch_size={batch_size} is ignored: a {_kind(x)} is already in batches.",
                do=f"leave batch_size out, and set the size where the {_kind(x)} makes its batches",
            )
        )
    return data if class_weight is None else data.weighted_by_class(class_weight)


def _wrap(x: Any, y: Any, sample_weight: Any) -> Data:
    for kind, make in _KINDS:
        if isinstance(x, kind):
            return make(x)
    if _is_array_like(x):
        return Arrays(x, y, sample_weight)
    if isinstance(x, Iterable):
        return Batches(x)
    if callable(x):
        raise DataError(
            "A function is not data.",
            expected="arrays, a tf.data.Dataset, a PyDataset, or a generator",
            received=f"the function {getattr(x, '__name__', x)!r}",
            do="call it: fit(make_batches())",
        )
    return Arrays(x, y, sample_weight)


def _is_array_like(x: Any) -> bool:
    kinds = (np.ndarray, tf.Tensor, tf.Variable, tf.SparseTensor, tf.RaggedTensor)
    if isinstance(x, (*kinds, list, tuple, Mapping, str, bytes, keras.Variable)):
        return True
    return hasattr(x, "__array__") or hasattr(x, "to_numpy") or hasattr(x, "tocoo")


def _kind(x: Any) -> str:
    return "tf.data.Dataset" if isinstance(x, tf.data.Dataset) else type(x).__name__


def training_data(
    x: Any,
    y: Any,
    sample_weight: Any,
    batch_size: int | None,
    class_weight: Mapping[int, float] | None,
    validation_split: float,
    validation_data: Any,
) -> tuple[Data | None, Any]:
    """Return the training data, and the validation data: passed, or split off its end."""
    if x is None:
        if y is not None or sample_weight is not None:
            raise DataError(
                "Labels or weights were passed without inputs.",
                expected="fit(x, y)",
                received="x=None",
                do="pass x, or nothing at all for a step without data",
            )
        return None, validation_data
    data = as_data(x, y, sample_weight, batch_size=batch_size, class_weight=class_weight)
    if not validation_split or validation_data is not None:
        return data, validation_data
    if not isinstance(data, Arrays):
        raise ConfigurationError(
            "validation_split needs arrays.",
            expected="arrays or tensors, whose last part becomes the validation data",
            received=f"a {type(x).__name__}",
            do="split the data yourself and pass validation_data",
        )
    return data.split(validation_split)


def validation_sets(given: Any, batch_size: int | None) -> dict[str, Data]:
    """Return validation data by the prefix of its metrics: none, or `NAME_`."""
    if given is None:
        return {}
    is_named = isinstance(given, Mapping)
    sets: dict[str, Data] = {}
    for name, value in given.items() if is_named else [("", given)]:
        parts = value or ([],) if isinstance(value, tuple | list) else (value,)
        try:
            data = as_data(*parts)
        except DataError as error:
            place = f"validation_data[{name!r}]" if is_named else "validation_data"
            raise DataError(f"In {place}: {error}") from error.__cause__
        if isinstance(data, Arrays) and data is not value and batch_size is not None:
            data = data.in_batches_of(batch_size)
        sets[f"{name}_" if is_named else ""] = data
    return sets
