"""Constants of a traced step: values that Python computed once and every step would use."""

import ast
import contextlib
import math
import pickle
import random
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

import tensorflow as tf

from loopwright.compat import tensorflow_internals
from loopwright.compat.lines import is_users_frame, place_of, shape_text
from loopwright.errors import message
from loopwright.exactness import BEST_EFFORT
from loopwright.guards.guard import Finding, StepTrace, listed, warning
from loopwright.guards.source import GENERATORS, reached
from loopwright.task.task import Task

# -- random numbers and clocks: Python reads them once, while the step is traced -------------------

_UNREPEATABLE = frozenset(
    [
        *("time.time", "time.time_ns", "time.perf_counter", "time.perf_counter_ns"),
        *("time.monotonic", "time.monotonic_ns", "time.process_time", "time.thread_time"),
        *("datetime.now", "datetime.utcnow", "datetime.today", "uuid.uuid1", "uuid.uuid4"),
        *("secrets.choice", "secrets.randbelow", "secrets.token_bytes", "secrets.token_hex"),
        "posix.urandom",
    ]
)
"""Functions by module and name that return something else each time."""


@dataclass(frozen=True)
class Draw:
    """A call whose value changes each time, and where it is."""

    name: str
    place: str
    callee: Any
    """A function, or a method of a generator."""

    @property
    def is_clock(self) -> bool:
        """Return whether it reads a clock, not a random number."""
        return self.name.startswith(("time.", "datetime."))

    @property
    def generator(self) -> Any:
        """The generator that it draws from; None if it has no state that can be compared."""
        own = getattr(self.callee, "__self__", None)
        return own if isinstance(own, GENERATORS) else None

    def __str__(self) -> str:
        return f"{self.name} ({self.place})"


def possible_draws(step: Any, task: Task) -> list[Draw]:
    """Return such calls in the user's functions that a step may call."""
    found = [
        Draw(ast.unparse(call.func), here.place(call), callee)
        for here in reached(step, task)
        for call, callees in here.called()
        for callee in callees
        if _draws(callee)
    ]
    return list({str(draw): draw for draw in found}.values())


def _draws(callee: Any) -> bool:
    own = getattr(callee, "__self__", None)
    if isinstance(own, GENERATORS):
        return not isinstance(own, random.SystemRandom)
    module = getattr(own, "__module__", None) or getattr(callee, "__module__", None)
    return f"{module}.{getattr(callee, '__name__', '')}" in _UNREPEATABLE


@contextlib.contextmanager
def made(possible: Sequence[Draw]) -> Iterator[list[Draw]]:
    """Collect those of the draws that are made inside.

    A generator shows it by its state, also one that is not written in Python.
    """
    before = [_state(draw) for draw in possible]
    others = [draw.callee for draw in possible if draw.generator is None]
    codes = {getattr(callee, "__code__", None): callee for callee in others}
    called, found = list[Any](), list[Draw]()

    def look(frame: FrameType, event: str, builtin: Any) -> None:
        if event == "c_call" and builtin in others and is_users_frame(frame):
            called.append(builtin)
        elif event == "call" and frame.f_code in codes and is_users_frame(frame.f_back):
            called.append(codes[frame.f_code])

    watches = bool(others) and sys.getprofile() is None  # a profiler of the user goes first
    if watches:
        sys.setprofile(look)
    try:
        yield found
    finally:
        if watches:
            sys.setprofile(None)
    for draw, state in zip(possible, before, strict=True):
        is_made = draw.callee in called if draw.generator is None else _state(draw) != state
        found += [draw] * is_made


def _state(draw: Draw) -> bytes:
    return b"" if draw.generator is None else pickle.dumps(draw.generator)


# -- values in the graph that Python computed ------------------------------------------------------

