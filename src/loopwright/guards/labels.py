"""Labels and predictions that do not fit their loss or metric: logits, one-hot, classes."""

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from loopwright.compat.keras_internals import LossCall, has_logits
from loopwright.compat.lines import place_in, place_of, shape_text
from loopwright.guards.guard import Finding, Kind, StepTrace, refusal, warning

_BROADCAST = warning("broadcast", "a loss compares one label with several outputs")
_LOGITS = warning("logits", "a loss takes logits for probabilities, or the reverse")
_CONSTANT_OUTPUT = warning("constant-output", "a model ends with a softmax over a single number")
_WRONG_METRIC = warning("wrong-metric", "a metric does not fit its labels or predictions")

_UNCHANGED = frozenset(
    [
        *("Cast", "EnsureShape", "ExpandDims", "Identity", "Reshape", "Squeeze", "StopGradient"),
        "Transpose",
    ]
)
"""Operations that leave each number as it is."""
_PROBABILITIES = frozenset(["Softmax", "Sigmoid"])
_ANY_NUMBER = frozenset(["BiasAdd", "Elu", "LeakyRelu", "Selu", "Tanh"])
"""Operations whose results may be negative, so that they are no probabilities."""
_PRODUCTS = frozenset(["BatchMatMulV2", "Conv2D", "Conv3D", "DepthwiseConv2dNative", "MatMul"])
_POSITIVE = frozenset(["Relu", "Relu6"])
_BINARY = frozenset(["binary_crossentropy", "binary_focal_crossentropy"])
_SPARSE = frozenset(["sparse_categorical_crossentropy"])
_CATEGORICAL = frozenset(["categorical_crossentropy", "categorical_focal_crossentropy"])


def _source_of(tensor: Any) -> Any:
    """Return the operation that computed the numbers of a tensor; None if it is not symbolic."""
    op = getattr(tensor, "op", None) if tf.is_symbolic_tensor(tensor) else None
    while op is not None and op.type in _UNCHANGED:
        op = op.inputs[0].op
    return op


def _kind_of(tensor: Any) -> str:
    """Return the type of the operation that computed a tensor; empty if it is not symbolic."""
    op = _source_of(tensor)
    return "" if op is None else op.type


def _are_probabilities(tensor: Any) -> bool:
    """Return whether a tensor comes out of a softmax or a sigmoid."""
    return has_logits(tensor) or _kind_of(tensor) in _PROBABILITIES


def _are_scores(tensor: Any) -> bool:
    """Return whether a tensor comes straight from a layer without an activation that bounds it."""
    op = _source_of(tensor)
    if op is None or has_logits(tensor):
        return False
    if op.type in ("Add", "AddV2") and any(map(_is_weight, op.inputs)):
        op = next((_source_of(each) for each in op.inputs if not _is_weight(each)), op)
    # A product of probabilities and weights may be probabilities again.
    is_product = op.type in _PRODUCTS and any(map(_is_weight, op.inputs))
    is_product = is_product and not any(map(_are_probabilities, op.inputs))
    return op.type in _ANY_NUMBER or is_product


def _is_weight(tensor: Any) -> bool:
    return _kind_of(tensor) == "ReadVariableOp"


def _logits(trace: StepTrace) -> Iterator[Finding]:
    known = _BINARY | _SPARSE | _CATEGORICAL
    for loss in (called for called in trace.observed.called.losses if called.function in known):
        predictions, kind = loss.predictions, _kind_of(loss.predictions)
        is_binary = loss.function in _BINARY
        if not is_binary and _is_single(loss):
            yield _finding(
                loss,
                "gets predictions for a single class",
                ": the loss is always 0, and nothing is trained",
                expected="one prediction for each class, at least two",
                do="for two classes use BinaryCrossentropy with Dense(1), or Dense(2) with "
                "this loss",
            )
        is_relu = loss.function not in _CATEGORICAL and kind in _POSITIVE
        if loss.settings.get("from_logits", False):
            if _are_probabilities(predictions):
                last = kind.lower() if kind in _PROBABILITIES else "softmax or sigmoid"
                yield _finding(
                    loss,
                    f"has from_logits=True, but the predictions are the output of a {last}",
                    expected="logits: the output of a layer without an activation",
                    do=f"remove the {last} from the model, or from_logits=True from the loss",
                    kind=_LOGITS,
                )
        elif _are_scores(predictions) or is_relu:
            last = "sigmoid" if is_binary else "softmax"
            yield _finding(
                loss,
                f"expects probabilities, but the predictions come from a layer without a {last}",
                expected=f"probabilities, or {loss.name} with from_logits=True",
                do=f'pass from_logits=True to the loss, or end the model with activation="{last}"',
                kind=_LOGITS,
            )


