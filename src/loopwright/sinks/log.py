"""Progress as lines of a log: one per epoch, plus plans, notes, skipped batches, the end."""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TextIO, final

from rich.console import Console

from loopwright import disk
from loopwright.errors import disk_explained
from loopwright.events import (
    BatchSkipped,
    EpochEnded,
    EpochStarted,
    Event,
    Finished,
    Noted,
    PlanChosen,
    Sink,
    Started,
    Trained,
    Validated,
)
from loopwright.sinks import progress_text
from loopwright.sinks.notify import attempted, tolerated

_SECONDS_BETWEEN_LINES = 60.0


@final
class Lines:
    """Prints one line per epoch, and one per minute inside an epoch."""

    def __init__(self, output: Console, clock: Callable[[], float]) -> None:
        self._output, self._clock = output, clock
        self._run = Started(0, None, None, None)
        self._printed_at = clock()
        self._measured_since: tuple[float, int] | None = None
        """Time and step of the epoch from which the rate of steps is measured."""
        self._pending: Validated | None = None
        self._unfinished: Trained | None = None

    def show(self, event: Event) -> None:
        """Print the lines of an event."""
        if isinstance(event, Trained):
            self._print_pending()
            self._unfinished = event
            now = self._clock()
            if self._measured_since is None:  # the time of the first steps includes compiling
                self._measured_since = now, event.step_in_epoch
            if now - self._printed_at > _SECONDS_BETWEEN_LINES:
                since, first = self._measured_since
                rate = (event.step_in_epoch - first) / max(now - since, 1e-9)
                self._print(progress_text.running(self._run, event, rate))
        elif isinstance(event, PlanChosen):
            self._print(progress_text.chosen(event))
        elif isinstance(event, BatchSkipped):
            self._print(progress_text.skipped(event))
        elif isinstance(event, Noted):
            self._print([progress_text.Part(f"note: {event.text}")])
        elif isinstance(event, Validated):
            self._print_pending()
            self._pending = event  # the line of an epoch's end has these scores too
        elif isinstance(event, EpochEnded):
            self._pending = self._unfinished = None
            self._print(progress_text.ended(self._run, event))
        elif isinstance(event, EpochStarted):
            if self._measured_since is not None:
                self._measured_since = self._clock(), 0
        elif isinstance(event, Started):
            self._run, self._printed_at, self._measured_since = event, self._clock(), None
            self._pending = self._unfinished = None
            if event.resumed_steps:
                self._print(progress_text.resumed(event))
        elif isinstance(event, Finished):
            if self._unfinished is not None:
                self._print(progress_text.running(self._run, self._unfinished, None))
            self._print_pending()
            self._print([progress_text.last(self._run, event), *progress_text.spent(event)])
            if event.advice:
                self._print([progress_text.Part(event.advice)])

    def close(self) -> None:
        """Do nothing: lines need no cleanup."""

    def _print_pending(self) -> None:
        if self._pending is not None:
            self._print(progress_text.validated(self._pending))
            self._pending = None

    def _print(self, parts: Iterable[progress_text.Part]) -> None:
        line = progress_text.GAP.join(part.text for part in parts)
        if not self._output.encoding.startswith("utf"):
            line = line.replace(progress_text.GAP, " - ")
            line = line.encode(self._output.encoding, "replace").decode(self._output.encoding)
        # Not through rich, which takes five times as long: epochs can be short.
        print(line, file=self._output.file, flush=True)
        self._printed_at = self._clock()


def opened_log(directory: Path, name: str, clock: Callable[[], float]) -> tuple[TextIO, Lines]:
    """Return a log of a run, opened to append to it, and the lines that are printed there."""
    handle = disk.opened(directory, name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    file = os.fdopen(handle, "a", encoding="utf-8")
    return file, Lines(
        # In a notebook rich would show the lines there, and write none.
        Console(file=file, width=200, force_terminal=False, force_jupyter=False),
        clock,
    )


@final
class WorkerLog:
    """Writes lines like those of `train.log` to `worker-1.log`, which is never truncated."""

    def __init__(self, directory: Path, worker: int, clock: Callable[[], float]) -> None:
        self._directory, self._name, self._clock = directory, f"worker-{worker}.log", clock
        self._log: TextIO | None = None
        self._show: Sink = lambda event: None

    def open(self, lengths: Mapping[str, int], *, is_new_leg: bool) -> None:
        """Open the file to append to it."""
        with disk_explained(self._directory):
            self._log, lines = opened_log(self._directory, self._name, self._clock)
        self._show = tolerated(lines.show)

    def close(self) -> None:
        """Close the file."""
        if self._log is not None:
            with attempted("The last lines of the log"):
                self._log.close()

    def __call__(self, event: Event) -> None:
        """Print the lines of an event."""
        self._show(event)

    def lengths(self) -> dict[str, int]:
        """Return no lengths: only the chief writes files that a resumed run truncates."""
        return {}

    def cut(self, lengths: Mapping[str, int]) -> None:
        """Do nothing: the log keeps every line."""

    def sync(self) -> None:
        """Do nothing: no checkpoint refers to the log."""
