"""What a step computes: nothing from its batch, strings as numbers, `(n,)` with `(n, 1)`."""

from collections.abc import Iterator

import tensorflow as tf

from loopwright.compat.error_messages import (
    is_written,
    place_of,
    shape_text,
    strings_for_numbers,
)
from loopwright.errors import message
from loopwright.guards.guard import Finding, Guard
from loopwright.guards.trace import StepTrace
from loopwright.step_warnings import declare
from loopwright.task.dataflow import ELEMENTWISE, flow

_BROADCAST = declare(
    "broadcast",
    "a line of the step combines `(n,)` and `(n, 1)`, which broadcasts to `(n, n)`",
)


def _unread_batch(trace: StepTrace) -> Iterator[Finding]:
    """A step that uses no part of its batch trains on something baked in at trace time."""
    if trace.batch and not any(tensor.consumers() for tensor in trace.batch):
        yield Finding(
            message(
                f"{trace.title} does not read its batch: every step would compute the same.",
                expected="a step that uses its `batch` argument",
                received="a step that uses none of its tensors (perhaps a variable from outside)",
                do="take inputs and labels from `batch`; for a step without data call "
                'fit(None, until="1000 steps")',
            )
        )


def _operations(trace: StepTrace) -> Iterator[Finding]:
    """Look at each operation once: strings cast to numbers, shapes that broadcast."""
    from_batch = flow(trace.graph, trace.batch)
    warned: set[str] = set()
    for op in trace.graph.get_operations():
        if op.type == "Cast" and op.inputs[0].dtype == tf.string:
            received = f"a tensor: string {shape_text(op.inputs[0].shape)}"
            yield Finding(strings_for_numbers(trace.title, place_of(op), received))
        if op.type in ELEMENTWISE and all(tensor.name in from_batch for tensor in op.inputs):
            a, b = (tensor.shape for tensor in op.inputs)
            spreads = (_spreads(a, b) or _spreads(b, a)) and is_written(op)
            if spreads and (place := place_of(op)) not in warned:
                warned.add(place)
                text = message(
                    f"{trace.title} combines shapes {shape_text(a)} and {shape_text(b)}, which "
                    f"broadcasts to (n, n){place}.",
                    do="give both the same shape, for instance labels[:, None] or "
                    "tf.squeeze(predictions, -1); if this is intended, use both axes: "
                    "a[:, None] and b[None, :]",
                )
                yield Finding(text, _BROADCAST)


def _spreads(flat: tf.TensorShape, column: tf.TensorShape) -> bool:
    """Return whether a batch of numbers meets a batch of columns."""
    return flat.rank == 1 and column.rank == 2 and column[1] == 1 and flat[0] == column[0] != 1


GUARDS = [
    Guard(_unread_batch, refuses=("does not read its batch",)),
    Guard(_operations, (_BROADCAST,), refuses=("takes strings for numbers",)),
]
