"""What a step returns: numbers by name, and how they add up over steps and replicas."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from loopwright.errors import StepError, message
from loopwright.guards import shape_text


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
        value = tf.cast(_scalar(step, name, mean.value), tf.float64)
        weight = tf.cast(_scalar(step, f"{name} (weight)", mean.weight), tf.float64)
        # A replica without examples may well have computed 0 / 0.
        found[str(name)] = (tf.where(weight > 0, value * weight, tf.zeros_like(value)), weight)
    return found


def _scalar(step: str, name: Any, value: Any) -> Any:
    try:
        tensor = tf.convert_to_tensor(value)
    except (TypeError, ValueError):
        tensor = None
    if tensor is None or tensor.dtype in (tf.string, tf.variant, tf.resource):
        received, do = _kind(value), f"return a number as {name!r}, or leave it out"
    elif tensor.shape == (0,):
        # What a Keras loss gives on a replica without examples; its weight is zero.
        return tf.zeros((), tensor.dtype)
    elif tensor.shape.rank != 0:
        received = f"{tensor.dtype.name} of shape {shape_text(tensor.shape)}"
        do = f"reduce it first: tf.reduce_mean({name})"
    else:
        return tensor
    raise StepError(
        message(
            f"{step} returned {name!r}, which is not a scalar number.",
            expected="one number per name",
            received=received,
            do=do,
        )
    )


def _kind(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
