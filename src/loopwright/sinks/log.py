"""Progress in a log: one line per epoch, plus what a reader of a log would miss."""

from collections.abc import Callable, Iterable
from typing import final

from rich.console import Console

from loopwright.events import (
    BatchSkipped,
    EpochEnded,
    EpochStarted,
    Event,
    Finished,
    Noted,
    PlanChosen,
    Started,
    Trained,
    Validated,
)
from loopwright.sinks import progress_text

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
