"""A look into one step: what each layer returns, each gradient, the step's own numbers."""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import keras
import numpy as np
import tensorflow as tf

from loopwright.compat import keras_internals, keras_optimizers, tensorflow_internals
from loopwright.plans.plan import Plan
from loopwright.task import context, variables
from loopwright.task.task import Task

One = Callable[[Any], Any]
"""A step as a function of its batch, see `CompiledSteps.alone`."""

_CLOSE, _NEAR_ZERO = 1e-4, 1e-7
_HEAD = ("min", "mean", "max", "NaN", "zero", "norm")
_NAME_WIDTH, _SHAPE_WIDTH = 24, 11


@final
@dataclass(frozen=True)
class TensorLook:
    """One tensor of a step in numbers; min, mean, max and norm are those of its finite numbers."""

    name: str
    shape: tuple[int, ...]
    min: float
    mean: float
    max: float
    not_finite: int
    """How many numbers are NaN or infinite."""
    zeros: float
    """The share of exact zeros."""
    norm: float
    rows: tuple[int, ...] = ()
    """The places on the first axis that hold NaN or infinity: of layers, rows of the batch."""


@final
@dataclass(frozen=True)
class StepLook:
    """One run of a step."""

    numbers: Mapping[str, float]
    """What the step reported: its own loss, not the mean of an epoch."""
    layers: tuple[TensorLook, ...] = ()
    gradients: tuple[TensorLook, ...] = ()

    @property
    def not_finite(self) -> list[TensorLook]:
        """The tensors with NaN or infinity, in the order in which the step computed them."""
        return [each for each in (*self.layers, *self.gradients) if each.not_finite]


def losses(numbers: Mapping[str, float]) -> dict[str, float]:
    """Return the numbers that are losses, or all if none is named so.

    >>> losses({"loss": 1.0, "accuracy": 0.5})
    {'loss': 1.0}
    """
    named = {name: value for name, value in numbers.items() if "loss" in name.lower()}
    return named or dict(numbers)


def is_finite(numbers: Mapping[str, float]) -> bool:
    """Return whether all losses are finite."""
    return all(math.isfinite(value) for value in losses(numbers).values())


