"""Which variables a step updates: none of those to train, or one by two optimizers."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from loopwright.compat import tensorflow_internals
from loopwright.compat.error_messages import shape_text, variable_name
from loopwright.compat.keras_optimizers import Applied
from loopwright.errors import message
from loopwright.guards.constants import uses_array
from loopwright.step_warnings import warn
from loopwright.task import variables as state
from loopwright.task.dataflow import flow

_MOST_NAMED = 3


def check_updated(title: str, task: Any, graph: Any) -> None:
    """Warn of a train step that changes no trainable variable, though there is an optimizer."""
    written = tensorflow_internals.written_handles(graph)
    parts = [part.value for part in state.parts(task)]
    optimizers = [part for part in parts if isinstance(part, keras.optimizers.Optimizer)]
    optimizers += [part.optimizer for part in parts if getattr(part, "optimizer", None) is not None]
    trainable = [v for part in parts for v in _trainable(part)]
    if written is None or not optimizers or not trainable:
        return
    handles = {id(own.handle) for v in trainable for own in state.replicas(v)}
    if not handles & written:
        warn(
            "no-update",
            message(
                f"{title} updates no trainable variable: the loss will stay the same.",
                expected="an update in each step",
                received=f"{len(trainable)} trainable variables and "
                f"{type(optimizers[0]).__name__}, which is not applied",
                do="call self.minimize(loss, model, optimizer, tape); in a Keras model "
                "self.optimizer.apply(gradients, self.trainable_variables)",
            ),
        )


def _trainable(part: Any) -> list[Any]:
    """The trainable `tf.Variable`s of a part of a task."""
    if isinstance(part, keras.Layer):
        return [variable.value for variable in part.trainable_variables]
    if isinstance(part, keras.Variable | tf.Variable) and part.trainable:
        return state.variables(part)
    return []


def check_optimizers(title: str, updates: Sequence[tuple[Any, Sequence[Any]]]) -> None:
    """Warn of a variable that two optimizers update in one step."""
    owners: dict[int, Any] = {}
    shared: dict[int, tuple[Any, Any, Any]] = {}
    for optimizer, variables in updates:
        for variable in variables:
            first = owners.setdefault(id(variable), optimizer)
            if first is not optimizer:
                shared.setdefault(id(variable), (variable, first, optimizer))
    if shared:
        variable, first, second = next(iter(shared.values()))
        names = [variable_name(v) for v, _, _ in shared.values()]
        more = len(names) - _MOST_NAMED
        listed = ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
        count = "a variable" if len(names) == 1 else f"{len(names)} variables"
        warn(
            "shared-variables",
            message(
                f"{title} updates {count} with two optimizers: {listed}.",
                expected="one optimizer for each variable",
                received=f"{type(first).__name__} and {type(second).__name__}",
                do="give each optimizer the variables of its own model only; for two losses add "
                "them up, and minimize their sum",
            ),
        )


def check_loss(
    title: str,
    outputs: Mapping[str, Any],
    graph: Any,
    placeholders: Sequence[Any],
    applied: Sequence[Applied],
) -> None:
    """Warn of a loss that stays the same: returned from no variable, or trained without a batch."""
    if not applied:
        return
    reported = outputs.get("loss") if isinstance(outputs, Mapping) else None
    tensors = [t for t in tf.nest.flatten(reported) if getattr(t, "graph", None) is graph]
    if tensors:
        weights = [t for op in graph.get_operations() for t in op.outputs if t.dtype == tf.resource]
        reached = flow(graph, weights)
        if not any(tensor.name in reached for tensor in tensors):
            warn(
                "constant-loss",
                message(
                    f"{title} returns a 'loss' that does not depend on any variable.",
                    expected="the loss from which the gradients were taken",
                    received="a tensor computed from the batch and constants only",
                    do='return {"loss": loss} with the loss that is minimized',
                ),
            )
    gradients = [
        g for update in applied for g in tf.nest.flatten(update.gradients) if g is not None
    ]
    gradients = [g.values if isinstance(g, tf.IndexedSlices) else g for g in gradients]
    if placeholders and all(getattr(g, "graph", None) is graph for g in gradients):
        reached = flow(graph, placeholders, through={op.type for op in graph.get_operations()})
        # A loss of weights alone may be meant; examples from outside hardly are.
        is_fixed = not any(gradient.name in reached for gradient in gradients)
        if is_fixed and uses_array(graph):
            warn(
                "constant-loss",
                message(
                    f"{title} minimizes a loss that does not depend on the batch: every step makes "
                    "the same update.",
                    expected="a loss computed from the step's `batch` argument",
                    received="gradients that do not depend on the batch",
                    do="take inputs and labels from `batch`, not from a variable outside the step",
                ),
            )


def check_reduced(title: str, gradients: Sequence[tuple[Any, Any]]) -> None:
    """Warn of a loss with one value for each example: its gradient is that of their sum."""
    for target, sources in gradients:
        kinds = keras.Variable | tf.Variable
        if not all(isinstance(source, kinds) for source in tf.nest.flatten(sources)):
            continue  # derivatives of a model's output by its input
        for loss in tf.nest.flatten(target):
            shape = tf.TensorShape(getattr(loss, "shape", []))
            if shape.rank and shape.num_elements() != 1:
                warn(
                    "unreduced-loss",
                    message(
                        f"{title} minimizes a loss of shape {shape_text(shape)}: its gradient is "
                        "that of the sum, and grows with the batch size.",
                        expected="one number",
                        received=f"a loss of shape {shape_text(shape)}",
                        do="reduce it first: tf.reduce_mean(loss)",
                    ),
                )
                return
