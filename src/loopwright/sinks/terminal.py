"""Progress for a person: a live bar in a terminal, plain lines anywhere else."""

import contextlib
import importlib.util
import os
import sys
import time
from collections.abc import Callable
from typing import Literal, final

from rich.console import Console

from loopwright.checkpoints.retention import KeepBest
from loopwright.errors import ConfigurationError, message
from loopwright.events import Event, Metrics, Sink
from loopwright.sinks import progress_text
from loopwright.sinks.bar import Bar, is_terminal
from loopwright.sinks.log import Lines
from loopwright.sinks.outlook import DEFAULT_RULE


def console(
    verbose: Literal["auto", 0, 1, 2] = "auto",
    rule: KeepBest = DEFAULT_RULE,
    best_before: Callable[[], tuple[float, int] | None] = lambda: None,
    *,
    output: Console | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Sink:
    """A sink that shows progress: 0 nothing, 1 a bar, 2 a line per epoch, "auto" what fits.

    The bar names the best validation by `rule`; `best_before` gives score and step of the best one
    before this start.

    >>> from loopwright.events import EpochEnded, Started
    >>> show = console(verbose=2)
    >>> show(Started(step=0, epochs=3, steps_per_epoch=45, total_steps=135))
    >>> show(EpochEnded(epoch=0, step=45, steps=45, seconds=0.41, metrics={"loss": 0.21337}))
    epoch 1/3 · 45 steps · 0.41 s · 110 steps/s · loss 0.2134
    """
    _require_known(verbose)
    if verbose == 0:
        return _ignore
    # FORCE_COLOR makes rich take a file for a terminal; a bar in a file is only noise.
    screen = output or Console(force_terminal=None if is_terminal(sys.stdout) else False)
    is_plain = verbose == 2 or (verbose == "auto" and _asks_for_plain_text())
    if not is_plain and _can_redraw(screen):
        return _Unbreakable(Bar(screen, clock, rule, best_before))
    # In a notebook rich would wrap each line in HTML of its own; text is enough for lines.
    return _Unbreakable(Lines(output or Console(force_jupyter=False), clock))


def show_scores(verbose: Literal["auto", 0, 1, 2], numbers: Metrics) -> None:
    """Print what `evaluate` found, as one line, unless `verbose` is 0.

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
                "This verbosity is unknown.",
                expected='"auto", 0 (silent), 1 (bar) or 2 (a line per epoch)',
                received=f"verbose={verbose!r}",
                do='leave verbose out: "auto" draws a bar in a terminal, plain lines elsewhere',
            )
        )


def _ignore(event: Event) -> None:
    """Hears an event and shows nothing."""


def _asks_for_plain_text() -> bool:
    return any(os.environ.get(name) for name in ("CI", "NO_COLOR"))


def _can_redraw(output: Console) -> bool:
    """Whether a line that was drawn can be drawn again, in characters that bars are made of."""
    if output.is_jupyter:
        return importlib.util.find_spec("ipywidgets") is not None
    is_utf = output.encoding.startswith("utf")
    return output.is_terminal and not output.is_dumb_terminal and is_utf


@final
class _Unbreakable:
    """Hands events to a display until its output breaks: then quiet, for training goes on."""

    def __init__(self, display: Bar | Lines) -> None:
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
