"""Progress for a person: a live bar in a terminal, plain lines anywhere else."""

import contextlib
import importlib.util
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Literal, TextIO, final

from rich.cells import cell_len
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from loopwright.errors import ConfigurationError, message
from loopwright.events import (
    BatchSkipped,
    EpochEnded,
    EpochStarted,
    Event,
    Finished,
    PlanChosen,
    Sink,
    Started,
    Trained,
    Validated,
)
from loopwright.telemetry import wording

_SECONDS_BETWEEN_DRAWINGS = 0.2
_SECONDS_BETWEEN_LINES = 60.0
_SECONDS_BETWEEN_EPOCHS = 0.1  # in a terminal, where nobody could read more of them
_BAR_COLUMNS = (6, 30)


def console(
    verbose: Literal["auto", 0, 1, 2] = "auto",
    *,
    output: Console | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Sink:
    """A sink that shows progress: 0 nothing, 1 a bar, 2 a line per epoch, "auto" what fits.

    >>> show = console(verbose=2)
    >>> show(Started(step=0, epochs=3, steps_per_epoch=45, total_steps=135))
    >>> show(EpochEnded(epoch=0, step=45, steps=45, seconds=0.41, metrics={"loss": 0.21337}))
    epoch 1/3 · 45 steps · 0.41 s · 110 steps/s · loss 0.2134
    """
    if verbose not in ("auto", 0, 1, 2):
        raise ConfigurationError(
            message(
                "This verbosity is unknown.",
                expected='"auto", 0 (silent), 1 (bar) or 2 (a line per epoch)',
                received=f"verbose={verbose!r}",
                do='leave verbose out: "auto" draws a bar in a terminal, plain lines elsewhere',
            )
        )
    if verbose == 0:
        return _ignore
    # FORCE_COLOR makes rich take a file for a terminal; a bar in a file is only noise.
    screen = output or Console(force_terminal=None if _is_terminal(sys.stdout) else False)
    is_plain = verbose == 2 or (verbose == "auto" and _asks_for_plain_text())
    if not is_plain and _can_redraw(screen):
        return _Unbreakable(_Bar(screen, clock))
    # In a notebook rich would wrap each line in HTML of its own; text is enough for lines.
    return _Unbreakable(_Lines(output or Console(force_jupyter=False), clock))


def _ignore(event: Event) -> None:
    """Hears an event and shows nothing."""


def _asks_for_plain_text() -> bool:
    return any(os.environ.get(name) for name in ("CI", "NO_COLOR"))


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and not stream.closed and stream.isatty()


def _can_redraw(output: Console) -> bool:
    """Whether a line that was drawn can be drawn again, in characters that bars are made of."""
    if output.is_jupyter:
        return importlib.util.find_spec("ipywidgets") is not None
    is_utf = output.encoding.startswith("utf")
    return output.is_terminal and not output.is_dumb_terminal and is_utf


@final
class _Unbreakable:
    """Hands events to a display until its output breaks: then quiet, for training goes on."""

    def __init__(self, display: "_Bar | _Lines") -> None:
        self._display = display
        self._is_broken = False

    def __call__(self, event: Event) -> None:
        if self._is_broken:
            return
        try:
            self._display.show(event)
        except (OSError, ValueError):  # a closed file raises ValueError
            self._give_up()
        except SystemExit as error:
            # rich answers a broken pipe by leaving the program.
            if not isinstance(error.__context__, BrokenPipeError):
                raise
            self._give_up()

    def _give_up(self) -> None:
        self._is_broken = True
        with contextlib.suppress(Exception, SystemExit):
            self._display.close()


@final
class _Lines:
    """One line per epoch, plus what a reader of a log would miss."""

    def __init__(self, output: Console, clock: Callable[[], float]) -> None:
        self._output, self._clock = output, clock
        self._run = Started(0, None, None, None)
        self._said_at = self._epoch_began = clock()
        self._unsaid: Validated | None = None
        self._unfinished: Trained | None = None

    def show(self, event: Event) -> None:
        if isinstance(event, Trained):
            self._say_unsaid()
            self._unfinished = event
            now = self._clock()
            if now - self._said_at > _SECONDS_BETWEEN_LINES:
                rate = event.step_in_epoch / max(now - self._epoch_began, 1e-9)
                self._say(wording.running(self._run, event, rate))
        elif isinstance(event, PlanChosen):
            self._say(wording.chosen(event))
        elif isinstance(event, BatchSkipped):
            self._say(wording.skipped(event))
        elif isinstance(event, Validated):
            self._say_unsaid()
            self._unsaid = event  # only the next event tells whether this was the epoch's end
        elif isinstance(event, EpochEnded):
            self._unsaid = self._unfinished = None
            self._say(wording.ended(self._run, event))
        elif isinstance(event, EpochStarted):
            self._epoch_began = self._clock()
        elif isinstance(event, Started):
            self._run, self._said_at = event, self._clock()
            self._unsaid = self._unfinished = None
            if event.resumed_steps:
                self._say(wording.goes_on(event))
        elif isinstance(event, Finished):
            if self._unfinished is not None:
                self._say(wording.running(self._run, self._unfinished, None))
            self._say_unsaid()
            self._say([wording.last(self._run, event), *wording.spent(event)])
            if event.advice:
                self._say([wording.Part(event.advice)])

    def close(self) -> None:
        """Nothing to put back."""

    def _say_unsaid(self) -> None:
        if self._unsaid is not None:
            self._say(wording.validated(self._unsaid))
            self._unsaid = None

    def _say(self, parts: Iterable[wording.Part]) -> None:
        line = wording.GAP.join(part.text for part in parts)
        if not self._output.encoding.startswith("utf"):
            line = line.replace(wording.GAP, " - ")
            line = line.encode(self._output.encoding, "replace").decode(self._output.encoding)
        self._output.out(line, highlight=False)
        self._said_at = self._clock()


@final
class _Bar:
    """One live line for the running epoch; finished epochs stay above it."""

    def __init__(self, output: Console, clock: Callable[[], float]) -> None:
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

    def show(self, event: Event) -> None:
        if isinstance(event, Trained):
            self._unfinished = event
            self._draw_if_due()
        elif isinstance(event, PlanChosen):
            self._keep(wording.chosen(event))
        elif isinstance(event, BatchSkipped):
            self._keep(wording.skipped(event))
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
            redirect_stdout=is_screen and _is_terminal(sys.stdout),
            redirect_stderr=is_screen and _is_terminal(sys.stderr),
        )
        self._live.start()
        if event.resumed_steps:
            self._keep(wording.goes_on(event))

    def _keep_epoch(self) -> None:
        if self._unkept is not None:
            self._keep(wording.ended(self._run, self._unkept))
            self._unkept, self._epoch_kept_at = None, self._clock()

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
        lines = [self._line(self._unfinished, now)]
        if self._validated is not None:
            lines.append(_fit(wording.validated(self._validated), self._output.width))
        self._live.update(Group(*lines), refresh=True)

    def _line(self, event: Trained, now: float) -> Text | Table:
        epoch, *rest = wording.running(self._run, event, self._rate)
        least, most = _BAR_COLUMNS
        room = self._output.width - cell_len(epoch.text) - least - 2
        needed = [part for part in rest if part.rank <= wording.NEEDED]
        if wording.columns(needed, wording.GAP) > room:
            return _fit([epoch, *rest], self._output.width)
        text = _fit(rest, room)
        done, total = wording.progress(self._run, event)
        bar = ProgressBar(
            total=total,
            completed=done,
            width=min(most, room - text.cell_len + least),
            pulse=total is None,
            animation_time=now,
        )
        grid = Table.grid(padding=(0, 1))
        grid.add_row(Text(epoch.text, epoch.style), bar, text)
        return grid


def _fit(parts: list[wording.Part], room: int) -> Text:
    """One line of at most `room` columns."""
    kept, gap = wording.fitting(parts, room)
    line = Text(no_wrap=True, overflow="ellipsis")
    for part in kept:
        line.append(gap if line else "", "dim").append(part.text, part.style)
    return line
