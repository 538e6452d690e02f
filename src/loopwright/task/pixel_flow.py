"""Where the numbers of a batch go in a traced step: straight into weights, or scaled first."""

from collections import defaultdict
from typing import Any

import keras

from loopwright.task import variables
from loopwright.task.task import Task

_MOVES = frozenset(
    [
        "Cast",
        "ConcatV2",
        "ExpandDims",
        "GatherV2",
        "Identity",
        "IdentityN",
        "MirrorPad",
        "Pack",
        "Pad",
        "PadV2",
        "PreventGradient",
        "Reshape",
        "ResizeBilinear",
        "ResizeNearestNeighbor",
        "ReverseV2",
        "Slice",
        "Split",
        "SplitV",
        "Squeeze",
        "StopGradient",
        "StridedSlice",
        "Transpose",
        "Unpack",
    ]
)
"""Operations that leave the size of numbers as it is."""
_WEIGHS = frozenset(
    ["BatchMatMulV2", "Conv2D", "Conv3D", "DepthwiseConv2dNative", "Einsum", "MatMul"]
)
_LOOKS = frozenset(["Rank", "Shape", "ShapeN", "Size"])


def is_unscaled(graph: Any, leaf: int) -> bool:
    """Return whether leaf number `leaf` of the batch meets weights, and nothing else, as it is."""
    consumers = defaultdict[str, list[Any]](list)
    for node in graph.node:
        for name in node.input:
            consumers[name.removeprefix("^").partition(":")[0]].append(node)
    # Those of the batch come first; captured variables follow.
    placeholders = [node.name for node in graph.node if node.op == "Placeholder"]
    if leaf >= len(placeholders):
        return False
    reached, ahead, met = {placeholders[leaf]}, [placeholders[leaf]], set[str]()
    while ahead:
        for node in consumers[ahead.pop()]:
            if node.op not in _MOVES:
                met.add(node.op)
            elif node.name not in reached:
                reached.add(node.name)
                ahead.append(node.name)
    met -= _LOOKS
    # Gradients of a convolution read its input as well.
    return bool(met & _WEIGHS) and all(op in _WEIGHS or "Backprop" in op for op in met)


def has_normalization(task: Task) -> bool:
    """Return whether a layer of the task's models brings numbers to about the size of 1."""
    layers = [
        part.value for part in variables.all_parts(task) if isinstance(part.value, keras.Layer)
    ]
    names = [type(layer).__name__ for layer in layers]
    return any("Normalization" in name or "Rescaling" in name for name in names)
