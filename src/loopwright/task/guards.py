"""What can be seen to be wrong with a step before it has run, said in words."""

import contextlib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from loopwright.compat.error_messages import (
    is_written,
    place_of,
    shape_text,
    strings_for_numbers,
    variable_name,
)
from loopwright.errors import StepError, message
from loopwright.step_warnings import warn


def trainable(model_or_variables: Any) -> list[Any]:
    """The variables that an update is to change: of a layer, of several, or given as they are."""
    if isinstance(model_or_variables, keras.Layer):
        variables = list(model_or_variables.trainable_variables)
        name = f"The model {model_or_variables.name!r}"
    else:
        given = list(model_or_variables)
        layers = all(isinstance(item, keras.Layer) for item in given)
        variables = [v for m in given for v in m.trainable_variables] if layers else given
        name = "The list of variables given to minimize"
    if not variables:
        raise StepError(
            message(
                f"{name} has nothing to train.",
                expected="at least one trainable variable",
                received="none: no weights, not built, or trainable=False everywhere",
                do="call the model inside the tape before minimize, or set .trainable = True",
            )
        )
    return variables


def present(gradients: Sequence[Any], variables: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The pairs that have a gradient; names the variables that have none."""
    missing = [v for g, v in zip(gradients, variables, strict=True) if g is None]
    names = ", ".join(variable_name(v) for v in missing)
    if len(missing) == len(gradients):
        raise StepError(
            message(
                "No variable has a gradient: the loss does not depend on any of them.",
                expected="a loss computed from these variables, inside the GradientTape",
                received=f"None for every one of: {names}",
                do="compute predictions and loss inside `with tf.GradientTape() as tape:`, with "
                "TensorFlow functions (no .numpy(), argmax or rounding in between)",
            )
        )
    if missing:
        warn(
            "no-gradient",
            message(
                f"{len(missing)} of {len(gradients)} variables have no gradient, and stay as they "
                f"are: {names}.",
                do="leave them out of minimize if that is meant; else check that the loss uses "
                "what they compute",
            ),
        )
    pairs = [(g, v) for g, v in zip(gradients, variables, strict=True) if g is not None]
    return [g for g, _ in pairs], [v for _, v in pairs]


def check_reads_batch(step: str, placeholders: Sequence[Any]) -> None:
    """A step that uses no part of its batch trains on something baked in at trace time."""
    if placeholders and not any(tensor.consumers() for tensor in placeholders):
        raise StepError(
            message(
                f"{step} does not read its batch: every step would compute the same.",
                expected="a step that uses its `batch` argument",
                received="a step that uses none of its tensors (perhaps a variable from outside)",
                do="take inputs and labels from `batch`; for a step without data call "
                'fit(None, until="1000 steps")',
            )
        )


def check_model_losses(
    models: Sequence[Any], trained: Sequence[Any], was_asked: Callable[[Any], bool]
) -> None:
    """Warns of losses that layers added and the step never looked at."""
    trained_ids = {id(variable) for variable in trained}
    for model in models:
        is_trained = any(id(v) in trained_ids for v in model.trainable_variables)
        if not is_trained or was_asked(model):
            continue
        used = sum(len(layer.losses) for layer in getattr(model, "layers", ()) if was_asked(layer))
        count = len(model.losses) - used
        if count > 0:
            warn(
                "unused-losses",
                message(
                    f"The model {model.name!r} has {count} {'loss' if count == 1 else 'losses'} "
                    "of its own (regularisation, add_loss) that the step did not use.",
                    do="add them inside the tape: loss += sum(model.losses)",
                ),
            )


def check_operations(step: str, graph: Any, placeholders: Sequence[Any]) -> None:
    """Looks at what the step computes: strings taken for numbers, `(n,)` against `(n, 1)`."""
    from_batch = flow(graph, placeholders)
    warned: set[str] = set()
    for op in graph.get_operations():
        if op.type == "Cast" and op.inputs[0].dtype == tf.string:
            received = f"a tensor: string {shape_text(op.inputs[0].shape)}"
            raise StepError(strings_for_numbers(step, place_of(op), received))
        if op.type in _ELEMENTWISE and all(tensor.name in from_batch for tensor in op.inputs):
            a, b = (tensor.shape for tensor in op.inputs)
            spreads = (_spreads(a, b) or _spreads(b, a)) and is_written(op)
            if spreads and (place := place_of(op)) not in warned:
                warned.add(place)
                warn(
                    "broadcast",
                    message(
                        f"{step} combines shapes {shape_text(a)} and {shape_text(b)}, which "
                        f"broadcasts to (n, n){place}.",
                        do="give both the same shape, for instance labels[:, None] or "
                        "tf.squeeze(predictions, -1); if it is meant, use both axes: "
                        "a[:, None] and b[None, :]",
                    ),
                )


_ELEMENTWISE = frozenset(
    [
        "Add",
        "AddV2",
        "Sub",
        "Mul",
        "RealDiv",
        "DivNoNan",
        "SquaredDifference",
        "Maximum",
        "Minimum",
        "Pow",
        "Equal",
        "NotEqual",
        "Greater",
        "GreaterEqual",
        "Less",
        "LessEqual",
        "LogicalAnd",
        "LogicalOr",
    ]
)
_SIZES = frozenset(["Shape", "ShapeN", "Size", "Rank"])


# Some of their outputs may depend on what others of them do not.
_CALLS = frozenset(
    [
        "If",
        "StatelessIf",
        "Case",
        "StatelessCase",
        "While",
        "StatelessWhile",
        "PartitionedCall",
        "StatefulPartitionedCall",
    ]
)


def flow_in_sight(graph: Any, sources: Iterable[Any]) -> set[str]:
    """As `flow`, but not through branches, loops and functions, which mix what they are given."""
    kinds = {op.type for op in graph.get_operations()}
    return flow(graph, sources, through=kinds - _CALLS - _SIZES)


def flow(graph: Any, sources: Iterable[Any], through: Iterable[str] | None = None) -> set[str]:
    """The names of all tensors whose values, not just their sizes, depend on the sources."""
    reached = {tensor.name for tensor in sources}
    for op in graph.get_operations():
        passes = op.type not in _SIZES if through is None else op.type in through
        if passes and any(tensor.name in reached for tensor in op.inputs):
            reached |= {tensor.name for tensor in op.outputs}
    return reached


def _spreads(flat: tf.TensorShape, column: tf.TensorShape) -> bool:
    """Whether a batch of numbers meets a batch of columns."""
    return flat.rank == 1 and column.rank == 2 and column[1] == 1 and flat[0] == column[0] != 1


def check_labels(loss: Any, labels: Any, predictions: Any, output: str = "") -> None:
    """Refuses labels and predictions that a loss passed as `loss=` would only fit by broadcasting.

    Keras' own losses put a missing last axis right by themselves. Before a person's it is refused:
    Keras adds the axis to the labels of a function too, and one that allows for its absence, with
    `y - predictions[:, 0]`, would compute n x n differences.
    """
    y, p = getattr(labels, "shape", None), getattr(predictions, "shape", None)
    if y is None or p is None or y.rank is None or p.rank is None or _takes_class_numbers(loss):
        return
    longer, shorter = (p, y) if p.rank > y.rank else (y, p)
    missing_axis = longer.rank == shorter.rank + 1 and longer[-1] == 1
    if is_of_keras(loss):
        fits = missing_axis or _same(y, p)
    else:
        fits = not missing_axis and (_same(y, p) or not _meet_in(loss, y, p))
    if not fits:
        result = "(n, n)" if missing_axis and shorter.rank == 1 else "a larger shape"
        raise StepError(
            message(
                f"Labels and predictions{output} only fit by broadcasting to {result}.",
                expected="labels and predictions of the same shape",
                received=f"labels {shape_text(y)}, predictions {shape_text(p)}",
                do="reshape the labels (for instance y[:, None]) or the model's last layer"
                + ("" if missing_axis else "; for class numbers as labels use a sparse loss"),
            )
        )


def _takes_class_numbers(loss: Any) -> bool:
    """Losses of Keras whose labels have another shape than the predictions, and rightly so."""
    names = [loss, type(loss).__name__]
    names += [getattr(loss, attribute, "") for attribute in ("name", "__name__")]
    names += [getattr(getattr(loss, "fn", None), "__name__", "")]
    words = " ".join(name.lower() for name in names if isinstance(name, str))
    return loss in ("ce", "crossentropy") or bool(re.search("sparse|ctc|circle|generalized", words))


def is_of_keras(loss: Any) -> bool:
    """Return whether a loss comes with Keras: a name, an object or a function."""
    modules = (type(loss).__module__, getattr(loss, "__module__", None) or "")
    return isinstance(loss, str) or any(module.startswith("keras.") for module in modules)


def _same(y: tf.TensorShape, p: tf.TensorShape) -> bool:
    return y.rank == p.rank and y.is_compatible_with(p)


def _meet_in(loss: Any, y: tf.TensorShape, p: tf.TensorShape) -> bool:
    """Whether a person's loss combines the labels as they are with something of another shape.

    A function may take class numbers and look them up: only what it computes can tell.
    """
    if tf.executing_eagerly():
        return False
    function = loss.call if isinstance(loss, keras.losses.Loss) else loss
    specs = [tf.TensorSpec(shape, keras.config.floatx()) for shape in (y, p)]
    with contextlib.suppress(Exception):  # what is wrong otherwise shows when it is called
        graph = tf.function(function).get_concrete_function(*specs).graph
        labels = flow(graph, graph.inputs[:1], through=("Cast", "Identity"))
        predictions = flow(graph, graph.inputs[1:2])
        for op in graph.get_operations():
            if op.type in _ELEMENTWISE:
                a, b = op.inputs
                for one, other in ((a, b), (b, a)):
                    if one.name in labels and other.name in predictions:
                        return not _same(one.shape, other.shape)
    return False
