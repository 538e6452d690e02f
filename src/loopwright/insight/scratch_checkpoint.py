"""A checkpoint written to a scratch directory, restored, and compared bit by bit."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loopwright import disk
from loopwright.checkpoints import tensors
from loopwright.checkpoints.run_directory import Run
from loopwright.errors import CheckpointError, message
from loopwright.exactness import Exact
from loopwright.fit.leg import Leg
from loopwright.fit.moment import put_back, require_resumable, taken
from loopwright.fit.request import accepted_data
from loopwright.fit.saved_leg import on_disk
from loopwright.loop.schedule import Place
from loopwright.task import variables


@dataclass(frozen=True)
class Written:
    """A checkpoint that was written, restored and compared."""

    bytes: int
    variables: int
    repeats: bool | None = None
    """Whether the step after it had the same bits again; None: this was not tried."""
    reasons: tuple[str, ...] = ()
    """Why the run cannot be resumed exactly."""

    def __str__(self) -> str:
        text = f"written, restored, {self.variables} variables compared: the same bits"
        if self.repeats:
            text += "; so has the next step, run again"
        return text


def resumed(leg: Leg, run: Run, number: int, place: Place, exact: Exact) -> Written:
    """Save a leg as `fit` does, run a step, restore the leg, and run the step again.

    Where the data can only be read on, the step is not run again.
    """
    data = accepted_data(leg.request, exact)
    named, reasons = require_resumable(leg, exact)
    leg.inexact = data.with_reasons(reasons)
    leg.reasons = leg.inexact.reasons
    with tempfile.TemporaryDirectory(prefix="loopwright-") as directory:
        aside = Run(directory, run.rules)
        read, position = leg.stepper.position()
        held = tensors.snapshot(named) | leg.bridge.tensors() | position
        snapshot = taken(leg, number, place, {}, read, named, None, {}, {}, run.rules)
        with aside.opened(), aside.written():
            aside.save(snapshot, held, {}, sync=_nothing)
            aside.wait()
            found = aside.newest()
        if found is None:  # it was verified while it was read
            raise CheckpointError("The checkpoint that was just written is missing.")
        size = disk.bytes_in(found[0].path)
        before = tensors.snapshot(named)
        _next_step(leg, place)
        after = tensors.snapshot(named)
        saved, read_back = on_disk(found)
        leg.read_again(saved.read)
        put_back(leg, named, saved, read_back, exact)
        require_same_bits(before, tensors.snapshot(named))
        if leg.inexact:
            return Written(size, len(named), reasons=tuple(leg.reasons))
        _next_step(leg, place)
        repeats = not differing(after, tensors.snapshot(named))
    return Written(size, len(named), repeats)


def of_state(leg: Leg) -> Written:
    """Write the variables of a leg that has no run directory, read them back and compare."""
    before = tensors.snapshot(variables.named(leg.parts.task))
    with tempfile.TemporaryDirectory(prefix="loopwright-") as directory:
        tensors.write(Path(directory) / "state", before)
        size = disk.bytes_in(Path(directory))
        require_same_bits(before, tensors.read(Path(directory) / "state"))
    return Written(size, len(before))


def differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the names of tensors that are not the same to the bit.

    >>> import tensorflow as tf
    >>> differing({"a": tf.constant([0.0])}, {"a": tf.constant([-0.0])})
    ['a']
    """
    return [
        name
        for name, value in before.items()
        if name not in after or tensors.digest({"": value}) != tensors.digest({"": after[name]})
    ]


def require_same_bits(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Raise if a variable that was written is not read back as it was."""
    names = differing(before, after)
    if names:
        raise CheckpointError(
            message(
                "A checkpoint did not restore the state that it was written from.",
                expected="the same bits in every variable",
                received=f"others in {', '.join(variables.shortened(names))}",
                do="check the disk of the temporary directory (TMPDIR); if it is sound, report "
                "this with the task",
            )
        )


def _next_step(leg: Leg, place: Place) -> None:
    if place.step_in_epoch == 0:
        leg.stepper.start_epoch()
    leg.stepper.run_steps(1)


def _nothing() -> None:
    """Flush no files: this checkpoint refers to none."""
