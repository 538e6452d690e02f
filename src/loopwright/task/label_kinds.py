"""Class numbers and one-hot labels: which of them a loss or a metric takes."""

from loopwright.compat.comparisons import Comparison
from loopwright.compat.error_messages import shape_text
from loopwright.errors import StepError, message
from loopwright.step_warnings import warn
from loopwright.task.logits import (
    are_probabilities,
    are_scores,
    is_softmax,
    place_of_call,
)

_SPARSE = ("sparse_categorical_accuracy", "sparse_top_k_categorical_accuracy")
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
            case name if name in _SPARSE and not metric.settings.get("from_sorted_ids"):
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
