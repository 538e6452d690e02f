"""Progress in a terminal: a live bar; plain lines if the output is not a terminal."""

import contextlib
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, TextIO, final

from rich.cells import cell_len
from rich.console import Console, Group
from rich.control import strip_control_codes
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.segment import Segment, Segments
from rich.table import Table
from rich.text import Text

from loopwright.checkpoints.retention import KeepBest
from loopwright.errors import ConfigurationError, message
from loopwright.events import (
    BatchSkipped,
    EpochEnded,
    EpochStarted,
    Event,
    Finished,
    Metrics,
    Noted,
    PlanChosen,
    Sink,
    Started,
    Trained,
    Validated,
)
from loopwright.sinks import progress_text
from loopwright.sinks.curves import Curves
from loopwright.sinks.log import Lines
from loopwright.sinks.notebook import Panel, in_notebook
from loopwright.sinks.progress_text import DEFAULT_RULE, Outlook

_SECONDS_BETWEEN_DRAWINGS = 0.2
_SECONDS_BETWEEN_EPOCHS = 0.1  # short epochs are printed together: each print costs a millisecond
_BAR_COLUMNS = (6, 30)


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a stream is an open terminal."""
    return stream is not None and not stream.closed and stream.isatty()


@final
class Bar:
    """Draws the run and the running epoch as live lines; complete epochs stay above them."""

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
        self._unkept: list[EpochEnded] = []
        self._epochs_kept_at = float("-inf")
        self._recent: deque[tuple[float, int]] = deque(maxlen=20)
        self._rate: float | None = None
        self._outlook = Outlook(clock, rule, best_before)

    def show(self, event: Event) -> None:
        """Draw an event."""
        self._outlook.update(event)
        if isinstance(event, Trained):
            self._unfinished = event
            self._draw_if_due()
        elif isinstance(event, PlanChosen):
            self._keep(progress_text.chosen(event))
        elif isinstance(event, BatchSkipped):
            self._keep(progress_text.skipped(event))
        elif isinstance(event, Noted):
            self._keep_epochs()
            self._output.print(Text(f"note: {event.text}", "yellow"))
        elif isinstance(event, Validated):
            if self._validated is not None:
                self._keep(progress_text.validated(self._validated))
            self._validated = event
            self._recent.clear()  # the rate of steps does not include validation
            self._draw_if_due()
        elif isinstance(event, EpochEnded):
            self._unfinished = self._validated = None
            self._unkept.append(event)
            if self._clock() - self._epochs_kept_at >= _SECONDS_BETWEEN_EPOCHS:
                self._keep_epochs()
            if event.seconds >= 1:  # a bar for each short epoch would flicker
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
        """Restore the cursor, stdout and stderr."""
        if self._live is not None:
            live, self._live = self._live, None
            live.stop()

    def _start(self, event: Started) -> None:
        self.close()
        self._run, self._rate, self._drawn_at = event, None, float("-inf")
        self._unfinished = self._validated = None
        self._unkept.clear()
        is_screen = self._output.file in (sys.stdout, sys.stderr)
        self._live = Live(
            console=self._output,
            auto_refresh=False,
            transient=True,
            # Prints appear above the bar; output that goes to a file is not redirected.
            redirect_stdout=is_screen and is_terminal(sys.stdout),
            redirect_stderr=is_screen and is_terminal(sys.stderr),
        )
        self._live.start()
        if event.resumed_steps:
            self._keep(progress_text.resumed(event))

    def _keep_epochs(self) -> None:
        """Print the lines of the epochs that have not been printed yet."""
        ended, self._unkept = self._unkept, []
        if ended:
            self._print([progress_text.ended(self._run, each) for each in ended])
            self._epochs_kept_at = self._clock()

    def _finish(self, event: Finished) -> None:
        self.close()
        self._keep_epochs()
        if self._unfinished is not None and self._unfinished.step_in_epoch:
            self._keep(progress_text.running(self._run, self._unfinished, None))
        if self._validated is not None:
            self._keep(progress_text.validated(self._validated))
        self._keep([progress_text.last(self._run, event), *progress_text.spent(event)])
        if event.advice:
            self._output.print(Text(event.advice, "yellow"))

    def _keep(self, parts: Sequence[progress_text.Part]) -> None:
        """Print a line that stays, below the epochs before it."""
        self._keep_epochs()
        self._print([parts])

    def _print(self, lines: Iterable[Sequence[progress_text.Part]]) -> None:
        with self._output:
            if self._live is not None and self._unfinished is None:
                self._live.update(Text(), refresh=True)
            width = self._output.width
            segments = [each for parts in lines for each in self._segments(parts, width)]
            self._output.print(Segments(segments), end="", crop=False)

    def _segments(self, parts: Sequence[progress_text.Part], width: int) -> Iterator[Segment]:
        """Yield the wrapped parts as rich would render them, ten times faster.

        Epochs can be short. Only a part that is wider than the screen is rendered by rich.
        """
        style = self._output.get_style
        for number, line in enumerate(progress_text.wrapped(parts, width)):
            indent = progress_text.INDENT if number else ""
            if len(line) == 1 and len(indent) + progress_text.columns(line) > width:
                yield from self._output.render(_line(line, indent))
                continue
            yield Segment(indent)
            for place, part in enumerate(line):
                if place:
                    yield Segment(progress_text.GAP, style("dim"))
                text = strip_control_codes(part.text)
                yield Segment(text, style(part.style) if part.style else None)
            yield Segment.line()

    def _draw_if_due(self) -> None:
        now = self._clock()
        if now - self._drawn_at < _SECONDS_BETWEEN_DRAWINGS:
            return
        if self._live is None or self._unfinished is None:
            return
        self._drawn_at = now
        self._keep_epochs()
        if self._unfinished.steps:  # measured after the first call, which compiles
            self._recent.append((now, self._unfinished.step))
            (since, first), (until, last) = self._recent[0], self._recent[-1]
            if last > first and until > since:
                self._rate = (last - first) / (until - since)
            self._outlook.note_loss(self._unfinished)
        width = self._output.width
        lines = [*_wrapped(self._outlook.parts(), width), *self._bars(self._unfinished, now)]
        if self._validated is not None:
            lines += _wrapped(progress_text.validated(self._validated), width)
        self._live.update(Group(*lines), refresh=True)

    def _bars(self, event: Trained, now: float) -> list[Text | Table]:
        """Return a bar for the epoch, and one for the run if the run has several epochs."""
        epoch, *rest = progress_text.running(self._run, event, self._rate)
        width, (least, most) = self._output.width, _BAR_COLUMNS
        room = width - cell_len(epoch.text) - least - 2
        first_line, *below = progress_text.wrapped(rest, room)
        of_run = self._outlook.progress(event)
        left = [] if of_run is None else self._outlook.left(event)
        if max(map(progress_text.columns, (first_line, left))) > room:  # no room for a bar
            of_run_too = [progress_text.Part("run", "bold"), *left] if left else []
            return [*_wrapped(of_run_too, width), *_wrapped([epoch, *rest], width)]
        rows = [(epoch, progress_text.progress(self._run, event), _line(first_line))]
        if of_run is not None:
            rows.insert(0, (progress_text.Part("run", "bold"), of_run, _line(left)))
        columns = min(most, room + least - max(text.cell_len for _, _, text in rows))
        grid = Table.grid(padding=(0, 1))
        for label, (done, total), text in rows:
            is_endless = total is None
            bar = ProgressBar(total, done, columns, is_endless, animation_time=now)
            grid.add_row(Text(label.text, label.style), bar, text)
        unplaced = [part for line in below for part in line]
        return [grid, *_wrapped(unplaced, width, is_continued=True)]


def _wrapped(
    parts: Iterable[progress_text.Part], room: int, *, is_continued: bool = False
) -> Iterator[Text]:
    """Yield lines of at most `room` columns; only a part that is wider may exceed them."""
    for number, line in enumerate(
        progress_text.wrapped(parts, room - len(progress_text.INDENT) * is_continued)
    ):
        indent = progress_text.INDENT if number or is_continued else ""
        yield _line(line, indent)


def _line(parts: Iterable[progress_text.Part], indent: str = "") -> Text:
    line, gap = Text(indent, overflow="fold"), ""
    for part in parts:
        line.append(gap, "dim").append(part.text, part.style)
        gap = progress_text.GAP
    return line


def console(
    verbose: Literal["auto", 0, 1, 2] = "auto",
    rule: KeepBest = DEFAULT_RULE,
    best_before: Callable[[], tuple[float, int] | None] = lambda: None,
    curves_before: Callable[[], Curves] = dict,
    *,
    output: Console | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Sink:
    """Return a sink that shows progress: 0 nothing, 1 a bar, 2 a line per epoch.

    "auto" draws a bar where the output can be redrawn, and curves in a notebook. The bar shows the
    best validation by `rule`; `best_before` returns score and step of the best validation before
    this start, `curves_before` the curves.

    >>> from loopwright.events import EpochEnded, Started
    >>> show = console(verbose=2)
    >>> show(Started(step=0, epochs=3, steps_per_epoch=45, total_steps=135))
    >>> show(EpochEnded(epoch=0, step=45, steps=45, seconds=0.41, metrics={"loss": 0.21337}))
    epoch 1/3 · 45 steps · 0.41 s · 110 steps/s · loss 0.2134
    """
    _require_known(verbose)
    if verbose == 0:
        return _ignore
    if verbose != 2 and output is None and in_notebook():
        return _Guarded(Panel(clock, rule, best_before, curves_before))
    # With FORCE_COLOR rich treats a file as a terminal; a bar in a file is noise.
    screen = output or Console(force_terminal=None if is_terminal(sys.stdout) else False)
    is_plain = verbose == 2 or (verbose == "auto" and _asks_for_plain_text())
    if not is_plain and _can_redraw(screen):
        return _Guarded(Bar(screen, clock, rule, best_before))
    # In a notebook rich would wrap each line in HTML.
    return _Guarded(Lines(output or Console(force_jupyter=False), clock))


def show_scores(verbose: Literal["auto", 0, 1, 2], numbers: Metrics) -> None:
    """Print the scores of `evaluate` as one line, unless `verbose` is 0.

    >>> show_scores(2, {"loss": 0.21337})
    evaluate · loss 0.2134
    """
    _require_known(verbose)
    if verbose != 0:
        parts = [progress_text.Part("evaluate"), *progress_text.numbers(numbers)]
        print(progress_text.GAP.join(part.text for part in parts), flush=True)


def _require_known(verbose: object) -> None:
    if verbose not in ("auto", 0, 1, 2):
        raise ConfigurationError(
            message(
                "Unknown verbosity.",
                expected='"auto", 0 (silent), 1 (bar) or 2 (a line per epoch)',
                received=f"verbose={verbose!r}",
                do='leave verbose out: "auto" draws a bar in a terminal, curves in a notebook',
            )
        )


def _ignore(event: Event) -> None:
    """Show nothing."""


def _asks_for_plain_text() -> bool:
    return any(os.environ.get(name) for name in ("CI", "NO_COLOR"))


def _can_redraw(output: Console) -> bool:
    """Return whether lines can be redrawn, with the Unicode characters of a bar."""
    is_utf = output.encoding.startswith("utf")
    return output.is_terminal and not output.is_dumb_terminal and is_utf


@final
class _Guarded:
    """Gives events to a display until its output breaks; training continues without output."""

    def __init__(self, display: Bar | Lines | Panel) -> None:
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
            # rich exits the program on a broken pipe.
            if not isinstance(error.__context__, BrokenPipeError):
                raise
            self._give_up()

    def _give_up(self) -> None:
        self._is_broken = True
        with contextlib.suppress(Exception, SystemExit):
            self._display.close()
