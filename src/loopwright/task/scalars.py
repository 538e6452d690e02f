"""What a step returns: numbers by name, and how they add up over steps and replicas."""

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from loopwright.compat.error_messages import shape_text
from loopwright.errors import StepError, message


@dataclass(frozen=True)
class Mean:
    """A scalar with a weight of its own, where examples are the wrong one: tokens, pixels.

    >>> {"loss": Mean(value=0.7, weight=120)}
    {'loss': Mean(value=0.7, weight=120)}
    """

    value: Any
    weight: Any


Scalars = Mapping[str, Any]
"""Scalars by name; a value may be a `Mean`."""


def totals(outputs: Any, step: str, examples: Any) -> dict[str, tuple[Any, Any]]:
    """(weighted sum, weight) per name; refuses what is not a dict of scalars."""
    if not isinstance(outputs, Mapping):
        raise StepError(
            message(
                f"{step} has to return a dict of scalars.",
                expected='return {"loss": loss}',
                received="nothing (no return statement?)" if outputs is None else _kind(outputs),
                do="return the numbers to report, by name",
            )
        )
    found: dict[str, tuple[Any, Any]] = {}
    for name, given in outputs.items():
        mean = given if isinstance(given, Mean) else Mean(given, examples)
        value = tf.cast(_scalar(step, f"{name!r}", mean.value), tf.float64)
        weight = tf.cast(_scalar(step, f"the weight of {name!r}", mean.weight), tf.float64)
        # A replica without examples may well have computed 0 / 0.
        found[str(name)] = (tf.where(weight > 0, value * weight, tf.zeros_like(value)), weight)
    return found


def _scalar(step: str, what: str, value: Any) -> Any:
    try:
        tensor = tf.convert_to_tensor(value)
    except (TypeError, ValueError):
        tensor = None
    if tensor is None or not _is_number(tensor.dtype):
        is_metric = isinstance(value, keras.metrics.Metric)
        do = (
            "leave it out: the metrics of a task are reported by themselves"
            if is_metric
            else f"return a number as {what}, or leave it out"
        )
    elif tensor.shape == (0,):
        # What a Keras loss gives on a replica without examples; its weight is zero.
        return tf.zeros((), tensor.dtype)
    elif tensor.shape.rank != 0:
        do = "reduce it first, for instance with tf.reduce_mean"
    else:
        return tensor
    raise StepError(
        message(
            f"{step} returned {what}, which is not a scalar number.",
            expected="one number per name",
            received=_kind(value),
            do=do,
        )
    )


def _is_number(dtype: tf.DType) -> bool:
    return dtype.is_floating or dtype.is_integer or dtype.is_bool


def _kind(value: Any) -> str:
    if isinstance(value, tf.Tensor):
        return f"a tensor: {value.dtype.name} {shape_text(value.shape)}"
    return "None" if value is None else f"{reprlib.repr(value)} ({type(value).__name__})"
