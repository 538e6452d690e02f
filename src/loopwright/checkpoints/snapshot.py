"""Snapshot: the state of a run at one moment, as it is saved and restored."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from loopwright.checkpoints import retention, tensors
from loopwright.checkpoints.manifest import Checkpoint
from loopwright.errors import CheckpointError, message
from loopwright.loop.schedule import Position, Read
from loopwright.task.variables import Row, shape_text, shortened


@dataclass(frozen=True)
class Snapshot:
    """The state of a run at one moment."""

    leg: int
    until: str
    position: Position
    scores: Mapping[str, Any]
    """The scores of the last validation in the epoch, perhaps some steps earlier."""
    first_step: int
    first_epoch: int
    data: Mapping[str, Any]
    batch: Any
    """The structure of batches; None without data, or if it cannot be written as JSON."""
    has_data: bool
    lengths: Mapping[str, int]
    """The lengths in bytes of the files that grow with the run, like `metrics.jsonl`."""
    passed_over: Sequence[int]
    """Steps whose batch was skipped."""
    tally: Mapping[str, Any]
    history: Mapping[str, Any]
    callbacks: Sequence[Mapping[str, Any]]
    plans: Mapping[str, Any]
    variables: Sequence[Mapping[str, Any]]
    environment: Mapping[str, Any]
    exact_until_step: int | None = None
    """The step after which the bits may differ from those of an uninterrupted run."""
    measured: Mapping[str, Any] | None = None
    """The scores of exactly this state; empty if it was not validated."""
    keep: Sequence[Mapping[str, Any]] | None = None
    """The `KeepBest` rules of the run; None: written by a version that did not record them."""
    declared: Mapping[str, Any] = field(default_factory=dict)
    """The settings of the program when the leg began; empty in checkpoints of earlier versions."""
    inexact: Mapping[str, Any] = field(default_factory=dict)
    """Why the run cannot be resumed exactly; empty if it can."""
    end: Mapping[str, Any] = field(default_factory=dict)
    """Of a leg that is over: `is_due`, while `on_train_end` is still to be called; then the names
    of variables that it has `changed`, whose values are in the file `end`, and `callbacks`."""
    tensors: Mapping[str, Any] = field(default_factory=dict)
    """Variables, what callbacks hold, the position in a stream; not read with the rest."""

    @property
    def step(self) -> int:
        """The number of steps of the whole run."""
        return self.first_step + self.position.step

    @property
    def has_end(self) -> bool:
        """Whether it holds the state that `fit` left behind, with averaged weights in place."""
        return "changed" in self.end

    def content(self) -> dict[str, Any]:
        """Return the snapshot without its tensors, as JSON values."""
        fields = asdict(replace(self, tensors={}))
        del fields["tensors"]
        place = fields.pop("position")
        return {**fields, "read": place.pop("read"), "place": place}


Saved = tuple[Checkpoint, Snapshot]
"""A checkpoint on disk, and its snapshot without tensors."""


def parsed(checkpoint: Checkpoint) -> Snapshot:
    """Return the snapshot in a checkpoint."""
    content = checkpoint.content
    try:
        fields = {n: v for n, v in content.items() if n not in ("place", "read")}
        position = Position(**content["place"], read=Read(**content["read"]))
        measured = retention.measured(content)
        return Snapshot(**{**fields, "position": position, "measured": measured})
    except (TypeError, KeyError) as error:
        raise CheckpointError(
            f"The checkpoint {checkpoint.path} is not the checkpoint of a training run.",
            expected="the fields that Trainer.fit writes",
            received=f"{type(error).__name__}: {error}",
            do="install the version of Loopwright that wrote it, restore a copy, or choose "
            "another run_dir",
        ) from None


def load(saved: Saved) -> Snapshot:
    """Return the snapshot of a checkpoint with its tensors."""
    checkpoint, snapshot = saved
    return replace(snapshot, tensors=tensors.read(checkpoint.path / "state"))


def load_end(saved: Saved) -> Snapshot:
    """Return the end of a leg as `fit` left it, with what callbacks did in `on_train_end`."""
    end, trained = saved[1].end, load(saved)
    changed = tensors.read_end(saved[0].path, end)
    callbacks = end.get("callbacks", trained.callbacks)
    return replace(trained, callbacks=callbacks, tensors={**trained.tensors, **changed})


def difference(saved: Sequence[Row], current: Sequence[Row]) -> str | None:
    """What is different between two tables of variables; None if nothing is.

    >>> row = {"name": "weight", "dtype": "float32", "shape": [2]}
    >>> text = difference([row], [{**row, "shape": [3]}])
    >>> print(text.splitlines()[2])
        weight: (2,) in the checkpoint, (3,) now
    """
    then, now = ({row["name"]: row for row in rows} for rows in (saved, current))
    both = [(name, then[name], now[name]) for name in now if name in then]

    def changed(what: str, text: Callable[[Any], str]) -> list[str]:
        return [
            f"{name}: {text(old[what])} in the checkpoint, {text(new[what])} now"
            for name, old, new in both
            if old[what] != new[what]
        ]

    def alone(rows: Mapping[str, Row], others: Mapping[str, Row]) -> list[str]:
        return [
            f"{name}: {row['dtype']} {shape_text(row['shape'])}"
            for name, row in rows.items()
            if name not in others
        ]

    differences = {
        "added since the checkpoint": alone(now, then),
        "in the checkpoint only": alone(then, now),
        "reshaped": changed("shape", shape_text),
        "retyped": changed("dtype", str),
    }
    lines = ["The task has other variables than the checkpoint."]
    for kind, texts in differences.items():
        lines += [f"  {kind}:", *(f"    {text}" for text in shortened(texts))] if texts else []
    if len(lines) == 1:
        return None
    return message(
        "\n".join(lines),
        do='restore the old structure; pass on_change="start_over" to start over; or choose '
        "another run_dir, with init_from= to take over the weights that match",
    )
