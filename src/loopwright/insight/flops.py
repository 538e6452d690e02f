"""Count the floating-point operations of a traced step: matrix products and convolutions.

Everything else (activations, normalization, the optimizer) is left out, as is usual: a share of the
machine's peak is then a share of what a matrix product of that size reaches at best.
"""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from loopwright.compat.tensorflow_internals import inner_graphs

_LOOPS = ("While", "StatelessWhile")
_BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")
_MATRIX_SIZE = 2048


@dataclass(frozen=True)
class Counted:
    """The operations of one call of a graph."""

    flops: float = 0.0
    uncounted: tuple[str, ...] = ()
    """Operations whose number is not known: loops of unknown length, shapes left open."""

    def __add__(self, other: "Counted") -> "Counted":
        return Counted(self.flops + other.flops, (*self.uncounted, *other.uncounted))


def of_step(step: Callable[..., Any], batch: Iterable[Any]) -> Counted:
    """Return the operations of one call of a step on this batch.

    >>> of_step(lambda x: x @ x, [tf.zeros((10, 10))]).flops
    2000.0
    """
    shapes = [tf.TensorSpec(part.shape, tf.as_dtype(part.dtype)) for part in batch]
    return of_graph(tf.function(step).get_concrete_function(*shapes).graph)


def of_graph(graph: Any) -> Counted:
    """Return the operations of a traced function, those of the functions it calls included."""
    total = Counted()
    for operation in graph.get_operations():
        if operation.type in _COUNTED:
            if _is_used(operation, graph):
                total += _counted(operation)
        elif operation.type in _LOOPS:
            total += _of_loop(operation)
        elif operation.type in _BRANCHES:
            branches = [of_graph(inner) for inner in inner_graphs(operation)]
            total += max(branches, key=lambda one: one.flops, default=Counted())
        else:
            total = sum((of_graph(inner) for inner in inner_graphs(operation)), total)
    return total


def of_machine(seconds: float = 0.5, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the operations per second of a large matrix product, at best, on this machine."""
    matrix = tf.random.stateless_uniform([_MATRIX_SIZE, _MATRIX_SIZE], seed=(0, 0))
    product = tf.function(lambda left: tf.reduce_sum(left @ left))
    product(matrix).numpy()
    best, began = math.inf, clock()
    while clock() - began < seconds:
        start = clock()
        product(matrix).numpy()
        best = min(best, clock() - start)
    return 2.0 * _MATRIX_SIZE**3 / best


def _counted(operation: Any) -> Counted:
    try:
        return Counted(float(_COUNTED[operation.type](operation)))
    except TypeError:  # a size that is left open
        return Counted(uncounted=(operation.name,))


def _of_loop(operation: Any) -> Counted:
    """Return the operations of a loop: those of its body, as often as it runs at most."""
    body = sum((of_graph(inner) for inner in inner_graphs(operation)), Counted())
    # A loop of TensorFlow carries its counter, then the largest number of turns, if it has one.
    turns = _constant(operation.inputs[1]) if len(operation.inputs) > 1 else None
    if not body.flops and not body.uncounted:
        return Counted()
    if turns is None or turns.ndim or turns < 0:
        return Counted(uncounted=(operation.name,))
    return Counted(body.flops * int(turns), body.uncounted)


def _constant(tensor: Any) -> Any:
    """Return the value of a constant; Keras writes the length of a sequence as a maximum."""
    if tensor.op.type != "Max":
        return tf.get_static_value(tensor)
    found = tf.get_static_value(tensor.op.inputs[0])
    return None if found is None else found.max()


def _is_used(operation: Any, graph: Any) -> bool:
    """Return whether it runs at all.

    The gradient of the images themselves is traced, used by nothing, and pruned by TensorFlow.
    """
    returned = {tensor.name for tensor in graph.outputs}
    return any(tensor.consumers() or tensor.name in returned for tensor in operation.outputs)


def _matmul(operation: Any) -> int:
    left, is_transposed = operation.inputs[0].shape, operation.get_attr("transpose_a")
    return 2 * operation.outputs[0].shape.num_elements() * left[0 if is_transposed else 1]


def _batch_matmul(operation: Any) -> int:
    left, is_transposed = operation.inputs[0].shape, operation.get_attr("adj_x")
    return 2 * operation.outputs[0].shape.num_elements() * left[-2 if is_transposed else -1]


def _convolution(operation: Any) -> int:
    return _per_position(operation.outputs[0], operation.inputs[1])


def _convolution_of_input(operation: Any) -> int:
    return _per_position(operation.inputs[2], operation.inputs[1])


def _convolution_of_filter(operation: Any) -> int:
    return _per_position(operation.inputs[2], operation.outputs[0])


def _per_position(output: Any, kernel: Any) -> int:
    height, width, channels, _ = kernel.shape
    return 2 * output.shape.num_elements() * height * width * channels


def _einsum(operation: Any) -> int:
    terms = operation.get_attr("equation").decode().partition("->")[0].split(",")
    sizes = {
        letter: size
        for term, given in zip(terms, operation.inputs, strict=True)
        for letter, size in zip(term, given.shape, strict=True)
    }
    return 2 * math.prod(sizes.values())


_COUNTED: dict[str, Callable[[Any], int]] = {
    "MatMul": _matmul,
    "BatchMatMul": _batch_matmul,
    "BatchMatMulV2": _batch_matmul,
    "BatchMatMulV3": _batch_matmul,
    "Conv2D": _convolution,
    "Conv2DBackpropInput": _convolution_of_input,
    "Conv2DBackpropFilter": _convolution_of_filter,
    "Einsum": _einsum,
}