def are_close(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    """Return whether two runs of a step have the same losses, up to rounding.

    >>> are_close({"loss": 1.0}, {"loss": 1.00001}), are_close({"loss": 1.0}, {"loss": 1.1})
    (True, False)
    """
    shared = [(losses(one)[name], other[name]) for name in losses(one) if name in other]
    return all(
        math.isclose(a, b, rel_tol=_CLOSE, abs_tol=_NEAR_ZERO)
        if math.isfinite(a) and math.isfinite(b)
        else math.isfinite(a) == math.isfinite(b)
        for a, b in shared
    )


def step_numbers(task: Task, outputs: Any) -> dict[str, float]:
    """Return the numbers of one step: outputs are pairs of sum and weight, or those of Keras."""
    if not isinstance(outputs, Mapping):
        return {}
    if task.reported == "last":
        plain = {name: np.asarray(value) for name, value in outputs.items()}
        return {name: float(value) for name, value in plain.items() if value.ndim == 0}
    pairs = {name: (float(total), float(weight)) for name, (total, weight) in outputs.items()}
    return {name: total / weight for name, (total, weight) in pairs.items() if weight}


def eager_look(task: Task, one: One, batch: Any) -> StepLook:
    """Run a step eagerly, once, and return what was in it."""
    seen = _Seen(task, None)
    with seen.watching():
        outputs = one(batch)
    return seen.look(step_numbers(task, outputs), seen.tensors)


def plan_look(task: Task, one: One, batch: Any, plan: Plan) -> StepLook:
    """Run a step compiled as a plan compiles it, and fetch the same numbers from inside."""
    found = list[_Seen]()

    def fetched(batch: Any) -> Any:
        seen = _Seen(task, tf.compat.v1.get_default_graph())
        found[:] = [seen]
        with seen.watching():
            outputs = one(batch)
        return outputs, seen.tensors

    compiled: Any = tensorflow_internals.compiled(fetched, xla=plan.step == "xla")
    with keras_internals.without_keras_warnings():
        outputs, tensors = compiled(batch)
    return found[0].look(step_numbers(task, outputs), tensors)


@final
class _Seen:
    """Collects what layers return and what optimizers apply while a step runs or is traced."""

    def __init__(self, task: Task, graph: Any) -> None:
        self._task, self._graph = task, graph
        self._layers = list[tuple[str, tuple[int, ...]]]()
        self._gradients = list[tuple[str, tuple[int, ...]]]()
        self.tensors = list[Any]()
        parts = variables.all_parts(task)
        self._paths = {id(p.value): p.path for p in parts if isinstance(p.value, keras.Layer)}

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watch layers and optimizers."""
        with (
            keras_internals.watching_outputs(self._see_layer),
            keras_optimizers.watching_applies() as applied,
        ):
            yield
        found: dict[int, tuple[Any, Any]] = {}
        for update in applied:
            # An optimizer that scales losses calls an inner optimizer: the inner call comes last.
            pairs = zip(update.variables, update.gradients, strict=False)
            found |= {id(v): (v, g) for v, g in pairs if g is not None}
        for path, gradient in context.named(self._task, found).items():
            tensor = tf.convert_to_tensor(gradient)
            if self._is_reachable(tensor):
                self._gradients.append((path, _shape(tensor)))
                self.tensors.append(_summary(tensor))

    def look(self, numbers: Mapping[str, float], rows: Sequence[Any]) -> StepLook:
        """Return the look, with the fetched values of `tensors`."""
        named = [*self._layers, *self._gradients]
        looks = [
            _look_at(name, shape, bad_rows, *map(float, summary))
            for (name, shape), (summary, bad_rows) in zip(named, rows, strict=True)
        ]
        at = len(self._layers)
        return StepLook(numbers, tuple(looks[:at]), tuple(looks[at:]))

    def _see_layer(self, layer: keras.Layer, outputs: Any) -> None:
        if isinstance(layer, keras.Model):
            return  # its layers are seen
        path = self._paths.get(id(layer))
        kind = type(layer).__name__
        name = f"{layer.name} {kind}" if path is None else f"{path} {kind}"
        for tensor in tf.nest.flatten(outputs):
            if tf.is_tensor(tensor) and tensor.dtype.is_floating and self._is_reachable(tensor):
                self._layers.append((name, _shape(tensor)))
                self.tensors.append(_summary(tensor))

    def _is_reachable(self, tensor: Any) -> bool:
        """Return whether a tensor can be fetched: not from inside of a loop, branch or function."""
        if not tf.is_symbolic_tensor(tensor):
            return isinstance(tensor, tf.Tensor)
        return tensor.graph is self._graph


def _shape(tensor: Any) -> tuple[int, ...]:
    return tuple(-1 if size is None else size for size in tensor.shape)


def _summary(tensor: Any) -> tuple[Any, Any]:
    """Return the six numbers of a tensor, and which places on its first axis are not finite."""
    numbers = tf.cast(tensor, tf.float32)
    is_finite = tf.math.is_finite(numbers)
    zeros = tf.zeros_like(numbers)
    known = tf.where(is_finite, numbers, zeros)
    count = tf.reduce_sum(tf.cast(is_finite, tf.float32))
    size = tf.cast(tf.size(numbers), tf.float32)
    low = tf.reduce_min(tf.where(is_finite, numbers, zeros + math.inf))
    high = tf.reduce_max(tf.where(is_finite, numbers, zeros - math.inf))
    is_zero = tf.reduce_sum(tf.cast(numbers == 0.0, tf.float32))
    flat = tf.reshape(is_finite, [tf.shape(numbers)[0] if numbers.shape.rank else 1, -1])
    summary = tf.stack(
        [
            low,
            tf.math.divide_no_nan(tf.reduce_sum(known), count),
            high,
            size - count,
            tf.math.divide_no_nan(is_zero, size),
            tf.sqrt(tf.reduce_sum(tf.square(known))),
        ]
    )
    return summary, tf.logical_not(tf.reduce_all(flat, axis=1))


def _look_at(
    name: str,
    shape: tuple[int, ...],
    bad_rows: Any,
    low: float,
    mean: float,
    high: float,
    not_finite: float,
    zeros: float,
    norm: float,
) -> TensorLook:
    rows = tuple(np.flatnonzero(bad_rows).tolist())
    return TensorLook(name, shape, low, mean, high, int(not_finite), zeros, norm, rows)


def table(looks: Sequence[TensorLook], title: str) -> list[str]:
    """Return the lines of a table that fits 80 columns.

    >>> for line in table([TensorLook("dense", (2, 3), -1.0, 0.5, 2.0, 0, 0.25, 3.0)], "layer"):
    ...     print(line)
    layer                   shape            min     mean      max  NaN zero    norm
    dense                   2x3               -1      0.5        2    0  25%       3
    """
    lines = [_line(title, "shape", *_HEAD)]
    for look in looks:
        has_any = look.min <= look.max
        values = [look.min, look.mean, look.max, look.norm] if has_any else [math.nan] * 4
        *texts, norm = [f"{value:.2g}" if math.isfinite(value) else "-" for value in values]
        sizes = "x".join("?" if size < 0 else str(size) for size in look.shape) or "scalar"
        bad = f"{look.not_finite}" if look.not_finite < 10_000 else f"{look.not_finite:.0e}"
        lines.append(_line(look.name, sizes, *texts, bad, f"{look.zeros:.0%}", norm))
    return lines


def _line(name: str, shape: str, *cells: str) -> str:
    low, mean, high, bad, zeros, norm = cells
    name = name if len(name) < _NAME_WIDTH else f"..{name[3 - _NAME_WIDTH :]}"
    left = f"{name:{_NAME_WIDTH}}{shape:{_SHAPE_WIDTH}}"
    return f"{left}{low:>9}{mean:>9}{high:>9}{bad:>5}{zeros:>5}{norm:>8}"
