"""The points that trackers get: a row of numbers per step, from events or the journal.

A row holds the numbers of one step under the names of the history: `loss` and `learning_rate` of
the epoch that ended there, `val_loss` of a validation. These steps are the same in every run of a
program, killed or not, and so are their values. Running values (`batch_loss`) are measured where
control happens to be back in Python: their steps differ from start to start.
"""

import contextlib
import math
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, final

from loopwright import untrusted
from loopwright.events import EpochEnded, Event, Finished, Trained, Validated

JOURNAL = "metrics.jsonl"
_RUNNING = "batch_"
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_KINDS = ("trained", "validated", "epoch_ended", "finished")
_OPENINGS = tuple(f'{{"event": "{kind}"'.encode() for kind in _KINDS)


@final
class Entry(NamedTuple):
    """What one event adds to the rows."""

    step: int
    seconds: float
    """When it happened, since 1970."""
    values: Mapping[str, float]
    ends_row: bool = False
    """Whether nothing more can be added to the row of this step."""


@final
@dataclass(frozen=True)
class Row:
    """The numbers of one step."""

    step: int
    seconds: float
    values: Mapping[str, float]


@final
@dataclass
class Known:
    """The points that a tracker already has."""

    steps: dict[str, set[int]] = field(default_factory=dict[str, set[int]])
    """By name."""
    before: int = 0
    """Every row below this step is there."""

    def missing(self, row: Row) -> dict[str, float]:
        """Return the numbers of a row that the tracker does not have.

        >>> known = Known({"loss": {10}, "batch_loss": {10}})
        >>> known.missing(Row(10, 0.0, {"loss": 0.5, "val_loss": 0.7}))
        {'val_loss': 0.7}
        >>> known.missing(Row(8, 0.0, {"batch_loss": 0.5}))
        {}
        """
        if row.step < self.before:
            return {}
        return {name: value for name, value in row.values.items() if not self._has(name, row.step)}

    def _has(self, name: str, step: int) -> bool:
        steps = self.steps.get(name, set())
        # Steps that are trained again stop elsewhere: their running values are known already.
        return step in steps or (name.startswith(_RUNNING) and step <= max(steps, default=-1))

    def add(self, step: int, names: Set[str]) -> None:
        """Note that the tracker has got these points."""
        for name in names:
            self.steps.setdefault(name, set()).add(step)


@final
class Rows:
    """Collects entries into rows; a row is complete when its step is over."""

    def __init__(self) -> None:
        self._open: Row | None = None

    def add(self, entry: Entry) -> Iterator[Row]:
        """Yield the rows that an entry completes.

        >>> rows = Rows()
        >>> [list(rows.add(Entry(step, 0.0, values, ends))) for step, values, ends in [
        ...     (5, {"val_loss": 0.7}, False), (5, {"loss": 0.5}, True), (8, {}, False)]]
        [[], [Row(step=5, seconds=0.0, values={'val_loss': 0.7, 'loss': 0.5})], []]
        """
        if self._open is not None and self._open.step != entry.step:
            yield from self.rest()
        if entry.values:
            before = {} if self._open is None else self._open.values
            self._open = Row(entry.step, entry.seconds, {**before, **entry.values})
        if entry.ends_row:
            yield from self.rest()

    def rest(self) -> Iterator[Row]:
        """Yield the row that is still open."""
        row, self._open = self._open, None
        if row is not None:
            yield row


def entry_of(event: Event, seconds: float, *, running: bool) -> Entry | None:
    """Return what an event adds to the rows; None if it adds nothing and ends no step."""
    match event:
        case Trained():
            found = numbers(event.metrics, _RUNNING) if running else {}
            return Entry(event.step, seconds, found)
        case Validated():
            return Entry(event.step, seconds, numbers(event.metrics, "val_"))
        case EpochEnded():
            found = {**numbers(event.metrics), **numbers(event.learning_rates)}
            return Entry(event.step, seconds, found, ends_row=True)
        case Finished():
            return Entry(event.step, seconds, {})
        case _:
            return None


def journal_entries(run_dir: Path, length: int | None = None, *, running: bool) -> Iterator[Entry]:
    """Yield what the journal of a run adds to the rows, of its first `length` bytes.

    The run directory may be untrusted: a line that is not as expected is skipped.
    """
    read = 0
    with contextlib.suppress(FileNotFoundError):
        for line in untrusted.lines(run_dir, JOURNAL):
            read += len(line)
            if length is not None and read > length:
                return
            if line.startswith(_OPENINGS) and line.endswith(b"\n"):
                entry = _entry_of_line(line, running=running)
                if entry is not None:
                    yield entry


def _entry_of_line(line: bytes, *, running: bool) -> Entry | None:
    found = untrusted.event(line)
    step, seconds = found.get("step"), found.get("time")
    if not isinstance(step, int) or not 0 <= step < 2**62 or not isinstance(seconds, int | float):
        return None
    metrics, kind = found.get("metrics"), found.get("event")
    if kind == "trained":
        return Entry(step, seconds, numbers(metrics, _RUNNING) if running else {})
    if kind == "validated":
        return Entry(step, seconds, numbers(metrics, "val_"))
    if kind == "epoch_ended":
        values = {**numbers(metrics), **numbers(found.get("learning_rates"))}
        return Entry(step, seconds, values, ends_row=True)
    return Entry(step, seconds, {})


def numbers(metrics: Any, prefix: str = "") -> dict[str, float]:
    """Return the metrics that are single numbers, also NaN and infinity as the journal has them.

    >>> numbers({"loss": 0.5, "confusion": [[1, 2]], "norm": "NaN"}, "val_")
    {'val_loss': 0.5, 'val_norm': nan}
    """
    found = dict[str, float]()
    for name, value in metrics.items() if isinstance(metrics, Mapping) else ():
        if isinstance(value, str):
            number = _NOT_FINITE.get(value)
        elif isinstance(value, list | tuple | dict | bool) or getattr(value, "ndim", 0):
            number = None
        else:
            number = _as_float(value)
        if number is not None:
            found[f"{prefix}{name}"] = number
    return found


def _as_float(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None
