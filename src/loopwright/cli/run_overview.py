"""Summarize runs from their files, without loading or changing anything."""

import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from loopwright import disk
from loopwright.checkpoints import lock
from loopwright.checkpoints.manifest import Checkpoint, in_run
from loopwright.checkpoints.retention import KeepBest, Mode, best_first, best_of
from loopwright.config.export_formats import KINDS
from loopwright.config.file import FILE
from loopwright.errors import printable
from loopwright.runs import RunRecord, origin_of, rules_of
from loopwright.runs import number as finite
from loopwright.sinks.progress_text import length_of_time, number
from loopwright.step_warnings import warn_at_call

Status = Literal["running", "complete", "interrupted", "failed", "crashed", "empty", "damaged"]

_ENDINGS: dict[str, Status] = {
    "completed": "complete",
    "skipped": "complete",
    "interrupted": "interrupted",
    "restarting": "interrupted",  # of earlier versions
    "failed": "failed",
}
"""By the word in status.json; "running" without a process is a crash."""
_LEAST_SHARE = 0.01


@dataclass(frozen=True)
class Row:
    """A run, as one line of `loopwright runs`."""

    path: Path
    status: Status
    step: int | None
    best: float | None
    best_step: int | None
    metric: str
    """The metric that decides the best checkpoint."""
    mode: Literal["min", "max"]
    """Whether smaller or larger values of the metric are better."""
    seconds: float | None
    """Training time."""
    changed: float
    """Time of the last save, in seconds since 1970."""
    origin: str = ""
    """The run and the step that it was forked from; empty if it was not."""

    def best_text(self, digits: int = 4) -> str:
        """Return the best score and its step; empty if there is none."""
        if self.best is None:
            return ""
        return f"{self.metric} {self.best:.{digits}g} at step {self.best_step:,}"

    @property
    def duration(self) -> str:
        """The training time in hours, minutes and seconds; empty if it is unknown."""
        return "" if self.seconds is None else str(timedelta(seconds=round(self.seconds)))


def rows(
    directory: Path, metric: str | None = None, mode: Mode = "auto", *, sort: str = "when"
) -> list[Row]:
    """Return the runs in a directory tree, sorted; unknown values come last.

    Sorted by "best", the best run comes first, and runs with the same metric are grouped.
    """
    found = [_row(path, metric, mode) for path in _runs(directory)]

    def rank(score: float, row: Row) -> tuple[str, str, float]:
        return row.metric, row.mode, best_first(score, KeepBest(row.metric, mode=row.mode))

    def key(row: Row) -> tuple[bool, Any]:
        value = {
            "when": -row.changed,
            "name": str(row.path),
            "status": row.status,
            "step": row.step,
            "best": None if row.best is None else rank(row.best, row),
            "duration": row.seconds,
        }[sort]
        return value is None, 0 if value is None else value

    return sorted(found, key=key)


def is_run(path: Path) -> bool:
    """Return whether a directory is a run directory."""
    try:
        checkpoints, config = (disk.status(path, name) for name in ("checkpoints", FILE))
    except disk.UnsafeFileError:
        return True  # the symlink is reported later
    return (checkpoints is not None and stat.S_ISDIR(checkpoints.st_mode)) or (
        config is not None and stat.S_ISREG(config.st_mode)
    )


def _runs(directory: Path) -> list[Path]:
    if is_run(directory):
        return [directory]
    found = list[Path]()
    for path, names, _ in os.walk(directory):
        for name in sorted(names):
            if is_run(Path(path) / name):
                found.append(Path(path) / name)
        # A run contains no other runs; search at most three levels deep.
        is_deep = len(Path(path).relative_to(directory).parts) >= 2
        names[:] = [] if is_deep else [n for n in names if Path(path) / n not in found]
    return sorted(found)


def _row(path: Path, metric: str | None, mode: Mode) -> Row:
    try:
        return _read_row(path, metric, mode)
    except disk.UnsafeFileError as error:
        warn_at_call(str(error))
        changed = path.stat().st_mtime
        metric = metric or KeepBest().metric
        return Row(path, "damaged", None, None, None, metric, "min", None, changed)


