"""The outputs of a model by name, and how two sets of them differ."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

LEAST_SCALE = 1e-12


def named(value: Any) -> dict[str, tf.Tensor]:
    """Return every tensor of a nested output by its path; a single tensor has the path `""`.

    >>> list(named({"logits": tf.zeros(2), "heads": [tf.zeros(1), tf.zeros(1)]}))
    ['heads/0', 'heads/1', 'logits']
    """
    return dict(_walk(value, ""))


def compared(
    expected: Mapping[str, Any], received: Mapping[str, Any], *, tolerance: float
) -> tuple[float, list[str]]:
    """Return the largest relative difference, and every mismatch as text.

    NaN equals NaN and an infinity equals itself, if both are at the same index.

    >>> one, other = {"": tf.constant([1.0, 2.0])}, {"": tf.constant([1.0, float("nan")])}
    >>> compared(one, one, tolerance=1e-4)
    (0.0, [])
    >>> compared(one, other, tolerance=1e-4)[1]
    ['the output has NaN in 1 of 2 values where the task has a number']
    """
    worst, problems = 0.0, list[str]()
    for name, own in expected.items():
        label = _label(name)
        if name not in received:
            problems.append(f"{label} is missing")
        elif problem := _other_kind(own, received[name]):
            problems.append(f"{label} {problem}")
        else:
            difference, problem = _difference(own, received[name])
            if not problem and not difference <= tolerance:
                problem = f"has a relative difference of {difference:.3g}"
            if problem:
                problems.append(f"{label} {problem}")
            worst = max(worst, difference)  # never NaN: see `_difference`
    more = [name for name in received if name not in expected]
    problems += [f"{_label(name)} is not an output of the task" for name in more]
    return worst, problems


def without_numbers(outputs: Mapping[str, Any]) -> list[str]:
    """Return the labels of the outputs that hold only NaN."""
    return [
        _label(name)
        for name, value in outputs.items()
        if value.dtype.is_floating and value.shape.num_elements() and _nan(value).all()
    ]


def _walk(value: Any, path: str) -> Iterator[tuple[str, tf.Tensor]]:
    inside = f"{path}/" if path else ""
    if isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield from _walk(value[key], f"{inside}{key}")
    elif isinstance(value, list | tuple):
        for place, item in enumerate(value):
            yield from _walk(item, f"{inside}{place}")
    elif isinstance(value, tf.RaggedTensor | tf.SparseTensor):
        yield from _walk(tf.nest.flatten(value, expand_composites=True), path)
    elif value is not None:
        yield path, tf.convert_to_tensor(value)


def _label(name: str) -> str:
    return f"output {name!r}" if name else "the output"


def _other_kind(expected: Any, received: Any) -> str:
    """Return how dtype or shape differs; empty if they match."""
    if received.dtype != expected.dtype:
        return f"is {received.dtype.name} instead of {expected.dtype.name}"
    own, other = tuple(expected.shape), tuple(received.shape)
    return "" if own == other else f"has the shape {other} instead of {own}"


def _difference(expected: Any, received: Any) -> tuple[float, str]:
    """Return the largest difference relative to the largest value, or the mismatch as text."""
    if not (expected.dtype.is_floating or expected.dtype.is_complex):
        return _plain_difference(np.asarray(expected), np.asarray(received))
    one, other = _wide(expected), _wide(received)
    for value, where, of_task in (
        ("NaN", np.isnan(other) & ~np.isnan(one), "a number"),
        ("a number", np.isnan(one) & ~np.isnan(other), "NaN"),
        ("infinity", np.isinf(other) & np.isfinite(one), "a finite number"),
    ):
        if where.any():
            count = f"{np.sum(where)} of {one.size} values"
            return float("inf"), f"has {value} in {count} where the task has {of_task}"
    differs = (one != other) & ~np.isnan(one)
    if not differs.any():
        return 0.0, ""
    if not np.isfinite(one[differs]).all():
        return float("inf"), "has different values where the task has infinity"
    apart = float(np.max(np.abs(one[differs] - other[differs])))
    return apart / _scale(one), ""


def _plain_difference(one: Any, other: Any) -> tuple[float, str]:
    """Compare integers, booleans and strings."""
    differs = one != other
    if not np.any(differs):
        return 0.0, ""
    if one.dtype.kind not in "iu":
        return float("inf"), f"has {np.sum(differs)} of {one.size} values that differ"
    one, other = one.astype("float64"), other.astype("float64")
    return float(np.max(np.abs(one - other))) / _scale(one), ""


def _scale(values: Any) -> float:
    finite = np.abs(values[np.isfinite(values)])
    return max(float(np.max(finite, initial=0.0)), LEAST_SCALE)


def _wide(tensor: Any) -> Any:
    return np.asarray(tf.cast(tensor, tf.complex128 if tensor.dtype.is_complex else tf.float64))


def _nan(tensor: Any) -> Any:
    return np.isnan(_wide(tensor))
