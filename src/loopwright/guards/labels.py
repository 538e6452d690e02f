"""Class numbers and one-hot labels: which of them a loss or a metric takes."""

from typing import Any

import tensorflow as tf

from loopwright.compat.error_messages import place_of, shape_text
from loopwright.compat.keras_internals import Comparison, has_logits
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
    return has_logits(tensor) or (op is not None and op.type in _PROBABILITIES)


def is_softmax(tensor: Any) -> bool:
    """Whether a tensor comes out of a softmax."""
    op = source_of(tensor)
    return op is not None and op.type == "Softmax"


def are_scores(tensor: Any) -> bool:
    """Whether a tensor comes straight from a layer without an activation that bounds it."""
    op = source_of(tensor)
    if op is None or has_logits(tensor):
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


_SPARSE_METRICS = ("sparse_categorical_accuracy", "sparse_top_k_categorical_accuracy")
_ONE_HOT = ("categorical_accuracy", "top_k_categorical_accuracy")
_ONE_HOT_LOSSES = ("categorical_crossentropy", "categorical_focal_crossentropy")


def check_failed_loss(losses: list[Comparison], place: str) -> None:
    """Raise if the last loss failed since its labels are of the other kind."""
    if not losses or losses[-1].operations:
        return
    loss = losses[-1]
    if loss.function == "sparse_categorical_crossentropy" and _is_one_hot(loss):
        raise StepError(
            message(
                f"{loss.name} takes class numbers as labels, but they are one-hot{place}.",
                expected=f"class numbers of shape {shape_text(loss.predictions.shape[:-1])}",
                received=_received(loss),
                do="use CategoricalCrossentropy, or class numbers: tf.argmax(y, axis=-1)",
            )
        ) from None
    if loss.function in _ONE_HOT_LOSSES and _are_class_numbers(loss):
        classes = loss.predictions.shape[-1]
        raise StepError(
            message(
                f"{loss.name} takes one-hot labels, but they are class numbers{place}.",
                expected=f"one-hot labels of shape {shape_text(loss.predictions.shape)}",
                received=_received(loss),
                do="use SparseCategoricalCrossentropy, or one-hot labels: "
                f"keras.ops.one_hot(y, {classes})",
            )
        ) from None


def check_losses(losses: list[Comparison]) -> None:
    """Look for a loss that compares one label with the predictions of several outputs."""
    for loss in losses:
        if loss.function in _BY_ELEMENT and _has_shapes(loss) and _are_class_numbers(loss):
            text = message(
                f"{loss.name} compares one label with {loss.predictions.shape[-1]} "
                f"predictions{place_of_call(loss)}.",
                expected="labels and predictions of the same shape",
                received=_received(loss),
                do="reshape the labels or the model's last layer; for class numbers as labels use "
                "SparseCategoricalCrossentropy",
            )
            if loss.labels.shape.rank == loss.predictions.shape.rank:
                warn("broadcast", text)
            else:
                raise StepError(text)


_BY_ELEMENT = frozenset(
    [
        *("hinge", "huber", "kl_divergence", "log_cosh", "mean_absolute_error", "poisson"),
        *("mean_absolute_percentage_error", "mean_squared_error", "squared_hinge"),
        "mean_squared_logarithmic_error",
    ]
)


def check_metrics(metrics: list[Comparison]) -> None:
    """Warn of metrics of the wrong kind; refuse those whose labels can never be compared."""
    for metric in metrics:
        if not _has_shapes(metric):
            continue
        match metric.function:
            case name if name in _SPARSE_METRICS and not metric.settings.get("from_sorted_ids"):
                _check_sparse(metric)
            case name if name in _ONE_HOT:
                _check_one_hot(metric)
            case "accuracy":
                _check_accuracy(metric)
            case "binary_accuracy":
                _check_binary(metric)


def _check_sparse(metric: Comparison) -> None:
    if _is_single(metric):
        _warn_of_single_column(metric)
    elif _is_one_hot(metric):
        instead = metric.name.replace("Sparse", "").replace("sparse_", "")
        raise StepError(
            message(
                f"{metric.name} takes class numbers as labels, but they are "
                f"one-hot{place_of_call(metric)}.",
                expected=f"class numbers of shape {shape_text(metric.predictions.shape[:-1])}",
                received=_received(metric),
                do=f"use {instead}, or class numbers: tf.argmax(y, axis=-1)",
            )
        )


