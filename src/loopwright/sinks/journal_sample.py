"""Events of a run's journal: all of a short one, an even sample of a long one.

    sample = read_sample(run_dir)["epoch_ended"]
    sample.events, sample.count, sample.every      # 1,000,000 lines: every 64th is parsed

A journal grows by a line per epoch or second. Parsing a million lines takes half a minute; the
page that is made of them has room for a few hundred points.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from loopwright import disk

KINDS: Final = ("started", "epoch_ended", "validated", "finished")
"""The events that reports and summaries are made of; lines of other events are not parsed."""

_MOST_LINES = 10_000
_PREFIX = b'{"event": "'
_LENGTH = len(_PREFIX) + min(map(len, KINDS))


@final
@dataclass(frozen=True)
class Sample:
    """Events of one kind in the order they happened; the last one is always among them."""

    events: list[dict[str, Any]]
    count: int
    """How many such lines the journal has."""
    every: int
    """1: all of them were read. 8: every eighth."""


@final
class _Lines:
    """Lines of one kind: every n-th, where n doubles whenever there are too many."""

    def __init__(self) -> None:
        self.kept, self.last = list[bytes](), b""
        self.count, self.every = 0, 1

    def add(self, line: bytes) -> None:
        if not self.count % self.every:
            self.kept.append(line)
            if len(self.kept) > _MOST_LINES:
                self.kept, self.every = self.kept[::2], self.every * 2
        self.last = line
        self.count += 1

    def sample(self, kind: str) -> Sample:
        is_last_kept = (self.count - 1) % self.every == 0
        lines = self.kept if is_last_kept else [*self.kept, self.last]
        events = [event for event in map(_parsed, lines) if event.get("event") == kind]
        return Sample(events, self.count, self.every)


def read_sample(run_dir: Path) -> dict[str, Sample]:
    """Return the events of a journal by kind; empty if there is no journal.

    Lines that are not JSON are skipped: the last one may be half written.
    """
    found = {kind: _Lines() for kind in KINDS}
    # The first letters tell the kinds apart: a million lines are looked at in half a second.
    beginnings = {(_PREFIX + kind.encode())[:_LENGTH]: lines for kind, lines in found.items()}
    try:
        handle = disk.opened(run_dir, "metrics.jsonl")
    except OSError:
        return {}
    with os.fdopen(handle, "rb", buffering=1 << 20) as file:
        for line in file:
            lines = beginnings.get(line[:_LENGTH])
            if lines is None:
                if line.startswith(_PREFIX):
                    continue
                lines = found.get(_kind(line))  # written by another program
            if lines is not None and (line.endswith(b"\n") or _parsed(line)):
                lines.add(line)
    samples = {kind: lines.sample(kind) for kind, lines in found.items()}
    return {kind: sample for kind, sample in samples.items() if sample.events}


def _kind(line: bytes) -> str:
    kind = _parsed(line).get("event")
    return kind if isinstance(kind, str) else ""


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return event if isinstance(event, dict) else {}
