"""What makes a step slow, as far as its trace and its batches show it."""

from collections.abc import Iterator
from typing import Any

import keras

from loopwright.data.bottleneck import PYTHON_CALLS
from loopwright.engine.trace import Built
from loopwright.plans.plan import Plan

_FEW_EXAMPLES = 4
_SHORT_STEP_SECONDS = 0.01
"""Below this, a step with few examples is overhead rather than arithmetic."""

_HEAVY = ("MatMul", "BatchMatMul", "Conv", "DepthwiseConv", "Einsum", "CudnnRNN")
_DT_DOUBLE = 2


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
