"""What can be seen to be wrong with a step before it has run, said in words."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from loopwright.compat.error_messages import (
    is_written,
    place_of,
    shape_text,
    strings_for_numbers,
)
from loopwright.errors import StepError, message
from loopwright.step_warnings import warn
from loopwright.task.dataflow import ELEMENTWISE, flow


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
        if op.type in ELEMENTWISE and all(tensor.name in from_batch for tensor in op.inputs):
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


def _spreads(flat: tf.TensorShape, column: tf.TensorShape) -> bool:
    """Whether a batch of numbers meets a batch of columns."""
    return flat.rank == 1 and column.rank == 2 and column[1] == 1 and flat[0] == column[0] != 1