def _check_one_hot(metric: Comparison) -> None:
    if _is_single(metric):
        _warn_of_single_column(metric)
    elif _are_class_numbers(metric):
        prefix = "sparse_" if metric.name.islower() else "Sparse"
        warn(
            "wrong-metric",
            message(
                f"{metric.name} takes one-hot labels, but they are class "
                f"numbers{place_of_call(metric)}: its values are meaningless.",
                expected=f"one-hot labels of shape {shape_text(metric.predictions.shape)}",
                received=_received(metric),
                do=f'use {prefix}{metric.name}, or "accuracy", which chooses by the shapes',
            ),
        )


def _check_accuracy(metric: Comparison) -> None:
    if _are_class_numbers(metric):
        _refuse_class_numbers(metric, "compares labels and predictions for equality")
    elif are_probabilities(metric.predictions) or are_scores(metric.predictions):
        warn(
            "wrong-metric",
            message(
                f"{metric.name} compares labels and predictions for equality, but the predictions "
                f"are not classes{place_of_call(metric)}: its values are meaningless.",
                expected="predicted classes",
                received=_received(metric),
                do='use metrics=["accuracy"], which chooses by the shapes, BinaryAccuracy, '
                "CategoricalAccuracy or SparseCategoricalAccuracy; for regression use "
                "MeanAbsoluteError",
            ),
        )


def _check_binary(metric: Comparison) -> None:
    place, shape = place_of_call(metric), metric.predictions.shape
    if _are_class_numbers(metric):
        _refuse_class_numbers(metric, "compares each prediction with a label of 0 or 1")
    elif (shape[-1] or 0) > _TWO_CLASSES and is_softmax(metric.predictions):
        warn(
            "wrong-metric",
            message(
                f"{metric.name} counts each of {shape[-1]} classes separately{place}: it is high "
                "even where no class is predicted right.",
                expected="one prediction of 0 or 1, or independent ones",
                received=_received(metric),
                do='use CategoricalAccuracy, or "accuracy", which chooses by the shapes',
            ),
        )


_TWO_CLASSES = 2


def _refuse_class_numbers(metric: Comparison, what: str) -> None:
    raise StepError(
        message(
            f"{metric.name} {what}, but there are several predictions for each "
            f"label{place_of_call(metric)}.",
            expected="labels and predictions of the same shape",
            received=_received(metric),
            do='use SparseCategoricalAccuracy, or "accuracy", which chooses by the shapes',
        )
    )


def _warn_of_single_column(metric: Comparison) -> None:
    warn(
        "wrong-metric",
        message(
            f"{metric.name} gets predictions for a single class{place_of_call(metric)}: it takes "
            "class 0 for predicted in every example.",
            expected="one prediction for each class, at least two",
            received=_received(metric),
            do='use BinaryAccuracy, or "accuracy", which chooses by the shapes',
        ),
    )


def _has_shapes(comparison: Comparison) -> bool:
    shapes = [getattr(each, "shape", None) for each in (comparison.labels, comparison.predictions)]
    return all(getattr(shape, "rank", None) for shape in shapes)


def _is_single(metric: Comparison) -> bool:
    return metric.predictions.shape[-1:] == [1]


def _is_one_hot(comparison: Comparison) -> bool:
    """Whether there is a label for each class: it cannot be a class number."""
    y, p = comparison.labels.shape, comparison.predictions.shape
    return y.rank == p.rank and (p[-1] or 0) > 1 and p[-1] == y[-1]


def _are_class_numbers(comparison: Comparison) -> bool:
    """Whether there is one label for several predictions."""
    y, p = comparison.labels.shape, comparison.predictions.shape
    return (p[-1] or 0) > 1 and (y.rank == p.rank - 1 or (y.rank == p.rank and y[-1] == 1))


def _received(comparison: Comparison) -> str:
    kinds = [
        f"{name} {each.dtype.name} {shape_text(each.shape)}"
        for name, each in (("labels", comparison.labels), ("predictions", comparison.predictions))
    ]
    return ", ".join(kinds)
