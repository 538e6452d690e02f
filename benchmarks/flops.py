"""Count the floating-point operations of a step of each workload: matrix products, convolutions.

Everything else (activations, normalization, the optimizer) is left out, as is usual: a share of the
machine's peak is then a share of what a matrix product of that size reaches at best.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from loopwright.compat.tensorflow_internals import inner_graphs


def of_workloads(keys: list[str]) -> dict[str, float]:
    """Return the operations of a step of each workload."""
    from benchmarks import models
    from benchmarks.workloads import WORKLOADS, by_hand

    found: dict[str, float] = {}
    for key in keys:
        work = WORKLOADS[key]()
        # The loop of an LSTM is unrolled to be counted: the same products, one by one.
        step = by_hand(lambda: models.lstm(unroll=True), "mse") if key == "lstm" else work.hand_step
        batch = [part[: work.batch_size] for part in (work.x, work.y) if part is not None]
        found[key] = of_step(step(), batch)
    return found


def of_step(step: Callable[..., Any], batch: Iterable[Any]) -> float:
    """Return the operations of one call of a step on this batch; its loops must be unrolled.

    >>> of_step(lambda x: x @ x, [tf.zeros((10, 10))])
    2000.0
    """
    shapes = [tf.TensorSpec(part.shape, tf.as_dtype(part.dtype)) for part in batch]
    return of_graph(tf.function(step).get_concrete_function(*shapes).graph)


def of_graph(graph: Any) -> float:
    """Return the operations of a traced function, those of the functions it calls included."""
    total = 0.0
    for operation in graph.get_operations():
        if operation.type not in _COUNTED:
            total += sum(map(of_graph, inner_graphs(operation)))
        elif _is_used(operation, graph):
            total += _COUNTED[operation.type](operation)
    return total


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