def _read_row(path: Path, metric: str | None, mode: Mode) -> Row:
    record = RunRecord(path)
    whole, usable = record.saved, record.checkpoints
    rules = rules_of(path, usable)
    if metric is not None:
        own = [rule for rule in rules if rule.metric == metric] if mode == "auto" else []
        rules = own or [KeepBest(metric, mode=mode)]
    rule, found = rules[0], best_of(usable, rules[0])
    saved = (disk.status(*in_run(each.path)) for each in whole)
    changed = max([path.stat().st_mtime, *(at.st_mtime for at in saved if at is not None)])
    return Row(
        path=path,
        status=_status(record),
        step=max((found.step for found in usable), default=None),
        best=None if found is None else found.score,
        best_step=None if found is None else found.step,
        metric=rule.metric,
        mode="max" if rule.larger_is_better else "min",
        seconds=_seconds(usable),
        changed=changed,
        origin=origin_of(path),
    )


def _seconds(found: list[Checkpoint]) -> float | None:
    """Return the training time of a run: the sum of its legs."""
    legs = dict[int, float]()
    for checkpoint in found:
        leg, spent = checkpoint.content["leg"], checkpoint.content["place"].get("seconds", 0.0)
        legs[leg] = max(legs.get(leg, 0.0), spent)
    return sum(legs.values()) if legs else None


def _status(record: RunRecord) -> Status:
    if lock.is_held(record.directory / "lock"):
        return "running"
    if record.saved and not record.checkpoints:
        return "damaged"
    ending = _ENDINGS.get(str(record.status.get("status")))
    return ending or ("crashed" if record.checkpoints else "empty")


def summary(
    record: RunRecord, scores: Mapping[str, Any], commands: Sequence[str]
) -> list[tuple[str, str]]:
    """Summarize a finished run from its files and its scores: lines of a name and a text."""
    best = record.best
    shown = [f"{name} {share:.0%}" for name, share in record.shares if share >= _LEAST_SHARE]
    rows = {
        "run": [_ending(record)],
        "scores": [_numbers(scores)],
        "last epoch": [_numbers(record.last_epoch)],
        "best": [f"{best[0]} {number(best[1])} at step {best[2]:,}" if best else ""],
        "time": [", ".join(shown)],
        "advice": [str(record.finished.get("advice", ""))],
        "resume": [record.inexact],
        "files": _files(record),
        "next": commands,
    }
    lines = [(name if at == 0 else "", text) for name in rows for at, text in enumerate(rows[name])]
    return [(name, printable(text)) for name, text in lines if text]


def show(rows: Sequence[tuple[str, str]], output: Console) -> None:
    """Print a summary: in a frame in a terminal, as plain lines elsewhere."""
    if not output.is_terminal:
        for name, text in rows:
            output.out(f"{name:10}  {text}", highlight=False)
        return
    grid = Table.grid(padding=(0, 2))
    for name, text in rows:
        grid.add_row(Text(name, "dim"), Text(text, overflow="fold"))
    output.print(Panel(grid, expand=False, border_style="dim"))


def _ending(record: RunRecord) -> str:
    status = record.status
    words = [str(record.directory), str(status.get("status", "unknown"))]
    words.append(f"{finite(status.get('step')) or 0:,.0f} steps")
    seconds = finite(record.finished.get("seconds"))
    if seconds is not None:
        words.append(length_of_time(seconds))
    return " · ".join(words)


def _numbers(numbers: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {number(value)}" for name, value in numbers.items())


def _files(record: RunRecord) -> list[str]:
    """List the files of a run that a user may want to open."""
    directory = record.directory
    steps = ", ".join(f"{entry.step:,}" for entry in record.checkpoints)
    exports = disk.names(directory, "export")
    versions = sorted((name for name in exports if name.isdigit()), key=int)
    files = {
        row.read_by: [name for name in exports if row.suffix and name.endswith(row.suffix)]
        for row in KINDS.values()
    }
    known = [
        ("report.html", "curves, plan, time, environment"),
        *((f"export/{name}", "for serving") for name in versions[-1:]),
        *((f"export/{name}", f"for {by}") for by, named in files.items() for name in named[-1:]),
        ("checkpoints", f"steps {steps}"),
        ("figures", ", ".join(disk.names(directory, "figures"))),
    ]
    there = [(name, what) for name, what in known if disk.status(directory, name) is not None]
    return [f"{directory / name}  ({what})" for name, what in there]
