"""Logits and probabilities: what a loss expects, and what the model gives it."""

from typing import Any

import tensorflow as tf

from loopwright.compat.comparisons import Comparison
from loopwright.compat.error_messages import place_of, shape_text
from loopwright.errors import StepError, message
from loopwright.step_warnings import warn

_UNCHANGED = frozenset(
    [
        *("Cast", "EnsureShape", "ExpandDims", "Identity", "Reshape", "Squeeze", "StopGradient"),
        "Transpose",
    ]
)
"""Operations that leave each number as it is."""
_PROBABILITIES = frozenset(["Softmax", "Sigmoid"])
_ANY_NUMBER = frozenset(["BiasAdd", "Elu", "LeakyRelu", "Selu", "Tanh"])
"""Operations whose results may be negative: no probabilities."""
_PRODUCTS = frozenset(["BatchMatMulV2", "Conv2D", "Conv3D", "DepthwiseConv2dNative", "MatMul"])
_POSITIVE = frozenset(["Relu", "Relu6"])
_BINARY = frozenset(["binary_crossentropy", "binary_focal_crossentropy"])
_SPARSE = frozenset(["sparse_categorical_crossentropy"])
_CATEGORICAL = frozenset(["categorical_crossentropy", "categorical_focal_crossentropy"])


def source_of(tensor: Any) -> Any:
    """Return the operation that computed the numbers of a tensor; None if it is not symbolic."""
    op = getattr(tensor, "op", None) if tf.is_symbolic_tensor(tensor) else None
    while op is not None and op.type in _UNCHANGED:
        op = op.inputs[0].op
    return op


def are_probabilities(tensor: Any) -> bool:
    """Whether a tensor comes out of a softmax or a sigmoid."""
    op = source_of(tensor)
    return hasattr(tensor, "_keras_logits") or (op is not None and op.type in _PROBABILITIES)


def is_softmax(tensor: Any) -> bool:
    """Whether a tensor comes out of a softmax."""
    op = source_of(tensor)
    return op is not None and op.type == "Softmax"


def are_scores(tensor: Any) -> bool:
    """Whether a tensor comes straight from a layer without an activation that bounds it."""
    op = source_of(tensor)
    if op is None or hasattr(tensor, "_keras_logits"):
        return False
    if op.type in ("Add", "AddV2") and any(_is_weight(each) for each in op.inputs):
        op = next((source_of(each) for each in op.inputs if not _is_weight(each)), op)
    return op.type in _ANY_NUMBER or _is_product_with_weights(op)


def _is_product_with_weights(op: Any) -> bool:
    """A product of probabilities and weights may be probabilities again."""
    return (
        op.type in _PRODUCTS
        and any(_is_weight(each) for each in op.inputs)
        and not any(are_probabilities(each) for each in op.inputs)
    )


def _is_weight(tensor: Any) -> bool:
    op = source_of(tensor)
    return op is not None and op.type == "ReadVariableOp"


def check_logits(losses: list[Comparison]) -> None:
    """Warn of a loss that takes logits for probabilities, or the reverse; refuse a single class."""
    for loss in losses:
        if loss.function in _BINARY | _SPARSE | _CATEGORICAL:
            shape = getattr(loss.predictions, "shape", None)
            is_single = shape is not None and shape.rank is not None and shape[-1:] == [1]
            if is_single and loss.function not in _BINARY:
                raise StepError(_single_class(loss))
            _check_logits(loss)


def _check_logits(loss: Comparison) -> None:
    predictions, place = loss.predictions, place_of_call(loss)
    expects_logits = bool(loss.settings.get("from_logits", False))
    if expects_logits and are_probabilities(predictions):
        kind = _activation(predictions)
        warn(
            "logits",
            message(
                f"{loss.name} has from_logits=True, but the predictions are the output of a "
                f"{kind}{place}.",
                expected="logits: the output of a layer without an activation",
                received=f"predictions {shape_text(predictions.shape)} from a {kind}",
                do=f"remove the {kind} from the model, or from_logits=True from the loss",
            ),
        )
    is_relu = not expects_logits and loss.function not in _CATEGORICAL and _is_relu(predictions)
    if not expects_logits and (are_scores(predictions) or is_relu):
        kind = "sigmoid" if loss.function in _BINARY else "softmax"
        warn(
            "logits",
            message(
                f"{loss.name} expects probabilities, but the predictions are the output of a "
                f"layer without a {kind}{place}.",
                expected=f"probabilities, or {loss.name} with from_logits=True",
                received=f"predictions {shape_text(predictions.shape)}, as a layer gives them",
                do=f'pass from_logits=True to the loss, or end the model with activation="{kind}"',
            ),
        )


def _is_relu(tensor: Any) -> bool:
    op = source_of(tensor)
    return op is not None and op.type in _POSITIVE


def _activation(predictions: Any) -> str:
    op = source_of(predictions)
    return op.type.lower() if op is not None and op.type in _PROBABILITIES else "softmax or sigmoid"


def _single_class(loss: Comparison) -> str:
    return message(
        f"{loss.name} gets predictions for a single class{place_of_call(loss)}: the loss is always "
        "0, and nothing is trained.",
        expected="one prediction for each class, at least two",
        received=f"predictions {shape_text(loss.predictions.shape)}",
        do="for two classes use BinaryCrossentropy with Dense(1), or Dense(2) with this loss",
    )


def check_softmax(outputs: list[Any]) -> None:
    """Warn of a softmax over one number, which is always 1; `outputs` are those of models."""
    for output in outputs:
        if is_softmax(output) and (op := source_of(output)).inputs[0].shape[-1:] == [1]:
            warn(
                "constant-output",
                message(
                    "The model ends with a softmax over a single number: its output is always 1, "
                    "and nothing is trained.",
                    expected="a softmax over two classes or more",
                    received=f"a softmax over {shape_text(op.inputs[0].shape)}",
                    do='use activation="sigmoid" with one output',
                ),
            )
            return


def place_of_call(comparison: Comparison) -> str:
    """Return the line of the step that called a loss or metric; empty for a compiled one."""
    return next((place_of(op) for op in comparison.operations), "")