_BAKED_IN_ARRAY = warning(
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
        return self.dtype == tf.int32 and math.prod(self.shape) <= _MOST_IN_A_SHAPE


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
    """Return whether two traces of a step, perhaps in different contexts, may differ in values.

    For XLA, and for a batch of known size, TensorFlow itself makes other shapes and indices.
    """

    def may_differ(before: Constants, after: Constants) -> bool:
        if not for_xla and before.shapes == after.shapes:
            return _differ(before, after)
        left, right = (Counter(c for c in t.constants if not c.is_a_shape) for t in (before, after))
        gone, new = ({(c.dtype, c.shape) for c in only} for only in (left - right, right - left))
        return bool(gone & new)

    return any(may_differ(*pair) for pair in zip(first, second, strict=False))


def _new_constants(before: Constants, after: Constants) -> list[Constant]:
    return list((Counter(after.constants) - Counter(before.constants)).elements())


def _differ(before: Constants, after: Constants) -> bool:
    return bool(_new_constants(before, after)) or before.operations != after.operations


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
    new = [constant for pair in pairs for constant in _new_constants(*pair)]
    differs = any(_differ(*pair) for pair in pairs)
    if not differs and not drawn:
        return None
    kinds = dict.fromkeys(f"{c.dtype.name} {shape_text(tf.TensorShape(c.shape))}" for c in new)
    listed_kinds = f"constants that differ: {listed(list(kinds), _MOST_NAMED)}"
    what = listed_kinds if new else "different operations"
    received = [f"two traces of the step gave {what}"] if differs else []
    received += [f"drawn by {listed(list(map(str, drawn)), _MOST_NAMED)}"] if drawn else []
    places = [*map(place_of, new), *(f" ({draw.place})" for draw in drawn)]
    place = next(filter(None, places), "")
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
    numbers = (
        "draw with keras.random.uniform, normal or randint(..., seed=self.seed), with "
        "self.seed = keras.random.SeedGenerator(0) in __init__, or pass the data to fit"
    )
    clock = "read the clock with tf.timestamp(), or in a callback"
    count = "count with self.step or a tf.Variable"
    if not drawn:
        return f"{numbers}; {count}"
    return "; ".join([numbers] * (not all(is_clock)) + [clock] * any(is_clock))


# -- arrays that do not change ---------------------------------------------------------------------


def _baked_in_array(trace: StepTrace) -> Iterator[Finding]:
    """A large fixed array in a step without a batch may be one batch, baked in."""
    if trace.is_compiled or trace.batch:
        return
    found = [*dict.fromkeys(_used_whole(trace.graph, {}))]
    if found:
        yield _BAKED_IN_ARRAY(
            f"{trace.title} computes with a fixed array in every step{found[0][1]}.",
            expected="a step without a batch argument that draws its examples in each step",
            received=listed([*dict.fromkeys(kind for kind, _ in found)], _MOST_NAMED),
            do="pass the data to fit(x, y) and take a batch argument; or hold all examples and "
            "choose rows: tf.gather(self.x, keras.random.randint((32,), 0, rows, "
            "seed=self.seed))",
        )


def uses_array(graph: Any) -> bool:
    """Return whether a step computes with a large fixed array: perhaps examples, baked in."""
    return any(True for _ in _used_whole(graph, {}))


def _used_whole(graph: Any, outer: Mapping[str, bool]) -> Iterator[tuple[str, str]]:
    """Yield kinds and places of large arrays that operations use unchanged.

    `outer` are the tensors known to have the same value in each step, and whether they hold an
    array, or something made of one; what is computed from nothing else is fixed too.
    """
    captured = _captured_numbers(graph)
    fixed = {**outer, **{name: _is_array(value.numpy()) for name, value in captured.items()}}
    for op in graph.get_operations():
        inner = tensorflow_internals.inner_graphs(op)
        outputs = [tensor.name for tensor in op.outputs]
        arrays = [tensor for tensor in op.inputs if fixed.get(tensor.name)]
        is_fixed = op.inputs and all(tensor.name in fixed for tensor in op.inputs)
        if op.type == "Const":
            fixed |= dict.fromkeys(outputs, _is_array(_value(op)))
        elif inner:
            for body in inner:
                pairs = tensorflow_internals.inner_inputs(op, body)
                yield from _used_whole(
                    body, {i.name: fixed[o.name] for o, i in pairs if o.name in fixed}
                )
        elif is_fixed and not op.op_def.is_stateful:
            fixed |= dict.fromkeys(outputs, bool(arrays))
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
