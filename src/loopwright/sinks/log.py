"""Progress in a log: one line per epoch, plus what a reader of a log would miss."""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, final

from rich.console import Console

from loopwright import disk
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
from loopwright.sinks.notify import tolerated

_SECONDS_BETWEEN_LINES = 60.0


@final
class Lines:
    """One line per epoch, plus what a reader of a log would miss."""

    def __init__(self, output: Console, clock: Callable[[], float]) -> None:
        self._output, self._clock = output, clock
        self._run = Started(0, None, None, None)
        self._said_at = clock()
        self._measured_since: tuple[float, int] | None = None
        """Since when, and after which step of the epoch, the rate of steps is measured."""
        self._unsaid: Validated | None = None
        self._unfinished: Trained | None = None

    def show(self, event: Event) -> None:
        """Hears an event."""
        if isinstance(event, Trained):
            self._say_unsaid()
            self._unfinished = event
            now = self._clock()
            if self._measured_since is None:  # the first steps compile, which is no rate
                self._measured_since = now, event.step_in_epoch
            if now - self._said_at > _SECONDS_BETWEEN_LINES:
                since, first = self._measured_since
                rate = (event.step_in_epoch - first) / max(now - since, 1e-9)
                self._say(progress_text.running(self._run, event, rate))
        elif isinstance(event, PlanChosen):
            self._say(progress_text.chosen(event))
        elif isinstance(event, BatchSkipped):
            self._say(progress_text.skipped(event))
        elif isinstance(event, Noted):
            self._say([progress_text.Part(f"note: {event.text}")])
        elif isinstance(event, Validated):
            self._say_unsaid()
            self._unsaid = event  # only the next event tells whether this was the epoch's end
        elif isinstance(event, EpochEnded):
            self._unsaid = self._unfinished = None
            self._say(progress_text.ended(self._run, event))
        elif isinstance(event, EpochStarted):
            if self._measured_since is not None:
                self._measured_since = self._clock(), 0
        elif isinstance(event, Started):
            self._run, self._said_at, self._measured_since = event, self._clock(), None
            self._unsaid = self._unfinished = None
            if event.resumed_steps:
                self._say(progress_text.goes_on(event))
        elif isinstance(event, Finished):
            if self._unfinished is not None:
                self._say(progress_text.running(self._run, self._unfinished, None))
            self._say_unsaid()
            self._say([progress_text.last(self._run, event), *progress_text.spent(event)])
            if event.advice:
                self._say([progress_text.Part(event.advice)])

    def close(self) -> None:
        """Nothing to put back."""

    def _say_unsaid(self) -> None:
        if self._unsaid is not None:
            self._say(progress_text.validated(self._unsaid))
            self._unsaid = None

    def _say(self, parts: Iterable[progress_text.Part]) -> None:
        line = progress_text.GAP.join(part.text for part in parts)
        if not self._output.encoding.startswith("utf"):
            line = line.replace(progress_text.GAP, " - ")
            line = line.encode(self._output.encoding, "replace").decode(self._output.encoding)
        self._output.out(line, highlight=False)
        self._said_at = self._clock()


@final
class WorkerLog:
    """Lines like those of `train.log`, in `worker-1.log`; nothing of it is ever cut."""

    def __init__(self, directory: Path, worker: int, clock: Callable[[], float]) -> None:
        self._directory, self._name, self._clock = directory, f"worker-{worker}.log", clock
        self._log: Any = None
        self._show: Sink = lambda event: None

    def open(self, lengths: Mapping[str, int], *, is_new_leg: bool) -> None:
        """Goes on at the end of the file."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        handle = disk.opened(self._directory, self._name, flags)
        self._log = os.fdopen(handle, "a", encoding="utf-8")
        output = Console(file=self._log, width=200, force_terminal=False)
        self._show = tolerated(Lines(output, self._clock).show)

    def close(self) -> None:
        """Everything is in the file."""
        if self._log is not None:
            self._log.close()

    def __call__(self, event: Event) -> None:
        """Hears an event."""
        self._show(event)

    def lengths(self) -> dict[str, int]:
        """None: the run's own files are the chief's."""
        return {}

    def cut(self, lengths: Mapping[str, int]) -> None:
        """Nothing is forgotten."""

    def sync(self) -> None:
        """No checkpoint refers to it."""
