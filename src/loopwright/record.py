"""What the files of a run tell: read for its report and its summary, nothing is changed."""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, final

from loopwright.checkpoint import Store
from loopwright.errors import CheckpointError, ConfigurationError, message
from loopwright.retention import Entry, KeepBest, best

_TRAINED = '{"event": "trained"'


@final
@dataclass(frozen=True)
class Record:
    """A run as its files tell of it; what is missing is empty."""

    directory: Path
    events: list[dict[str, Any]]

    @cached_property
    def status(self) -> dict[str, Any]:
        """Where the run is: `status`, `step`, `time`."""
        return self.json("status.json")

    @cached_property
    def finished(self) -> dict[str, Any]:
        """How the last leg ended."""
        return self._last("finished")

    @cached_property
    def last_epoch(self) -> dict[str, Any]:
        """The numbers of the last epoch, under the names that Keras gives them."""
        ended = self._last("epoch_ended")
        scores = {f"val_{name}": value for name, value in ended.get("validation", {}).items()}
        return {**ended.get("metrics", {}), **scores}

    @cached_property
    def checkpoints(self) -> list[Entry]:
        """The checkpoints that are whole, the oldest first."""
        try:
            found = Store(self.directory / "checkpoints").all()
        except CheckpointError:
            return []
        return [
            Entry(c.step, 0, False, {f"val_{n}": v for n, v in c.content["scores"].items()})
            for c in found
            if not c.damage
        ]

    @cached_property
    def best(self) -> tuple[int, float] | None:
        """The step of the best checkpoint, and its score by `val_loss`."""
        rule = KeepBest()
        ranked = best(self.checkpoints, rule)
        scores = {entry.step: entry.scores for entry in self.checkpoints}
        return (ranked[0], scores[ranked[0]][rule.metric]) if ranked else None

    @cached_property
    def shares(self) -> list[tuple[str, float]]:
        """Where the time of the last leg went, the largest share first."""
        spent = dict(self.finished.get("spent", {}))
        total = sum(spent.values())
        shares = [(name, seconds / total) for name, seconds in spent.items() if seconds > 0]
        return sorted(shares, key=lambda share: -share[1])

    def json(self, name: str) -> dict[str, Any]:
        """The content of a file; nothing if there is none, or half of one."""
        try:
            return json.loads((self.directory / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}

    def _last(self, event: str) -> dict[str, Any]:
        return next((e for e in reversed(self.events) if e["event"] == event), {})


def read_record(run_dir: Path) -> Record:
    """The record of a run; refused in words if there is none."""
    events = _events(run_dir)
    if not events:
        raise ConfigurationError(
            message(
                "There is nothing to report on.",
                expected="a run directory with a metrics.jsonl",
                received=str(run_dir),
                do="check the path, or train first",
            )
        )
    return Record(run_dir, events)


def _events(run_dir: Path) -> list[dict[str, Any]]:
    try:
        lines = (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    found = list[dict[str, Any]]()
    for line in lines:
        if line.startswith(_TRAINED):
            continue  # a week has a million of them, and epochs tell the same
        try:
            found.append(json.loads(line))
        except ValueError:
            break  # a line that is being written
    return found
