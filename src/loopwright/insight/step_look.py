"""A look into one step: its batch, what each layer returns, each gradient, its numbers."""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import keras
import numpy as np
import tensorflow as tf

from loopwright.compat import keras_internals, keras_optimizers, tensorflow_internals
from loopwright.data.batches import leaves
from loopwright.plans.plan import Plan
from loopwright.task import context, variables
from loopwright.task.task import Task

_MOST_LISTED = 5


@final
@dataclass(frozen=True)
class ArrayLook:
    """One array of a batch, in numbers."""

    path: str
    """`x`, `y`, `x['tokens']`."""
    dtype: str
    shape: tuple[int, ...]
    range: tuple[float, float, float] | None = None
    """The smallest, the mean and the largest finite number; None if there is none."""
    not_finite: int = 0
    """How many numbers are NaN or infinite."""
    rows: tuple[int, ...] = ()
    """The rows of the batch that hold them, counted from 0."""
    constant_columns: int = 0
    """How many columns have the same number in every row."""
    columns: int = 0


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

    def bad_examples(self, look: "ArrayLook | TensorLook") -> tuple[int, ...]:
        """Return the examples with NaN or infinity: indices, or rows of the batch."""
        return tuple(row if self.examples is None else self.examples[row] for row in look.rows)

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


def look_at_batch(batch: Any, words: str, examples: Sequence[int] | None) -> BatchLook:
    """Return a look at a batch.

    >>> x = tf.constant([[1.0, 5.0], [float("nan"), 5.0]])
    >>> print(look_at_batch((x, tf.constant([0, 1])), "batch 7", [40, 41]))
    batch 7
      x: float32 (2, 2), min 1, mean 3.667, max 5
        NaN or infinity: 1, in example 41
        constant columns: 1 of 2
      y: int32 (2), min 0, mean 0.5, max 1
    """
    values = dict(_arrays(batch))
    looks = tuple(_look(path, array) for path, array in values.items())
    return BatchLook(words, None if examples is None else tuple(examples), looks, values)


def _arrays(batch: Any) -> Iterator[tuple[str, np.ndarray]]:
    named = ("x", "y", "sample_weight")
    parts = batch if isinstance(batch, tuple) and len(batch) <= len(named) else (batch,)
    for name, part in zip(named, parts, strict=False):
        for path, leaf in leaves(part, name):
            yield from ((f"{path}{end}", array) for end, array in _dense(leaf))


def _dense(leaf: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the arrays of a leaf: one, or those that a ragged or sparse tensor is made of."""
    match leaf:
        case tf.RaggedTensor():
            tensors = {".values": leaf.flat_values, ".row_lengths": leaf.row_lengths()}
        case tf.SparseTensor():
            tensors = {".values": leaf.values, ".indices": leaf.indices}
        case tf.Tensor():
            tensors = {"": leaf}
        case _:
            tensors = {}
    for end, tensor in tensors.items():
        array = np.asarray(tensor.numpy())
        yield end, array.astype("S") if array.dtype == object else array  # not to be pickled


def _look(path: str, array: np.ndarray) -> ArrayLook:
    look = ArrayLook(path, array.dtype.name, array.shape)
    is_number = array.dtype.kind in "fiub" or array.dtype.name == "bfloat16"
    if not is_number or not array.size:
        return look
    numbers = array.astype(np.float64)
    known = numbers[np.isfinite(numbers)]
    if known.size:
        look = replace(look, range=(float(known.min()), float(known.mean()), float(known.max())))
    look = replace(look, not_finite=numbers.size - known.size)
    if array.ndim:
        flat = numbers.reshape(len(array), -1)
        rows = np.flatnonzero(~np.isfinite(flat).all(axis=1))
        look = replace(look, rows=tuple(rows.tolist()))
        if array.ndim > 1 and len(array) > 1:
            constant = int((flat == flat[:1]).all(axis=0).sum())
            look = replace(look, constant_columns=constant, columns=flat.shape[1])
    return look


One = Callable[[Any], Any]
"""A step as a function of its batch, see `Engine.alone`."""

_CLOSE, _NEAR_ZERO = 1e-4, 1e-7


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
    return all(is_close(*pair) for pair in shared)


def is_close(one: float, other: float) -> bool:
    """Return whether two numbers are the same up to rounding, or neither is finite."""
    if not (math.isfinite(one) and math.isfinite(other)):
        return math.isfinite(one) == math.isfinite(other)
    return math.isclose(one, other, rel_tol=_CLOSE, abs_tol=_NEAR_ZERO)


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
        looks = list[TensorLook]()
        for (name, shape), (summary, bad_rows) in zip(named, rows, strict=True):
            low, mean, high, bad, zeros, norm = map(float, summary)
            places = tuple(np.flatnonzero(bad_rows).tolist())
            looks.append(TensorLook(name, shape, low, mean, high, int(bad), zeros, norm, places))
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


def table(looks: Sequence[TensorLook], title: str) -> list[str]:
    """Return the lines of a table that fits 80 columns.

    >>> for line in table([TensorLook("dense", (2, 3), -1.0, 0.5, 2.0, 0, 0.25, 3.0)], "layer"):
    ...     print(line)
    layer                   shape            min     mean      max  NaN zero    norm
    dense                   2x3               -1      0.5        2    0  25%       3
    """
    rows: list[tuple[str, ...]] = [(title, "shape", "min", "mean", "max", "NaN", "zero", "norm")]
    for look in looks:
        has_any = look.min <= look.max
        values = [look.min, look.mean, look.max, look.norm] if has_any else [math.nan] * 4
        *texts, norm = [f"{value:.2g}" if math.isfinite(value) else "-" for value in values]
        sizes = "x".join("?" if size < 0 else str(size) for size in look.shape) or "scalar"
        bad = f"{look.not_finite}" if look.not_finite < 10_000 else f"{look.not_finite:.0e}"
        name = look.name if len(look.name) < 24 else f"..{look.name[-21:]}"
        rows.append((name, sizes, *texts, bad, f"{look.zeros:.0%}", norm))
    return ["{:24}{:11}{:>9}{:>9}{:>9}{:>5}{:>5}{:>8}".format(*row) for row in rows]
