"""Progress in a terminal: a live bar, or plain lines where the output is no terminal."""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TextIO, final

from rich.cells import cell_len
from rich.console import Console, Group
from rich.control import strip_control_codes
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.segment import Segment, Segments
from rich.table import Table
from rich.text import Text

from loopwright import disk
from loopwright.dispatch import RunFile, attempted, tolerated
from loopwright.errors import ConfigurationError, disk_explained
from loopwright.events import (
    EpochEnded,
    EpochStarted,
    Event,
    Finished,
    Metrics,
    Sink,
    Started,
    Trained,
    Validated,
)
from loopwright.sinks import progress_text
from loopwright.sinks.curves import Curves
from loopwright.sinks.notebook import Panel, in_notebook
from loopwright.sinks.progress_text import DEFAULT_RULE, GAP, INDENT, Outlook, Part, RunLines

if TYPE_CHECKING:
    from loopwright import KeepBest

_SECONDS_BETWEEN_DRAWINGS = 0.2
_SECONDS_BETWEEN_EPOCHS = 0.1  # short epochs are printed together: each print costs a millisecond
_SECONDS_BETWEEN_LINES = 60.0
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
        rule: "KeepBest",
        best_before: Callable[[], tuple[float, int] | None],
    ) -> None:
        self._output, self._clock = output, clock
        self._lines = RunLines()
        self._outlook = Outlook(clock, rule, best_before)
        self._live: Live | None = None
        self._drawn_at = float("-inf")
        self._unprinted: list[list[Part]] = []
        self._printed_at = float("-inf")

    def show(self, event: Event) -> None:
        """Draw an event."""
        self._outlook.update(event)
        if isinstance(event, Started):
            self._start()
        elif isinstance(event, Finished):
            self.close()
        lines = self._lines.add(event)
        self._unprinted += lines
        if isinstance(event, EpochEnded):
            if self._clock() - self._printed_at >= _SECONDS_BETWEEN_EPOCHS:
                self._print()
            if event.seconds >= 1:  # a bar for each short epoch would flicker
                self._drawn_at = float("-inf")
        elif lines:
            self._print()
        if isinstance(event, Trained | Validated | EpochStarted):
            self._draw_if_due()

    def close(self) -> None:
        """Restore the cursor, stdout and stderr."""
        if self._live is not None:
            live, self._live = self._live, None
            live.stop()

    def _start(self) -> None:
        self.close()
        self._drawn_at = float("-inf")
        self._unprinted.clear()
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

    def _print(self) -> None:
        """Print the lines that have not been printed yet: they stay, above the bar."""
        lines, self._unprinted = self._unprinted, []
        self._printed_at = self._clock()
        with self._output:
            if self._live is not None and self._lines.unfinished is None:
                self._live.update(Text(), refresh=True)
            width = self._output.width
            segments = [each for parts in lines for each in self._segments(parts, width)]
            self._output.print(Segments(segments), end="", crop=False)

    def _segments(self, parts: Sequence[Part], width: int) -> Iterator[Segment]:
        """Yield the wrapped parts as rich would render them, ten times faster.

        Epochs can be short. Only a part that is wider than the screen is rendered by rich.
        """
        style = self._output.get_style
        for number, line in enumerate(progress_text.wrapped(parts, width)):
            indent = INDENT if number else ""
            if len(line) == 1 and len(indent) + progress_text.columns(line) > width:
                yield from self._output.render(_line(line, indent))
                continue
            yield Segment(indent)
            for place, part in enumerate(line):
                if place:
                    yield Segment(GAP, style("dim"))
                text = strip_control_codes(part.text)
                yield Segment(text, style(part.style) if part.style else None)
            yield Segment.line()

    def _draw_if_due(self) -> None:
        now, event = self._clock(), self._lines.unfinished
        is_due = now - self._drawn_at >= _SECONDS_BETWEEN_DRAWINGS
        if not is_due or self._live is None or event is None:
            return
        self._drawn_at = now
        if self._unprinted:
            self._print()
        self._lines.measure(now)
        if event.steps:
            self._outlook.note_loss(event)
        lines = [*_wrapped(self._outlook.parts(), self._output.width), *self._bars(event, now)]
        self._live.update(Group(*lines), refresh=True)

    def _bars(self, event: Trained, now: float) -> list[Text | Table]:
        """Return a bar for the epoch, and one for the run if the run has several epochs."""
        epoch, *rest = self._lines.current()
        width, (least, most) = self._output.width, _BAR_COLUMNS
        room = width - cell_len(epoch.text) - least - 2
        first_line, *below = progress_text.wrapped(rest, room)
        of_run = self._outlook.progress(event)
        left = [] if of_run is None else self._outlook.left(event)
        if max(map(progress_text.columns, (first_line, left))) > room:  # no room for a bar
            of_run_too = [Part("run", "bold"), *left] if left else []
            return [*_wrapped(of_run_too, width), *_wrapped([epoch, *rest], width)]
        rows = [(epoch, progress_text.progress(self._lines.run, event), _line(first_line))]
        if of_run is not None:
            rows.insert(0, (Part("run", "bold"), of_run, _line(left)))
        columns = min(most, room + least - max(text.cell_len for _, _, text in rows))
        grid = Table.grid(padding=(0, 1))
        for label, (done, total), text in rows:
            is_endless = total is None
            bar = ProgressBar(total, done, columns, is_endless, animation_time=now)
            grid.add_row(Text(label.text, label.style), bar, text)
        unplaced = [part for line in below for part in line]
        return [grid, *_wrapped(unplaced, width, is_continued=True)]


