"""What was slow in a session, and why, as far as its trace, its data and its clock show it."""

import functools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import keras

from loopwright.data.bottleneck import PYTHON_CALLS
from loopwright.distribute import replicas
from loopwright.engine.trace import Built
from loopwright.loop import verdict
from loopwright.plans.plan import Plan

if TYPE_CHECKING:
    from loopwright.fit.session import Session

_FEW_EXAMPLES = 4
_SHORT_STEP_SECONDS = 0.01
"""Below this, a step with few examples is overhead rather than arithmetic."""

_HEAVY = ("MatMul", "BatchMatMul", "Conv", "DepthwiseConv", "Einsum", "CudnnRNN")
_DT_DOUBLE = 2


def slow_part(session: "Session", spent: Mapping[str, float], steps: int) -> str:
    """Return a sentence about the slowest part of this start; empty if none stands out."""
    if not steps:
        return ""
    feed, request, watch = session.feed, session.request, session.watch
    engine = session.parts.engine
    is_data_slower = spent["data wait"] > spent["step"]
    bottleneck = functools.partial(feed.bottleneck, is_data_slower) if feed is not None else str
    built, plan = engine.traces("train_step"), engine.plans.plan
    examples, seconds = examples_per_batch(session), spent["step"] / steps
    waits = 2 * session.validation.waited_seconds > spent["validation"]
    validate_every, save_every = request.validate_every, request.save_every
    causes = {
        "data wait": lambda: verdict.slow_data(steps, spent, bottleneck()),
        "step": lambda: slow_step(plan, built[-1] if built else None, examples, seconds),
        "validation": lambda: verdict.slow_validation(spent, validate_every, waits=waits),
        "checkpoint": lambda: verdict.slow_saving(save_every, watch.times["checkpoint"]),
        "callbacks": lambda: verdict.slow_callbacks(watch.largest("callbacks")),
        "logging": lambda: verdict.slow_logging(watch.largest("logging")),
        "caller": lambda: ": do less for each event",
        "tuning": lambda: verdict.slow_tuning(repr(plan)),
        "compile": lambda: verdict.slow_compiling(len(built), is_xla=plan.step == "xla"),
        "Python": lambda: verdict.slow_python(session.callbacks.called_each_step),
    }
    return verdict.verdict(spent, causes)


def examples_per_batch(session: "Session") -> int | None:
    """Return the examples in the largest batch; None if unknown, or if there is one batch."""
    feed, reader = session.feed, session.stepper.reader
    if feed is None or feed.steps_per_epoch == 1:
        return None
    seen = None if reader is None else reader.largest_batch
    return replicas.known_example_count(feed.batch_spec) if seen is None else seen


def slow_step(
    plan: Plan, built: Built | None, examples: int | None, seconds_per_step: float
) -> str:
    """Return why a step is slower than it could be, and what to do; empty if nothing shows it.

    `examples` is how many a batch holds, where that is known and could be raised.
    """
    if plan.step == "eager":
        return ' and ran eagerly: leave out plan="eager" or run_eagerly=True, unless you debug'
    kinds = () if built is None else built.operations
    called = [name for kind, name in PYTHON_CALLS.items() if kind in kinds]
    if called:
        return (
            f" and runs Python ({called[0]}), one call at a time: write that part with "
            "TensorFlow operations"
        )
    is_small = examples is not None and examples <= _FEW_EXAMPLES
    if is_small and seconds_per_step < _SHORT_STEP_SECONDS:
        noun = "example" if examples == 1 else "examples"
        return (
            f" with {examples} {noun} per batch, most of it overhead: use larger batches, "
            "batch_size=32 or .batch(32)"
        )
    if built is not None and _computes_in_float64(built.graph):
        return f" and computes in float64: unless you need the precision, use {_float32()}"
    return ""


def _computes_in_float64(graph: Any) -> bool:
    """Return whether most heavy operations do; without any, most that take floats."""
    nodes = list(_nodes(graph))
    heavy = [node for node in nodes if node.op.startswith(_HEAVY)]
    types = [node.attr["T"].type for node in heavy or nodes if "T" in node.attr]
    floats = [kind for kind in types if kind in (1, _DT_DOUBLE, 14, 19)]
    return 2 * floats.count(_DT_DOUBLE) > len(floats)


def _nodes(graph: Any) -> Iterator[Any]:
    if graph is not None:
        yield from graph.node
        for function in graph.library.function:
            yield from function.node_def


def _float32() -> str:
    if keras.config.floatx() == "float64":
        return 'keras.config.set_floatx("float32")'
    return 'dtype="float32" in the layers and tf.cast(x, tf.float32) in the step'
