"""The runs in a directory, as far as their files tell: nothing is loaded, nothing is changed."""

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from loopwright import run_lock
from loopwright.checkpoint import Store
from loopwright.config import saved_in
from loopwright.errors import CheckpointError, ConfigurationError
from loopwright.manifest import Checkpoint
from loopwright.retention import Entry, KeepBest, best

Status = Literal["running", "complete", "interrupted", "failed", "broken off", "empty", "damaged"]

_ENDINGS: dict[str, Status] = {
    "complete": "complete",
    "stopped": "complete",
    "left": "complete",
    "skipped": "complete",
    "interrupted": "interrupted",
    "failed": "failed",
}
_LAST_BYTES = 65_536


@dataclass(frozen=True)
class Row:
    """A run in a line."""

    path: Path
    status: Status
    step: int | None
    best: float | None
    metric: str
    """By which the best checkpoint is the best."""
    seconds: float | None
    """For how long it has trained."""
    changed: float
    """When something was last saved in it, in seconds since 1970."""


SORT_KEYS = ("when", "name", "status", "step", "best", "duration")


def rows(directory: Path, metric: str | None = None, *, sort: str = "when") -> list[Row]:
    """Every run in a directory and below it, sorted; what is not known comes last."""
    found = [_row(path, metric) for path in _runs(directory)]

    def key(row: Row) -> tuple[bool, Any]:
        value = {
            "when": -row.changed,
            "name": str(row.path),
            "status": row.status,
            "step": row.step,
            "best": row.best,
            "duration": row.seconds,
        }[sort]
        return value is None, 0 if value is None else value

    return sorted(found, key=key)


def is_run(path: Path) -> bool:
    """Whether a directory is that of a run."""
    return (path / "checkpoints").is_dir() or (path / "config.yaml").is_file()


def _runs(directory: Path) -> list[Path]:
    if is_run(directory):
        return [directory]
    found = list[Path]()
    for path, names, _ in os.walk(directory):
        for name in sorted(names):
            if is_run(Path(path) / name):
                found.append(Path(path) / name)
        # A run holds no other runs, and three levels are enough for any order of theirs.
        is_deep = len(Path(path).relative_to(directory).parts) >= 2
        names[:] = [] if is_deep else [n for n in names if Path(path) / n not in found]
    return sorted(found)


def _row(path: Path, metric: str | None) -> Row:
    try:
        whole = Store(path / "checkpoints").all()
    except CheckpointError:
        whole = []
    usable = [found for found in whole if not found.damage and "place" in found.content]
    metric = metric or _metric(path)
    score = best_score(usable, metric)
    changed = max((p.stat().st_mtime for p in [path, *(c.path for c in whole)]), default=0.0)
    return Row(
        path=path,
        status=_status(path, whole, usable),
        step=max((found.step for found in usable), default=None),
        best=score,
        metric=metric,
        seconds=seconds(usable),
        changed=changed,
    )


def _metric(path: Path) -> str:
    """What the run itself calls the best."""
    with contextlib.suppress(ConfigurationError):
        config = saved_in(path)
        named = [keep.best for keep in config.keep if keep.best] if config else []
        return named[0] if named else KeepBest().metric
    return KeepBest().metric


def best_score(found: "list[Checkpoint]", metric: str) -> float | None:
    """The best value of a metric among checkpoints."""
    entries = [entry(checkpoint) for checkpoint in found]
    ranked = best(entries, KeepBest(metric))
    return next((e.scores[metric] for e in entries if ranked and e.step == ranked[0]), None)


def entry(found: Checkpoint) -> Entry:
    """What decides how good a checkpoint is."""
    content = found.content
    scores = {f"val_{name}": value for name, value in content.get("scores", {}).items()}
    return Entry(found.step, content["leg"], content["place"]["is_over"], scores)


def seconds(found: "list[Checkpoint]") -> float | None:
    """For how long a run has trained: the sum of its legs."""
    legs = dict[int, float]()
    for checkpoint in found:
        leg, spent = checkpoint.content["leg"], checkpoint.content["place"]["seconds"]
        legs[leg] = max(legs.get(leg, 0.0), spent)
    return sum(legs.values()) if legs else None


def _status(path: Path, whole: "list[Checkpoint]", usable: "list[Checkpoint]") -> Status:
    if run_lock.is_held(path / "lock"):
        return "running"
    if whole and not usable:
        return "damaged"
    ending = _last_ending(path / "metrics.jsonl")
    if ending is not None:
        return _ENDINGS.get(ending, "broken off")
    return "broken off" if usable else "empty"


def _last_ending(journal: Path) -> str | None:
    """How the last leg ended, by the last line of its journal."""
    try:
        with journal.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _LAST_BYTES))
            last = file.read().rstrip(b"\n").rpartition(b"\n")[2]
        line = json.loads(last)
        return str(line["reason"]) if line["event"] == "finished" else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
