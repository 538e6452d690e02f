"""Snapshot: a moment of a run without its tensors, as JSON; and how far its leg was asked to go."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loopwright.checkpoints import retention
from loopwright.checkpoints.manifest import Checkpoint
from loopwright.checkpoints.manifest_fields import require_resumable
from loopwright.data.reader import Read
from loopwright.errors import CheckpointError, message
from loopwright.loop.schedule import Every, Place, every


@dataclass(frozen=True)
class Reached:
    """Where the newest checkpoint stands, and how far its leg was asked to go."""

    leg: int
    place: Place
    until: Every


@dataclass(frozen=True)
class Snapshot:
    """A moment of a run: everything but its tensors."""

    leg: int
    until: str
    place: Place
    scores: Mapping[str, Any]
    """Of the last validation in the epoch, perhaps some steps earlier."""
    first_step: int
    first_epoch: int
    read: Read
    """What the leg has read of its data."""
    data: Mapping[str, Any]
    batch: Any
    """What batches are like; None without data, or if that cannot be written down."""
    has_data: bool
    lengths: Mapping[str, int]
    """How many bytes the files had that grow with the run, like `metrics.jsonl`."""
    passed_over: Sequence[int]
    """Steps whose batch was left out."""
    tally: Mapping[str, Any]
    history: Mapping[str, Any]
    callbacks: Sequence[Mapping[str, Any]]
    plans: Mapping[str, Any]
    variables: Sequence[Mapping[str, Any]]
    environment: Mapping[str, Any]
    exact_until_step: int | None = None
    """Since when the bits may differ from those of a run that was never interrupted."""
    measured: Mapping[str, Any] | None = None
    """The scores of exactly this state; empty if it was not validated."""
    keep: Sequence[Mapping[str, Any]] | None = None
    """The `KeepBest` rules of the run; None: written by a version that did not record them."""
    declared: Mapping[str, Any] = field(default_factory=dict)
    """What the program asked for when the leg began; empty in checkpoints of earlier versions."""
    inexact: Mapping[str, Any] = field(default_factory=dict)
    """Why the run cannot be resumed exactly; empty if it can."""

    @property
    def step(self) -> int:
        """How many steps the whole run had done."""
        return self.first_step + self.place.step

    @property
    def reached(self) -> Reached:
        """How far the run had come."""
        return Reached(self.leg, self.place, every(self.until))


def parsed(checkpoint: Checkpoint) -> Snapshot:
    """Return the snapshot in a checkpoint."""
    content = checkpoint.content
    try:
        require_resumable(content)
        place, read = Place(**content["place"]), Read(**content["read"])
        measured = retention.measured(content)
        return Snapshot(**{**content, "place": place, "read": read, "measured": measured})
    except (TypeError, KeyError) as error:
        raise CheckpointError(
            message(
                f"The checkpoint {checkpoint.path} is not the checkpoint of a training run.",
                expected="the fields that Trainer.fit writes",
                received=f"{type(error).__name__}: {error}",
                do="install the Loopwright that made it, put a copy back, or choose another "
                "run_dir",
            )
        ) from None
