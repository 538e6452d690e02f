"""The outputs of a model by name, and how two sets of them differ."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

LEAST_SCALE = 1e-12
TOLERANCE = 1e-4
"""The largest difference, relative to the largest value, that float32 and float64 may have."""
ROUNDED = {"float16": 1e-2, "bfloat16": 5e-2}
"""The same for shorter floats. Integers, booleans and strings are equal or differ."""


def tolerance_of(dtype: tf.DType, rounding: float = 0.0) -> float:
    """Return the difference that values of a dtype may have.

    `rounding` is what the export gives up: it computes in fewer bits than its outputs have.

    >>> tolerance_of(tf.float32), tolerance_of(tf.float16), tolerance_of(tf.int64)
    (0.0001, 0.01, 0.0)
    """
    own = ROUNDED.get(dtype.name, TOLERANCE) if dtype.is_floating or dtype.is_complex else 0.0
    return max(own, rounding)


def named(value: Any) -> dict[str, tf.Tensor]:
    """Return every tensor of a nested output by its path; a single tensor has the path `""`.

    >>> list(named({"logits": tf.zeros(2), "heads": [tf.zeros(1), tf.zeros(1)]}))
    ['heads/0', 'heads/1', 'logits']
    """
    found: dict[str, tf.Tensor] = {}
    for path, leaf in leaves(value):
        parts = [(path, leaf)] if leaf is not None else []
        if isinstance(leaf, tf.RaggedTensor | tf.SparseTensor):
            parts = leaves(tf.nest.flatten(leaf, expand_composites=True), path)
        for place, tensor in parts:
            name = place
            while name in found:  # a key may look like the path of another
                name += "'"
            found[name] = tf.convert_to_tensor(tensor)
    return found


def compared(
    expected: Mapping[str, Any],
    received: Mapping[str, Any],
    *,
    tolerance: float | None = None,
    rounding: float = 0.0,
) -> tuple[float, list[str]]:
    """Return the largest relative difference, and every mismatch as text.

    NaN equals NaN and an infinity equals itself, if both are at the same index. Of integers that
    differ because of `rounding`, like the class with the largest score, the share counts.

    >>> one, other = {"": tf.constant([1.0, 2.0])}, {"": tf.constant([1.0, float("nan")])}
    >>> compared(one, one)
    (0.0, [])
    >>> compared(one, other)[1]
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
            difference, problem = _difference(own, received[name], shares=rounding > 0)
            allowed = tolerance_of(own.dtype, rounding) if tolerance is None else tolerance
            if not problem and not difference <= allowed:
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
        if value.dtype.is_floating and value.shape.num_elements() and np.isnan(_wide(value)).all()
    ]


def leaves(nest: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield leaves with their paths, in the order of `tf.nest.flatten`."""
    inside = f"{path}/" if path else ""
    if isinstance(nest, Mapping):
        for key in sorted(nest, key=str):
            yield from leaves(nest[key], f"{inside}{key}")
    elif isinstance(nest, list | tuple):
        for place, item in enumerate(nest):
            yield from leaves(item, f"{inside}{place}")
    else:
        yield path, nest


def _label(name: str) -> str:
    return f"output {name!r}" if name else "the output"


def _other_kind(expected: Any, received: Any) -> str:
    """Return how dtype or shape differs; empty if they match."""
    if received.dtype != expected.dtype:
        return f"is {received.dtype.name} instead of {expected.dtype.name}"
    own, other = tuple(expected.shape), tuple(received.shape)
    return "" if own == other else f"has the shape {other} instead of {own}"


def _difference(expected: Any, received: Any, *, shares: bool) -> tuple[float, str]:
    """Return the largest difference relative to the largest value, or the mismatch as text."""
    if not (expected.dtype.is_floating or expected.dtype.is_complex):
        one, other = np.asarray(expected), np.asarray(received)
        if shares and one.size:
            return float(np.mean(one != other)), ""
        return _plain_difference(one, other)
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
