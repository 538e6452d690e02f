"""Constants of a traced step: values that Python computed once and every step would use."""

import contextlib
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import tensorflow as tf

from loopwright.compat import tensorflow_internals
from loopwright.compat.lines import place_of, shape_text
from loopwright.errors import message
from loopwright.exactness import BEST_EFFORT
from loopwright.guards.guard import Finding, StepTrace, listed
from loopwright.guards.source import Draw
from loopwright.step_warnings import declare

_BAKED_IN_ARRAY = declare(
    "baked-in-array",
    "a step without a batch computes with a fixed array of 32 elements or more",
)
FEWEST_ELEMENTS = 32
"""Larger arrays may be a batch; weights of a sum, axes and filters are smaller."""

_MOST_IN_A_SHAPE = 8
_MOST_NAMED = 5
# Names of operations are in the texts of assertions, and their control dependencies follow them.
_FOLLOW_NAMES = frozenset(["Identity", "NoOp"])
# Rows of an array that are chosen in each step are a batch like any other.
_CHOOSING = frozenset(["GatherV2", "Gather", "GatherNd", "RandomShuffle", "Slice", "StridedSlice"])


@dataclass(frozen=True)
class Constant:
    """A value in a graph, and the stack that created it."""

    dtype: tf.DType
    shape: tuple[int, ...]
    digest: int
    traceback: tuple[Any, ...] = field(default=(), compare=False)
    """Empty unless requested: collecting it is slow."""

    @property
    def is_a_shape(self) -> bool:
        """Return whether it may be a shape, an axis or an index that TensorFlow made."""
        return self.dtype == tf.int32 and tf.TensorShape(self.shape).num_elements() <= (
            _MOST_IN_A_SHAPE
        )


@dataclass(frozen=True)
class Constants:
    """The constants and operations that one pass of Python through a step left in the graph."""

    shapes: tuple[str, ...]
    """The shapes of the batch."""
    constants: tuple[Constant, ...]
    operations: Counter[str]


_recordings: list[tuple[list[Constants], bool]] = []


@contextlib.contextmanager
def recorded(*, lines: bool = False) -> Iterator[list[Constants]]:
    """Collect the constants of each call of a step, also on replicas, in their own threads.

    `lines` also keeps the stack that created each constant.
    """
    traces = list[Constants]()
    _recordings.append((traces, lines))
    try:
        yield traces
    finally:
        _recordings.pop()


@contextlib.contextmanager
def noted(batch: Any) -> Iterator[None]:
    """Note the constants of the step that is called inside, if `recorded` is active."""
    if not _recordings or tf.executing_eagerly():
        yield
        return
    graph = tf.compat.v1.get_default_graph()
    first = len(graph.get_operations())
    yield
    traces, lines = _recordings[-1]
    constants, operations = list[Constant](), Counter[str]()
    for op, constant in _looked_at(graph, graph.get_operations()[first:], operations):
        # Frame by frame: the stack itself does not outlive its operation.
        stack = tuple(op.traceback) if lines else ()
        constants.append(replace(constant, traceback=stack))
    shapes = tuple(str(leaf.shape) for leaf in tf.nest.flatten(batch) if hasattr(leaf, "shape"))
    traces.append(Constants(shapes, tuple(constants), operations))


def _looked_at(
    graph: Any, operations: Sequence[Any], kinds: Counter[str]
) -> Iterator[tuple[Any, Constant]]:
    captured = _captured_numbers(graph)
    digests = dict[str, int]()
    for op in operations:
        if op.type not in _FOLLOW_NAMES:
            kinds[op.type] += 1
        if op.type == "Const":
            value = op.get_attr("value")
            if value.dtype != tf.string.as_datatype_enum:
                shape = tuple(dimension.size for dimension in value.tensor_shape.dim)
                digest = hash(value.SerializeToString())
                yield op, Constant(tf.as_dtype(value.dtype), shape, digest)
        for tensor in op.inputs:
            value = captured.get(tensor.name)
            if value is not None:
                if tensor.name not in digests:
                    digests[tensor.name] = hash(value.numpy().tobytes())
                shape = tuple(value.shape.as_list())
                yield op, Constant(value.dtype, shape, digests[tensor.name])
        for inner in tensorflow_internals.inner_graphs(op):
            yield from _looked_at(inner, inner.get_operations(), kinds)


def _captured_numbers(graph: Any) -> dict[str, Any]:
    captured = tensorflow_internals.captured_values(graph).items()
    others = (tf.resource, tf.variant, tf.string)
    return {name: value for name, value in captured if value.dtype not in others}


def may_differ(first: Sequence[Constants], second: Sequence[Constants], *, for_xla: bool) -> bool:
    """Return whether two traces of a step, perhaps in different contexts, may differ in values."""
    return any(_may_differ(*pair, for_xla=for_xla) for pair in zip(first, second, strict=False))


def _may_differ(one: Constants, other: Constants, *, for_xla: bool) -> bool:
    """Return whether the value of a constant differs, except for shapes and indices.

    For XLA, and for a batch of known size, TensorFlow itself makes different ones of these.
    """
    if not for_xla and one.shapes == other.shapes:
        return bool(differences(one, other)) or one.operations != other.operations
    left, right = (Counter(c for c in t.constants if not c.is_a_shape) for t in (one, other))
    gone, new = ({(c.dtype, c.shape) for c in only} for only in (left - right, right - left))
    return bool(gone & new)


def differences(one: Constants, other: Constants) -> list[Constant]:
    """Return the constants of the second trace that are not in the first."""
    return list((Counter(other.constants) - Counter(one.constants)).elements())