def _constant_softmax(trace: StepTrace) -> Iterator[Finding]:
    """A softmax over one number is always 1."""
    for output in tf.nest.flatten(trace.observed.called.outputs):
        op = _source_of(output)
        if op is not None and op.type == "Softmax" and op.inputs[0].shape[-1:] == [1]:
            yield _CONSTANT_OUTPUT(
                "The model ends with a softmax over a single number: its output is always 1, "
                "and nothing is trained.",
                expected="a softmax over two classes or more",
                received=f"a softmax over {shape_text(op.inputs[0].shape)}",
                do='use activation="sigmoid" with one output',
            )
            return


def _finding(
    comparison: LossCall,
    what: str,
    so: str = "",
    *,
    expected: str,
    do: str,
    place: str | None = None,
    kind: Kind = refusal,
) -> Finding:
    """Return what is wrong with a call of a loss or metric, with the line of the step that made it.

    A compiled loss has no such line.
    """
    if place is None:
        place = next(map(place_of, comparison.operations), "")
    received = _received(comparison)
    what = f"{comparison.name} {what}{place}{so}."
    return kind(what, expected=expected, received=received, do=do)


_SPARSE_METRICS = ("sparse_categorical_accuracy", "sparse_top_k_categorical_accuracy")
_ONE_HOT_METRICS = ("categorical_accuracy", "top_k_categorical_accuracy")
_BY_ELEMENT = frozenset(
    [
        *("hinge", "huber", "kl_divergence", "log_cosh", "mean_absolute_error", "poisson"),
        *("mean_absolute_percentage_error", "mean_squared_error", "squared_hinge"),
        "mean_squared_logarithmic_error",
    ]
)


def failed_loss(trace: StepTrace) -> Iterator[Finding]:
    """The last loss failed because its labels are of the other kind."""
    losses = trace.observed.called.losses
    if trace.error is None or not losses or losses[-1].operations:
        return
    loss, place = losses[-1], place_in(trace.error)
    if loss.function in _SPARSE and _is_one_hot(loss):
        yield _finding(
            loss,
            "takes class numbers as labels, but they are one-hot",
            expected=f"class numbers of shape {shape_text(loss.predictions.shape[:-1])}",
            do="use CategoricalCrossentropy, or class numbers: tf.argmax(y, axis=-1)",
            place=place,
        )
    if loss.function in _CATEGORICAL and _are_class_numbers(loss):
        yield _finding(
            loss,
            "takes one-hot labels, but they are class numbers",
            expected=f"one-hot labels of shape {shape_text(loss.predictions.shape)}",
            do="use SparseCategoricalCrossentropy, or one-hot labels: "
            f"keras.ops.one_hot(y, {loss.predictions.shape[-1]})",
            place=place,
        )


def _losses(trace: StepTrace) -> Iterator[Finding]:
    """A loss by element compares one label with the predictions of several outputs."""
    for loss in trace.observed.called.losses:
        if loss.function in _BY_ELEMENT and _has_shapes(loss) and _are_class_numbers(loss):
            has_equal_ranks = loss.labels.shape.rank == loss.predictions.shape.rank
            yield _finding(
                loss,
                f"compares one label with {loss.predictions.shape[-1]} predictions",
                expected="labels and predictions of the same shape",
                do="reshape the labels or the model's last layer; for class numbers as labels use "
                "SparseCategoricalCrossentropy",
                kind=_BROADCAST if has_equal_ranks else refusal,
            )


def _metrics(trace: StepTrace) -> Iterator[Finding]:
    for metric in trace.observed.called.metrics:
        if not _has_shapes(metric):
            continue
        match metric.function:
            case name if name in _SPARSE_METRICS and not metric.settings.get("from_sorted_ids"):
                yield from _class_metric(metric, is_sparse=True)
            case name if name in _ONE_HOT_METRICS:
                yield from _class_metric(metric, is_sparse=False)
            case "accuracy":
                yield from _accuracy(metric)
            case "binary_accuracy":
                yield from _binary_accuracy(metric)


