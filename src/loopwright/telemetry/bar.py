"""Progress in a terminal: live lines for the run and its epoch; finished epochs stay above."""

import sys
from collections import deque
from collections.abc import Callable, Iterable
from typing import TextIO, final

from rich.cells import cell_len
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

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
from loopwright.retention import KeepBest
from loopwright.telemetry import wording
from loopwright.telemetry.outlook import Outlook

_SECONDS_BETWEEN_DRAWINGS = 0.2
_SECONDS_BETWEEN_EPOCHS = 0.1  # nobody could read more of them
_BAR_COLUMNS = (6, 30)


def is_terminal(stream: TextIO | None) -> bool:
    """Whether what is written there is seen at once."""
    return stream is not None and not stream.closed and stream.isatty()


@final
class Bar:
    """Live lines for the run and the running epoch; finished epochs stay above them."""

    def __init__(
        self,
        output: Console,
        clock: Callable[[], float],
        rule: KeepBest,
        best_before: Callable[[], tuple[float, int] | None],
    ) -> None:
        self._output, self._clock = output, clock
        self._run = Started(0, None, None, None)
        self._live: Live | None = None
        self._drawn_at = float("-inf")
        self._unfinished: Trained | None = None
        self._validated: Validated | None = None
        self._unkept: EpochEnded | None = None
        self._epoch_kept_at = float("-inf")
        self._recent: deque[tuple[float, int]] = deque(maxlen=20)
        self._rate: float | None = None
        self._outlook = Outlook(clock, rule, best_before)

    def show(self, event: Event) -> None:
        """Hears an event."""
        self._outlook.hear(event)
        if isinstance(event, Trained):
            self._unfinished = event
            self._draw_if_due()
        elif isinstance(event, PlanChosen):
            self._keep(wording.chosen(event))
        elif isinstance(event, BatchSkipped):
            self._keep(wording.skipped(event))
        elif isinstance(event, Noted):
            self._output.print(Text(f"note: {event.text}", "yellow"))
        elif isinstance(event, Validated):
            if self._validated is not None:
                self._keep(wording.validated(self._validated))
            self._validated = event
            self._recent.clear()  # the time it took says nothing about the rate of steps
            self._draw_if_due()
        elif isinstance(event, EpochEnded):
            self._unfinished = self._validated = None
            self._unkept = event
            if self._clock() - self._epoch_kept_at >= _SECONDS_BETWEEN_EPOCHS:
                self._keep_epoch()
            if event.seconds >= 1:  # else a bar for each short epoch would only flicker
                self._drawn_at = float("-inf")
        elif isinstance(event, EpochStarted):
            self._recent.clear()
            self._unfinished = Trained(event.step, event.epoch, 0, 0, 0.0, {})
            self._draw_if_due()
        elif isinstance(event, Started):
            self._start(event)
        elif isinstance(event, Finished):
            self._finish(event)

    def close(self) -> None:
        """Gives the terminal back: cursor, stdout and stderr."""
        if self._live is not None:
            live, self._live = self._live, None
            live.stop()

    def _start(self, event: Started) -> None:
        self.close()
        self._run, self._rate, self._drawn_at = event, None, float("-inf")
        self._unfinished = self._validated = self._unkept = None
        is_screen = self._output.file in (sys.stdout, sys.stderr)
        self._live = Live(
            console=self._output,
            auto_refresh=False,
            transient=True,
            # What is printed meanwhile goes above the bar; what goes to a file goes there still.
            redirect_stdout=is_screen and is_terminal(sys.stdout),
            redirect_stderr=is_screen and is_terminal(sys.stderr),
        )
        self._live.start()
        if event.resumed_steps:
            self._keep(wording.goes_on(event))

    def _keep_epoch(self) -> None:
        ended, self._unkept = self._unkept, None
        if ended is not None:
            self._keep(wording.ended(self._run, ended))
            self._epoch_kept_at = self._clock()

    def _finish(self, event: Finished) -> None:
        self.close()
        self._keep_epoch()
        if self._unfinished is not None and self._unfinished.step_in_epoch:
            self._keep(wording.running(self._run, self._unfinished, None))
        if self._validated is not None:
            self._keep(wording.validated(self._validated))
        self._keep([wording.last(self._run, event), *wording.spent(event)])
        if event.advice:
            self._output.print(Text(event.advice, "yellow"))

    def _keep(self, parts: Iterable[wording.Part]) -> None:
        """Prints a line that stays."""
        with self._output:
            if self._live is not None and self._unfinished is None:
                self._live.update(Text(), refresh=True)
            line = _fit(list(parts), self._output.width)
            self._output.print(line, no_wrap=True, overflow="ellipsis")

    def _draw_if_due(self) -> None:
        now = self._clock()
        if now - self._drawn_at < _SECONDS_BETWEEN_DRAWINGS:
            return
        if self._live is None or self._unfinished is None:
            return
        self._drawn_at = now
        if self._unfinished.steps:  # from the first call on: it compiles, which is no rate
            self._recent.append((now, self._unfinished.step))
            (since, first), (until, last) = self._recent[0], self._recent[-1]
            if last > first and until > since:
                self._rate = (last - first) / (until - since)
            self._outlook.note_loss(self._unfinished)
        lines = self._bars(self._unfinished, now)
        about = self._outlook.parts()
        if about:
            lines.insert(0, _fit(about, self._output.width))
        if self._validated is not None:
            lines.append(_fit(wording.validated(self._validated), self._output.width))
        self._live.update(Group(*lines), refresh=True)

    def _bars(self, event: Trained, now: float) -> list[Text | Table]:
        """A bar for the run, where it is more than one epoch, and one for the epoch."""
        epoch, *rest = wording.running(self._run, event, self._rate)
        least, most = _BAR_COLUMNS
        room = self._output.width - cell_len(epoch.text) - least - 2
        needed = [part for part in rest if part.rank <= wording.NEEDED]
        if wording.columns(needed, wording.GAP) > room:
            return [_fit([epoch, *rest], self._output.width)]
        rows = [(epoch, wording.progress(self._run, event), _fit(rest, room))]
        of_run = self._outlook.progress(event)
        if of_run is not None:
            left = _fit(self._outlook.left(event), room)
            rows.insert(0, (wording.Part("run", style="bold"), of_run, left))
        width = min(most, room + least - max(text.cell_len for _, _, text in rows))
        grid = Table.grid(padding=(0, 1))
        for label, (done, total), text in rows:
            is_endless = total is None
            bar = ProgressBar(total, done, width, is_endless, animation_time=now)
            grid.add_row(Text(label.text, label.style), bar, text)
        return [grid]


def _fit(parts: list[wording.Part], room: int) -> Text:
    """One line of at most `room` columns."""
    kept, gap = wording.fitting(parts, room)
    line = Text(no_wrap=True, overflow="ellipsis")
    for part in kept:
        line.append(gap if line else "", "dim").append(part.text, part.style)
    return line
