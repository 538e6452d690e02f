"""Bounds that TensorFlow's kernels check and XLA's do not, checked inside the loop.

Under XLA a label outside the classes gives NaN, an index out of range reads another row, and
assertions are removed. If a step runs under XLA, its trace is searched for these operations, and
the first step that violates one of them ends the loop.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import tensorflow as tf

from loopwright.compat import tensorflow_internals
from loopwright.compat.lines import place_of
from loopwright.compat.step_errors import Failure, asserted, error_for
from loopwright.engine.nan import BROKEN
from loopwright.errors import LoopwrightError

_NONE = -1


@final
@dataclass(frozen=True)
class _Check:
    """An operation of the trace to check."""

    kind: str
    place: str
    text: str = ""


@final
class Bounds:
    """The checks of one step; `looks` is whether it runs under XLA."""

    def __init__(self, *, looks: bool) -> None:
        self.looks = looks
        self._checks: Sequence[_Check] = ()

    def none(self) -> Any:
        """Return the result of a step that violates nothing."""
        return tf.constant([_NONE, 0, 0], tf.int64) if self.looks else ()

    def broken_by(self, operations: Sequence[Any]) -> Any:
        """Return which check the operations of a step violate, the value, and the bound."""
        if not self.looks:
            return ()
        found = [check for op in operations if (check := _check(op))]
        # Every trace of a step finds the same checks.
        self._checks = [check for check, _ in found]
        broken = self.none()
        for number, (_, (is_broken, value, bound)) in reversed(list(enumerate(found))):
            now = tf.stack([tf.constant(number, tf.int64), value, bound])
            broken = tf.where(is_broken, now, broken)
        return broken

    def judged(self, verdict: Any, broken: Any) -> Any:
        """Return the verdict on a step, given which check it violates."""
        return tf.where(broken[0] == _NONE, verdict, BROKEN) if self.looks else verdict

    def error(self, broken: Any, title: str, where: str) -> LoopwrightError:
        """Return the error for a step that violates a check."""
        # As one array: iterating over a tensor makes an operation for each number.
        number, value, bound = broken.numpy().tolist()
        check = self._checks[number]
        is_range = check.kind in ("label", "index")
        failure = Failure(check.kind, (value, bound) if is_range else (check.text,))
        return error_for(failure, title, check.place, where)


@contextlib.contextmanager
def operations_made() -> Iterator[list[Any]]:
    """Collect the operations that are traced inside; an eager step has none."""
    made = list[Any]()
    if tf.executing_eagerly():
        yield made
        return
    graph = tf.compat.v1.get_default_graph()
    known = len(graph.get_operations())
    yield made
    made += graph.get_operations()[known:]


_Condition = tuple[Any, Any, Any]
"""Whether it is violated, the value, and the bound."""


def _check(op: Any) -> tuple[_Check, _Condition] | None:
    if "gradient_tape/" in op.name:
        return None
    made = _assertion if is_assertion(op) else _CHECKS.get(op.type)
    found = None if made is None else made(op)
    if found is None:
        return None
    kind, text, condition = found
    return _Check(kind, place_of(op), text), condition


_Found = tuple[str, str, _Condition] | None


def _labels(op: Any) -> _Found:
    logits, labels = op.inputs
    classes = _size(logits, -1)
    smallest = tf.cast(tf.reduce_min(labels), tf.int64)
    largest = tf.cast(tf.reduce_max(labels), tf.int64)
    # The value that TensorFlow's kernel reports.
    value = tf.where(smallest < 0, smallest, largest)
    return "label", "", (tf.logical_or(value < 0, value >= classes), value, classes)


def _gathered(op: Any) -> _Found:
    params, indices, axis = op.inputs
    axis = tf.get_static_value(axis)
    if axis is None or tf.get_static_value(indices) is not None:
        return None
    return "index", "", _out_of_range(indices, _size(params, int(axis)))


def _gathered_from_variable(op: Any) -> _Found:
    handle, indices = op.inputs
    rows = tf.raw_ops.VariableShape(input=handle)[op.get_attr("batch_dims")]
    return "index", "", _out_of_range(indices, tf.cast(rows, tf.int64))


def _gathered_by_several(op: Any) -> _Found:
    params, indices = op.inputs
    depth = indices.shape[-1]
    if not depth or tf.get_static_value(indices) is not None:
        return None
    rows = tf.cast(tf.shape(params)[:depth], tf.int64)
    rows = tf.broadcast_to(rows, tf.shape(indices))
    return "index", "", _out_of_range(indices, rows)


def _assertion(op: Any) -> _Found:
    zero = tf.constant(0, tf.int64)
    return "assertion", _shown_by(op), (tf.logical_not(op.inputs[0]), zero, zero)


def _numerics(op: Any) -> _Found:
    zero = tf.constant(0, tf.int64)
    is_finite = tf.reduce_all(tf.math.is_finite(op.inputs[0]))
    return "numerics", op.get_attr("message").decode(), (tf.logical_not(is_finite), zero, zero)


_CHECKS: dict[str, Callable[[Any], _Found]] = {
    "SparseSoftmaxCrossEntropyWithLogits": _labels,
    "GatherV2": _gathered,
    "ResourceGather": _gathered_from_variable,
    "GatherNd": _gathered_by_several,
    "CheckNumerics": _numerics,
    "CheckNumericsV2": _numerics,
}


def is_assertion(op: Any) -> bool:
    """Return whether an operation is an assertion."""
    return op.type == "Assert" or (op.type in ("If", "StatelessIf") and "AssertGuard" in op.name)


def _size(tensor: Any, axis: int) -> Any:
    known = None if tensor.shape.rank is None else tensor.shape[axis]
    size = tf.shape(tensor)[axis] if known is None else known
    return tf.cast(size, tf.int64)


def _out_of_range(indices: Any, rows: Any) -> _Condition:
    """Return the first index outside `[0, rows)`, in one reduction that XLA can vectorise."""
    flat = tf.reshape(tf.cast(indices, tf.int64), [-1])
    bounds = tf.broadcast_to(tf.reshape(rows, [-1]), tf.shape(flat))
    count = tf.size(flat)
    is_outside = tf.logical_or(flat < 0, flat >= bounds)
    first = tf.reduce_min(tf.where(is_outside, tf.range(count), count))
    place = tf.minimum(first, tf.maximum(count - 1, 0))
    return first < count, tf.gather(flat, place), tf.gather(bounds, place)


def _shown_by(op: Any) -> str:
    """Return the message of an assertion, if it is a constant."""
    for graph in tensorflow_internals.inner_graphs(op):
        for inner in graph.get_operations():
            if inner.type == "Assert":
                return _shown_by(inner)
    shown = tf.get_static_value(op.inputs[1]) if op.type == "Assert" else None
    if shown is None or getattr(shown, "dtype", None) is None or shown.dtype.kind not in "OS":
        return ""
    return asserted(shown.item().decode(errors="replace"))