def _class_metric(metric: LossCall, *, is_sparse: bool) -> Iterator[Finding]:
    """A metric that takes class numbers (`is_sparse`) or one-hot labels."""
    if _is_single(metric):
        yield _finding(
            metric,
            "gets predictions for a single class",
            ": it takes class 0 for predicted in every example",
            expected="one prediction for each class, at least two",
            do=f"use BinaryAccuracy, or {_BY_SHAPES}",
            kind=_WRONG_METRIC,
        )
    elif is_sparse and _is_one_hot(metric):
        instead = metric.name.replace("Sparse", "").replace("sparse_", "")
        yield _finding(
            metric,
            "takes class numbers as labels, but they are one-hot",
            expected=f"class numbers of shape {shape_text(metric.predictions.shape[:-1])}",
            do=f"use {instead}, or class numbers: tf.argmax(y, axis=-1)",
        )
    elif not is_sparse and _are_class_numbers(metric):
        prefix = "sparse_" if metric.name.islower() else "Sparse"
        yield _finding(
            metric,
            "takes one-hot labels, but they are class numbers",
            ": its values are meaningless",
            expected=f"one-hot labels of shape {shape_text(metric.predictions.shape)}",
            do=f"use {prefix}{metric.name}, or {_BY_SHAPES}",
            kind=_WRONG_METRIC,
        )


def _accuracy(metric: LossCall) -> Iterator[Finding]:
    predictions = metric.predictions
    if _are_class_numbers(metric):
        yield _class_numbers(metric, "compares labels and predictions for equality")
    elif _are_probabilities(predictions) or _are_scores(predictions):
        yield _finding(
            metric,
            "compares labels and predictions for equality, but the predictions are not classes",
            ": its values are meaningless",
            expected="predicted classes",
            do='use metrics=["accuracy"], which chooses by the shapes, BinaryAccuracy, '
            "CategoricalAccuracy or SparseCategoricalAccuracy; for regression use "
            "MeanAbsoluteError",
            kind=_WRONG_METRIC,
        )


def _binary_accuracy(metric: LossCall) -> Iterator[Finding]:
    classes = metric.predictions.shape[-1] or 0
    if _are_class_numbers(metric):
        yield _class_numbers(metric, "compares each prediction with a label of 0 or 1")
    elif classes > 2 and _kind_of(metric.predictions) == "Softmax":
        yield _finding(
            metric,
            f"counts each of {classes} classes separately",
            ": it is high even where no class is predicted right",
            expected="one prediction of 0 or 1, or independent ones",
            do=f"use CategoricalAccuracy, or {_BY_SHAPES}",
            kind=_WRONG_METRIC,
        )


def _class_numbers(metric: LossCall, what: str) -> Finding:
    return _finding(
        metric,
        f"{what}, but there are several predictions for each label",
        expected="labels and predictions of the same shape",
        do=f"use SparseCategoricalAccuracy, or {_BY_SHAPES}",
    )


_BY_SHAPES = '"accuracy", which chooses by the shapes'


def _has_shapes(comparison: LossCall) -> bool:
    shapes = [getattr(each, "shape", None) for each in (comparison.labels, comparison.predictions)]
    return all(getattr(shape, "rank", None) for shape in shapes)


def _is_single(comparison: LossCall) -> bool:
    shape = getattr(comparison.predictions, "shape", None)
    return shape is not None and shape.rank is not None and shape[-1:] == [1]


def _is_one_hot(comparison: LossCall) -> bool:
    """Return whether there is a label for each class: it cannot be a class number."""
    y, p = comparison.labels.shape, comparison.predictions.shape
    return y.rank == p.rank and (p[-1] or 0) > 1 and p[-1] == y[-1]


def _are_class_numbers(comparison: LossCall) -> bool:
    """Return whether there is one label for several predictions."""
    y, p = comparison.labels.shape, comparison.predictions.shape
    return (p[-1] or 0) > 1 and (y.rank == p.rank - 1 or (y.rank == p.rank and y[-1] == 1))


def _received(comparison: LossCall) -> str:
    pair = {"labels": comparison.labels, "predictions": comparison.predictions}
    kinds = [
        f"{name} {tf.as_dtype(value.dtype).name} {shape_text(tf.TensorShape(value.shape))}"
        for name, value in pair.items()
        if hasattr(value, "dtype")
    ]
    return ", ".join(kinds)


GUARDS = [_losses, _logits, _constant_softmax, _metrics]
