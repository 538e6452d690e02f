"""What is inside a traced graph: the graphs of its functions, and the values it captured."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def inner_graphs(op: Any) -> list[Any]:
    """Return the graphs an operation calls: branches, loop bodies, a `tf.function`.

    If this moves: constants and resources inside branches, loops and `tf.function`s go unseen
    (tested).
    """
    names: list[str] = []
    for attribute, is_list in _function_attributes(op):
        value = op.get_attr(attribute)
        names += [function.name for function in (value if is_list else [value])]
    graphs = [getattr(op.graph._get_function(name), "graph", None) for name in names if name]
    return [graph for graph in graphs if graph is not None]


def inner_inputs(op: Any, inner: Any) -> list[tuple[Any, Any]]:
    """Return pairs of an operation's inputs and the placeholders for them in a graph it calls.

    They are matched from the end: captured values come last, and the condition of a branch is
    not passed on.
    """
    return list(zip(reversed(list(op.inputs)), reversed(list(inner.inputs)), strict=False))


def captured_values(graph: Any) -> dict[str, Any]:
    """Return the eager tensors a graph captured, by the names of their placeholders.

    If this moves: nobody is told that a step captured an array or a queue (tested).
    """
    eager = tf.__internal__.EagerTensor
    return {inner.name: outer for outer, inner in graph.captures if isinstance(outer, eager)}


_known: dict[str, Sequence[tuple[str, bool]]] = {}


def _function_attributes(op: Any) -> Sequence[tuple[str, bool]]:
    """Names of attributes that hold functions, and whether they hold several."""
    if op.type not in _known:  # a definition is copied each time it is asked for
        kinds = {"func": False, "list(func)": True}
        held = [(attribute.name, attribute.type) for attribute in op.op_def.attr]
        _known[op.type] = [(name, kinds[kind]) for name, kind in held if kind in kinds]
    return _known[op.type]
