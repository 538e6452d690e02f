"""The record of a run, read from its files for reports and summaries; nothing is changed."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, final

from loopwright import disk, untrusted
from loopwright.checkpoints.manifest import Checkpoint
from loopwright.checkpoints.retention import Best, KeepBest, best_of, is_readable, kept_best
from loopwright.checkpoints.store import Store
from loopwright.config.file import saved_in
from loopwright.errors import CheckpointError, ConfigurationError, message, printable
from loopwright.exactness import Inexact

KINDS: Final = ("started", "epoch_ended", "validated", "finished")
"""The events that reports and summaries use; lines of other events are not parsed."""

_MOST_LINES = 10_000
_PREFIX = b'{"event": "'
_LENGTH = len(_PREFIX) + min(map(len, KINDS))


@final
@dataclass(frozen=True)
class Sample:
    """Events of one kind in order; the last event is always included."""

    events: list[dict[str, Any]]
    count: int
    """How many lines of this kind the journal has."""
    every: int
    """1: every line was read. 8: every eighth line."""


@final
class _Lines:
    """Keeps every n-th line of one kind; n doubles whenever there are too many."""

    def __init__(self) -> None:
        self.kept, self.last = list[bytes](), b""
        self.count, self.every, self.kept_bytes = 0, 1, 0

    def add(self, line: bytes) -> None:
        if not self.count % self.every:
            self.kept.append(line)
            self.kept_bytes += len(line)
            if len(self.kept) > _MOST_LINES or self.kept_bytes > disk.MOST_BYTES:
                self.kept, self.every = self.kept[::2], self.every * 2
                self.kept_bytes = sum(map(len, self.kept))
        self.last = line
        self.count += 1

    def sample(self, kind: str) -> Sample:
        is_last_kept = (self.count - 1) % self.every == 0
        lines = self.kept if is_last_kept else [*self.kept, self.last]
        events = [event for event in map(untrusted.event, lines) if event.get("event") == kind]
        return Sample(events, self.count, self.every)


def read_sample(run_dir: Path) -> dict[str, Sample]:
    """Return the events of a journal by kind; empty if there is no journal.

    Lines that are not JSON are skipped: the last line may be incomplete.
    """
    found = {kind: _Lines() for kind in KINDS}
    # Comparing only the first letters takes half a second for a million lines.
    beginnings = {(_PREFIX + kind.encode())[:_LENGTH]: lines for kind, lines in found.items()}
    try:
        for line in untrusted.lines(run_dir, "metrics.jsonl"):
            lines = beginnings.get(line[:_LENGTH])
            if lines is None:
                if line.startswith(_PREFIX):
                    continue
                lines = found.get(_kind(line))  # written by another program
            if lines is not None and (line.endswith(b"\n") or untrusted.event(line)):
                lines.add(line)
    except OSError:
        return {}
    samples = {kind: lines.sample(kind) for kind, lines in found.items()}
    return {kind: sample for kind, sample in samples.items() if sample.events}


def _kind(line: bytes) -> str:
    kind = untrusted.event(line).get("event")
    return kind if isinstance(kind, str) else ""


@final
@dataclass(frozen=True)
class Record:
    """A run as read from its files; what is missing is empty."""

    directory: Path
    journal: Mapping[str, Sample]
    """Events by kind; a sample if the journal is long."""

    @cached_property
    def status(self) -> dict[str, Any]:
        """Return `status`, `step` and `time` of the run."""
        return self.json("status.json")

    @cached_property
    def inexact(self) -> str:
        """Return why the run cannot be resumed exactly, in a sentence; empty if it can."""
        reasons = self.status.get("not_exactly_resumable")
        listed = reasons if isinstance(reasons, list) else []
        texts = [text for text in listed if isinstance(text, str)]
        return str(Inexact(tuple(texts))) if texts else ""

    @cached_property
    def finished(self) -> dict[str, Any]:
        """Return the event that ended the last leg."""
        return self._last("finished")

    @cached_property
    def last_epoch(self) -> dict[str, Any]:
        """Return the numbers of the last epoch, under the names that Keras gives them."""
        ended = self._last("epoch_ended")
        scores = {f"val_{name}": value for name, value in mapping(ended.get("validation")).items()}
        return {**mapping(ended.get("metrics")), **scores}

    @cached_property
    def checkpoints(self) -> list[Checkpoint]:
        """Return the valid checkpoints, the oldest first."""
        try:
            found = Store(self.directory / "checkpoints").all()
        except disk.UnsafeFileError:
            raise
        except CheckpointError:
            return []
        return [c for c in found if not c.damage and is_readable(c.content)]

    @cached_property
    def best(self) -> Best | None:
        """Return the checkpoint of `restore("best")`."""
        return best_of(self.checkpoints, rules_of(self.directory, self.checkpoints)[0])

    @cached_property
    def shares(self) -> list[tuple[str, float]]:
        """Return the shares of the last leg's time, the largest first."""
        named = {name: number(spent) for name, spent in mapping(self.finished.get("spent")).items()}
        spent = {name: seconds for name, seconds in named.items() if seconds and seconds > 0}
        total = sum(spent.values())
        shares = [(name, seconds / total) for name, seconds in spent.items()]
        return sorted(shares, key=lambda share: -share[1])

    def json(self, name: str) -> dict[str, Any]:
        """Return the content of a file; empty if it is missing or truncated."""
        return mapping(untrusted.json_or_none(self.directory, name))

    def text(self, name: str) -> str:
        """Return the text of a file; empty if it is missing."""
        try:
            return disk.read(self.directory, name).decode(errors="replace")
        except OSError:
            return ""

    def _last(self, event: str) -> dict[str, Any]:
        sample = self.journal.get(event)
        return sample.events[-1] if sample else {}


def rules_of(directory: Path, checkpoints: Sequence[Checkpoint]) -> list[KeepBest]:
    """Return the rules for the best checkpoint: recorded, from the config, or the default."""
    rules = kept_best(checkpoints)
    if rules is None:
        try:
            config = saved_in(directory)
        except disk.UnsafeFileError:
            raise
        except ConfigurationError:
            config = None
        asked = [] if config is None else config.keep
        rules = [KeepBest(k.best, k.count, k.mode) for k in asked if k.best]
    return rules or [KeepBest()]


def read_record(run_dir: Path) -> Record:
    """Return the record of a run; raise if there is none."""
    journal = read_sample(run_dir)
    if not journal:
        raise ConfigurationError(
            message(
                "No run found: nothing to report on.",
                expected="a run directory with a metrics.jsonl",
                received=str(run_dir),
                do="check the path, or train first",
            )
        )
    return Record(run_dir, journal)


# The files may come from an untrusted source: any field may have any type.


def origin_of(run_dir: Path, *, changes: bool = False) -> str:
    """Return the run and the step that a run was forked from, in words; empty if it was not.

    `changes`: with the config values that were changed.
    """
    origin = Record(run_dir, {}).json("origin.json")
    step, listed = number(origin.get("step")), origin.get("changes")
    if step is None:
        return ""
    words = [str(each) for each in listed] if isinstance(listed, list) and changes else []
    return printable("; ".join([f"{origin.get('run')}, step {step:,.0f}", *words]))


def mapping(value: Any) -> dict[str, Any]:
    """Return the value if it is a dict, or else an empty dict."""
    return value if isinstance(value, dict) else {}


def number(value: Any) -> float | None:
    """Return the value if it is a finite number, or else None.

    >>> number(3), number("3"), number(True), number(10**400)
    (3.0, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # a large int
        return None
