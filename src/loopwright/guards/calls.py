"""What a step called, and how: inference mode while training, swapped arguments, unrolled loops."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import keras

from loopwright.compat.keras_internals import Called, layers_in
from loopwright.compat.keras_optimizers import counter_in
from loopwright.errors import StepError, message
from loopwright.step_warnings import warn
from loopwright.task.dataflow import flow

MOST_UPDATES = 10
"""So many updates by one optimizer in a step are no inner loop any more, but epochs."""


def check_training(called: Called, trained: Sequence[Any]) -> None:
    """Warns of models that are trained, and were called without `training=True`."""
    trained_ids = {id(variable) for variable in trained}
    given = {id(layer) for layer, training in called.layers if training is not None}
    for layer in {id(layer): layer for layer, _ in called.layers}.values():
        is_trained = any(id(v) in trained_ids for v in layer.trainable_variables)
        idle = [inner.name for inner in _with_modes(layer)]
        if is_trained and idle and id(layer) not in given:
            warn(
                "inference-mode",
                message(
                    f"The step calls {layer.name!r} without training=True: dropout and batch norm "
                    "are in inference mode while training.",
                    received=f"inference mode for {', '.join(idle)}",
                    do="write model(x, training=True) in train_step, or False if that is meant",
                ),
            )


def _with_modes(layer: keras.Layer) -> list[keras.Layer]:
    """The layers in it, and itself, that do something else while training."""
    rates = ("rate", "stddev", "dropout", "recurrent_dropout")
    return [
        inner
        for inner in layers_in(layer)
        if inner.trainable
        and (
            isinstance(inner, keras.layers.BatchNormalization)
            or any(_is_positive(getattr(inner, rate, 0)) for rate in rates)
        )
    ]


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and value > 0


def check_loss_arguments(called: Called, graph: Any, placeholders: Sequence[Any]) -> None:
    """Warns of `loss(predictions, labels)`: Keras wants the labels first."""
    from_variables, from_batch = flow(graph, _resources(graph)), flow(graph, placeholders)
    for loss in called.losses:
        name, first, second = loss.name, loss.labels, loss.predictions
        # Inside a condition or a loop they belong to a graph of their own.
        if not all(getattr(tensor, "graph", None) is graph for tensor in (first, second)):
            continue
        is_label = second.name in from_batch and second.name not in from_variables
        if is_label and first.name in from_variables:
            warn(
                "swapped-arguments",
                message(
                    f"The arguments of {name} are swapped: predictions first, then labels.",
                    expected=f"{name}: labels first, then predictions",
                    received="a first argument that depends on weights, and a second that does not",
                    do="write loss(labels, predictions)",
                ),
            )


def check_updates(step: str, *seen: Sequence[tuple[Any, Sequence[Any]]], replicas: int = 1) -> None:
    """Warns of a Python loop over updates: it is unrolled while the step is traced.

    `seen` are lists of the same updates, each noted at another place: `minimize`, the optimizer.
    """
    counts = [Counter((id(o), *map(id, variables)) for o, variables in updates) for updates in seen]
    most = max((n for counted in counts for n in counted.values()), default=0) // replicas
    if most >= MOST_UPDATES:
        warn(
            "unrolled-loop",
            message(
                f"{step} makes the same update {most} times: a Python loop was unrolled {most} "
                "times at trace time.",
                expected="one update for each batch",
                received=f"{most} updates of the same variables by one optimizer",
                do=f"leave epochs to fit(..., epochs={most}); for several updates on one batch "
                f"write `for _ in tf.range({most}):`",
            ),
        )


def check_reported(
    step: str, outputs: Any, graph: Any, placeholders: Sequence[Any], optimizers: Sequence[Any]
) -> None:
    """Refuses as a loss what `optimizer.apply_gradients` returns: how many updates there were."""
    counts = [counter_in(graph, optimizer) for optimizer in optimizers]
    counts = [tensor for tensor in counts if tensor is not None]
    others = [*placeholders, *(t for t in _resources(graph) if all(t is not c for c in counts))]
    from_counts, from_others = flow(graph, counts), flow(graph, others)
    for name, (value, _) in outputs.items():
        if "loss" in name and value.name in from_counts and value.name not in from_others:
            raise StepError(
                message(
                    f"{step} returned {name!r}, which is not a loss but a number of updates.",
                    expected="a number computed from the batch",
                    received="what optimizer.apply_gradients returns: its count of updates",
                    do="return the loss from which the gradients were taken",
                )
            )


def _resources(graph: Any) -> list[Any]:
    """The variables, as the graph sees them."""
    return [t for op in graph.get_operations() for t in op.outputs if t.dtype == "resource"]


def check_configs(layers: Sequence[keras.Layer]) -> None:
    """Warns of layers that Keras could not save: their `get_config` names what is not there."""
    for inner, error in failing_configs(layers):
        # Whatever else it is, training does not need it.
        if isinstance(error, NameError | AttributeError):
            warn("unsavable-layer", unsavable(inner, error))


def failing_configs(layers: Sequence[keras.Layer]) -> list[tuple[keras.Layer, Exception]]:
    """Return the custom layers in `layers` whose `get_config` fails, each with its error."""
    found = {id(inner): inner for layer in layers for inner in layers_in(layer)}.values()
    failing = list[tuple[keras.Layer, Exception]]()
    for inner in found:
        if type(inner).__module__.startswith("keras."):
            continue  # a model of Keras fails where a layer in it does
        try:
            inner.get_config()
        except Exception as error:
            failing.append((inner, error))
    return failing


def unsavable(layer: keras.Layer, error: Exception) -> str:
    """Return the message about a layer whose `get_config` fails."""
    name = type(layer).__name__
    return message(
        f"{name}.get_config fails: {error}. Keras cannot save it.",
        expected="a get_config that names attributes of the layer",
        received=f"{type(error).__name__} in {name}.get_config",
        do="keep the arguments of __init__ as attributes, and return them: "
        '{**super().get_config(), "units": self.units}',
    )