def changing(
    title: str,
    first: Sequence[Constants],
    second: Sequence[Constants],
    drawn: Sequence[Draw],
    *,
    is_eager: bool,
) -> str | None:
    """Return the message about values that Python drew, or that two traces differ in, or None."""
    pairs = list(zip(first, second, strict=False))
    found = [constant for one, other in pairs for constant in differences(one, other)]
    differs = bool(found) or any(one.operations != other.operations for one, other in pairs)
    if not differs and not drawn:
        return None
    places = [*map(place_of, found), *(f" ({draw.place})" for draw in drawn)]
    kinds = dict.fromkeys(f"{c.dtype.name} {shape_text(tf.TensorShape(c.shape))}" for c in found)
    what = (
        f"constants that differ: {listed(list(kinds), _MOST_NAMED)}"
        if found
        else "different operations"
    )
    received = [f"two traces of the step gave {what}"] if differs else []
    received += [f"drawn by {listed(list(map(str, drawn)), _MOST_NAMED)}"] if drawn else []
    place = next((place for place in places if place), "")
    if is_eager:
        return message(
            f"{title} uses a value that Python computes again in each step{place}: "
            "a resumed run would compute different values.",
            expected="values from the batch, from variables of the task, or from self.seed",
            received="; ".join(received),
            do=f"{_instead(drawn)}; or {BEST_EFFORT}: a resumed run then draws different values; "
            "or train without run_dir",
        )
    return message(
        f"{title} uses a value that Python computed while the step was traced{place}: "
        "every step would use the same one.",
        expected="values that change to come from the batch, a variable, or keras.random",
        received="; ".join(received),
        do=f'{_instead(drawn)}; or run Python in each step with plan="eager"',
    )


def _instead(drawn: Sequence[Draw]) -> str:
    is_clock = [draw.is_clock for draw in drawn]
    random = (
        "draw with keras.random.uniform, normal or randint(..., seed=self.seed), with "
        "self.seed = keras.random.SeedGenerator(0) in __init__, or pass the data to fit"
    )
    clock = "read the clock with tf.timestamp(), or in a callback"
    count = "count with self.step or a tf.Variable"
    if not drawn:
        return f"{random}; {count}"
    return "; ".join([random] * (not all(is_clock)) + [clock] * any(is_clock))


# -- arrays that do not change ---------------------------------------------------------------------


def _baked_in_array(trace: StepTrace) -> Iterator[Finding]:
    """A large fixed array in a step without a batch may be one batch, baked in."""
    if trace.is_compiled or trace.batch:
        return
    found = [*dict.fromkeys(_used_whole(trace.graph, set(), set()))]
    if found:
        text = message(
            f"{trace.title} computes with a fixed array in every step{found[0][1]}.",
            expected="a step without a batch argument that draws its examples in each step",
            received=listed([*dict.fromkeys(kind for kind, _ in found)], _MOST_NAMED),
            do="pass the data to fit(x, y) and take a batch argument; or hold all examples and "
            "choose rows: tf.gather(self.x, keras.random.randint((32,), 0, rows, "
            "seed=self.seed))",
        )
        yield Finding(text, _BAKED_IN_ARRAY)


def uses_array(graph: Any) -> bool:
    """Return whether a step computes with a large fixed array: perhaps examples, baked in."""
    return any(True for _ in _used_whole(graph, set(), set()))


def _used_whole(graph: Any, fixed: set[str], large: set[str]) -> Iterator[tuple[str, str]]:
    """Yield kinds and places of large arrays that operations use unchanged.

    `fixed` are the tensors known to have the same value in each step; what is computed from
    nothing else is fixed too. `large` are those that hold an array, or something made of one.
    """
    numbers = _captured_numbers(graph)
    fixed = fixed | set(numbers)
    large = large | {name for name, value in numbers.items() if _is_array(value.numpy())}
    for op in graph.get_operations():
        inner = tensorflow_internals.inner_graphs(op)
        outputs = {tensor.name for tensor in op.outputs}
        arrays = [tensor for tensor in op.inputs if tensor.name in large]
        is_fixed = op.inputs and all(tensor.name in fixed for tensor in op.inputs)
        if op.type == "Const":
            fixed |= outputs
            large |= outputs if _is_array(_value(op)) else set()
        elif is_fixed and not inner and not op.op_def.is_stateful:
            fixed |= outputs
            large |= outputs if arrays else set()
        elif inner:
            for body in inner:
                pairs = tensorflow_internals.inner_inputs(op, body)
                known = [{i.name for o, i in pairs if o.name in names} for names in (fixed, large)]
                yield from _used_whole(body, *known)
        elif op.type not in _CHOOSING:
            for tensor in arrays:
                if (tensor.shape.num_elements() or 0) >= FEWEST_ELEMENTS:
                    yield f"{tensor.dtype.name} {shape_text(tensor.shape)}", place_of(op)


def _value(op: Any) -> Any:
    with warnings.catch_warnings():
        # TensorFlow 2.21 under NumPy 2.5, where warnings may be errors.
        warnings.filterwarnings("ignore", "Setting the dtype", DeprecationWarning)
        return tf.make_ndarray(op.get_attr("value"))


def _is_array(value: Any) -> bool:
    """Return whether it may be examples: many numbers, which are not all the same."""
    return value.size >= FEWEST_ELEMENTS and bool((value != value.flat[0]).any())


TRAIN_GUARDS = [_baked_in_array]