def _wrapped(parts: Iterable[Part], room: int, *, is_continued: bool = False) -> Iterator[Text]:
    """Yield lines of at most `room` columns; only a part that is wider may exceed them."""
    for number, line in enumerate(progress_text.wrapped(parts, room - len(INDENT) * is_continued)):
        indent = INDENT if number or is_continued else ""
        yield _line(line, indent)


def _line(parts: Iterable[Part], indent: str = "") -> Text:
    line, gap = Text(indent, overflow="fold"), ""
    for part in parts:
        line.append(gap, "dim").append(part.text, part.style)
        gap = GAP
    return line


@final
class Lines:
    """Prints one line per epoch, and one per minute inside an epoch."""

    def __init__(self, output: Console, clock: Callable[[], float]) -> None:
        self._output, self._clock = output, clock
        self._lines = RunLines()
        self._printed_at = clock()

    def show(self, event: Event) -> None:
        """Print the lines of an event."""
        for line in self._lines.add(event):
            self._print(line)
        if isinstance(event, Started):
            self._printed_at = self._clock()
        elif isinstance(event, Trained):
            now = self._clock()
            self._lines.measure(now)
            if now - self._printed_at > _SECONDS_BETWEEN_LINES:
                self._print(self._lines.current())

    def close(self) -> None:
        """Do nothing: lines need no cleanup."""

    def _print(self, parts: Iterable[Part]) -> None:
        line = GAP.join(part.text for part in parts)
        if not self._output.encoding.startswith("utf"):
            line = line.replace(GAP, " - ")
            line = line.encode(self._output.encoding, "replace").decode(self._output.encoding)
        # Not through rich, which takes five times as long: epochs can be short.
        print(line, file=self._output.file, flush=True)
        self._printed_at = self._clock()


@final
class LogFile(RunFile):
    """Appends lines to a file of a run, which keeps those of every start."""

    def __init__(self, directory: Path, name: str, clock: Callable[[], float]) -> None:
        self._directory, self._name, self._clock = directory, name, clock
        self._file: TextIO | None = None
        self._show: Sink = _ignore

    def open(self, lengths: Mapping[str, int], *, is_new_leg: bool) -> None:
        """Open the file to append to it."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        with disk_explained(self._directory):
            handle = disk.opened(self._directory, self._name, flags)
        self._file = os.fdopen(handle, "a", encoding="utf-8")
        # In a notebook rich would show the lines there, and write none.
        output = Console(file=self._file, width=200, force_terminal=False, force_jupyter=False)
        self._show = tolerated(Lines(output, self._clock).show)

    def __call__(self, event: Event) -> None:
        """Print the lines of an event."""
        self._show(event)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            with attempted("The last lines of the log"):
                self._file.close()


def console(
    verbose: Literal["auto", 0, 1, 2] = "auto",
    rule: "KeepBest" = DEFAULT_RULE,
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
    wants_lines = any(os.environ.get(name) for name in ("CI", "NO_COLOR"))
    is_plain = verbose == 2 or (verbose == "auto" and wants_lines)
    can_redraw = screen.is_terminal and not screen.is_dumb_terminal
    if not is_plain and can_redraw and screen.encoding.startswith("utf"):
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
        parts = [Part("evaluate"), *progress_text.numbers(numbers)]
        print(GAP.join(part.text for part in parts), flush=True)


def _require_known(verbose: object) -> None:
    if verbose not in ("auto", 0, 1, 2):
        raise ConfigurationError(
            "Unknown verbosity.",
            expected='"auto", 0 (silent), 1 (bar) or 2 (a line per epoch)',
            received=f"verbose={verbose!r}",
            do='leave verbose out: "auto" draws a bar in a terminal, curves in a notebook',
        )


def _ignore(event: Event) -> None:
    """Show nothing."""


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
