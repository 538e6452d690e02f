"""Dataflow in a graph: which tensors depend on which."""

from collections.abc import Iterable
from typing import Any

ELEMENTWISE = frozenset(
    [
        *("Add", "AddV2", "Sub", "Mul", "RealDiv", "DivNoNan", "SquaredDifference", "Pow"),
        *("Maximum", "Minimum", "Equal", "NotEqual", "Greater", "GreaterEqual", "Less"),
        *("LessEqual", "LogicalAnd", "LogicalOr"),
    ]
)
_SIZES = frozenset(["Shape", "ShapeN", "Size", "Rank"])
# One output of these may depend on inputs that another output does not depend on.
_CALLS = frozenset(
    [
        *("If", "StatelessIf", "Case", "StatelessCase", "While", "StatelessWhile"),
        *("PartitionedCall", "StatefulPartitionedCall"),
    ]
)


def flow_in_sight(graph: Any, sources: Iterable[Any]) -> set[str]:
    """Return what `flow` does, but not through branches, loops and functions, which mix inputs."""
    kinds = {op.type for op in graph.get_operations()}
    return flow(graph, sources, through=kinds - _CALLS - _SIZES)


def resources(graph: Any) -> list[Any]:
    """Return the variables, as the graph sees them: every tensor that is a handle."""
    return [t for op in graph.get_operations() for t in op.outputs if t.dtype == "resource"]


def flow(graph: Any, sources: Iterable[Any], through: Iterable[str] | None = None) -> set[str]:
    """Return the names of all tensors whose values, not just sizes, depend on the sources."""
    reached = {tensor.name for tensor in sources}
    for op in graph.get_operations():
        passes = op.type not in _SIZES if through is None else op.type in through
        if passes and any(tensor.name in reached for tensor in op.inputs):
            reached |= {tensor.name for tensor in op.outputs}
    return reached
