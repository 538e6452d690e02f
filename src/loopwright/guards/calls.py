"""What a step calls, computes and returns: unused losses, swapped arguments, shapes."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from loopwright.compat.keras_internals import layers_in
from loopwright.compat.keras_optimizers import update_counter
from loopwright.compat.lines import is_written, place_of, shape_text
from loopwright.compat.step_errors import Failure, error_for
from loopwright.errors import message
from loopwright.guards.guard import Finding, StepTrace, refusal, warning
from loopwright.step_warnings import declare
from loopwright.task import variables
from loopwright.task.dataflow import ELEMENTWISE, flow, resources

_UNUSED_LOSSES = warning("unused-losses", "losses added by layers are not part of the loss")
_SWAPPED_ARGUMENTS = warning("swapped-arguments", "a loss gets predictions first, labels second")
_UNSAVABLE_LAYER = declare("unsavable-layer", "`get_config` of a layer fails")
_BROADCAST = warning(
    "broadcast",
    "a line of the step combines `(n,)` and `(n, 1)`, which broadcasts to `(n, n)`",
)


def count_unused_losses(
    models: Sequence[Any], trained: Sequence[Any], was_asked: Callable[[Any], bool]
) -> Iterator[tuple[str, int]]:
    """Yield the models that are trained, and how many losses of their layers nothing asked for.

    Called inside the trace: Keras computes losses of weights when it is asked for them.
    """
    trained_ids = {id(variable) for variable in trained}
    for model in models:
        is_trained = any(id(v) in trained_ids for v in model.trainable_variables)
        if not is_trained or was_asked(model):
            continue
        used = sum(len(layer.losses) for layer in getattr(model, "layers", ()) if was_asked(layer))
        count = len(model.losses) - used
        if count > 0:
            yield model.name, count


def _unused_losses(trace: StepTrace) -> Iterator[Finding]:
    for name, count in trace.observed.unused_losses:
        yield _UNUSED_LOSSES(
            f"The model {name!r} has {count} {'loss' if count == 1 else 'losses'} "
            "of its own (regularisation, add_loss) that the step did not use.",
            do="add them inside the tape: loss += sum(model.losses)",
        )


def swapped_arguments(trace: StepTrace) -> Iterator[Finding]:
    """Keras losses take the labels first; those of the user may take two predictions."""
    graph = trace.graph
    from_variables, from_batch = flow(graph, resources(graph)), flow(graph, trace.batch)
    for loss in [called for called in trace.observed.called.losses if called.function]:
        name, first, second = loss.name, loss.labels, loss.predictions
        # Inside a condition or a loop they belong to a graph of their own.
        if not all(getattr(tensor, "graph", None) is graph for tensor in (first, second)):
            continue
        is_label = second.name in from_batch and second.name not in from_variables
        if is_label and first.name in from_variables:
            yield _SWAPPED_ARGUMENTS(
                f"The arguments of {name} are swapped: predictions first, then labels.",
                expected=f"{name}: labels first, then predictions",
                received="a first argument that depends on weights, and a second that does not",
                do="write loss(labels, predictions)",
            )


def _counted_updates(trace: StepTrace) -> Iterator[Finding]:
    """`optimizer.apply_gradients` returns how many updates there were, which is no loss."""
    if trace.is_compiled or trace.replicas > 1:
        return  # a mirrored count has no single place in the graph
    graph, optimizers = trace.graph, variables.of_kind(keras.optimizers.Optimizer, trace.task)
    handles = {id(update_counter(optimizer).value.handle) for optimizer in optimizers}
    counts = [inner for outer, inner in graph.captures if id(outer) in handles]
    others = [*trace.batch, *(t for t in resources(graph) if all(t is not c for c in counts))]
    from_counts, from_others = flow(graph, counts), flow(graph, others)
    for name, (value, _) in trace.outputs.items():
        if "loss" in name and value.name in from_counts and value.name not in from_others:
            yield refusal(
                f"{trace.title} returned {name!r}, which is not a loss but a number of updates.",
                expected="a number computed from the batch",
                received="what optimizer.apply_gradients returns: its count of updates",
                do="return the loss from which the gradients were taken",
            )


def _unsavable_layers(trace: StepTrace) -> Iterator[Finding]:
    # Any other error may be intended: training does not need the config.
    texts = [
        unsavable(layer, error)
        for layer, error in failing_configs(variables.of_kind(keras.Layer, trace.task))
        if isinstance(error, NameError | AttributeError)
    ]
    yield from (Finding(text, _UNSAVABLE_LAYER) for text in dict.fromkeys(texts))


def failing_configs(layers: Sequence[keras.Layer]) -> list[tuple[keras.Layer, Exception]]:
    """Return the custom layers in `layers` whose `get_config` fails, each with its error."""
    found = {id(inner): inner for layer in layers for inner in layers_in(layer)}.values()
    failing = list[tuple[keras.Layer, Exception]]()
    for inner in found:
        if type(inner).__module__.startswith("keras."):
            continue  # a Keras model fails where a layer in it does
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


def _unread_batch(trace: StepTrace) -> Iterator[Finding]:
    """A step that uses no part of its batch trains on something baked in at trace time."""
    if trace.batch and not any(tensor.consumers() for tensor in trace.batch):
        yield refusal(
            f"{trace.title} does not read its batch: every step would compute the same.",
            expected="a step that uses its `batch` argument",
            received="a step that uses none of its tensors (perhaps a variable from outside)",
            do="take inputs and labels from `batch`; for a step without data call "
            'fit(None, until="1000 steps")',
        )


def _operations(trace: StepTrace) -> Iterator[Finding]:
    """Look at each operation once: strings cast to numbers, shapes that broadcast."""
    from_batch = flow(trace.graph, trace.batch)
    warned: set[str] = set()
    for op in trace.graph.get_operations():
        if op.type == "Cast" and op.inputs[0].dtype == tf.string:
            received = f"a tensor: string {shape_text(op.inputs[0].shape)}"
            error = error_for(Failure("strings"), trace.title, place_of(op), batch=received)
            yield Finding(str(error))
        if op.type in ELEMENTWISE and all(tensor.name in from_batch for tensor in op.inputs):
            a, b = (tensor.shape for tensor in op.inputs)
            spreads = (_spreads(a, b) or _spreads(b, a)) and is_written(op)
            if spreads and (place := place_of(op)) not in warned:
                warned.add(place)
                yield _BROADCAST(
                    f"{trace.title} combines shapes {shape_text(a)} and {shape_text(b)}, which "
                    f"broadcasts to (n, n){place}.",
                    do="give both the same shape, for instance labels[:, None] or "
                    "tf.squeeze(predictions, -1); if this is intended, use both axes: "
                    "a[:, None] and b[None, :]",
                )


def _spreads(flat: tf.TensorShape, column: tf.TensorShape) -> bool:
    """Return whether a batch of numbers meets a batch of columns."""
    return flat.rank == 1 and column.rank == 2 and column[1] == 1 and flat[0] == column[0] != 1


GUARDS = [_unused_losses, swapped_arguments, _unread_batch, _operations]
TRAIN_GUARDS = [_counted_updates, _unsavable_layers]
