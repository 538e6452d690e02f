"""Progress in a notebook: one output, drawn again in place, with the curves so far."""

import contextlib
import sys
from collections import deque
from collections.abc import Callable
from typing import Any, final

from loopwright.checkpoints.retention import KeepBest
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
from loopwright.sinks import curves, notebook_html, progress_text, svg_charts
from loopwright.sinks.curves import Curves
from loopwright.sinks.progress_text import Outlook, Part

_SECONDS_BETWEEN_DRAWINGS = 0.25
_MOST_SHARE = 0.02
"""Of the time, for drawing: a run of very many epochs is drawn less often."""
_MOST_LIVE = 400
_MOST_LINES = 200
_MOST_NOTES = 6
_LIVE = "this epoch"


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook; nothing is imported for that."""
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return get_shell is not None and hasattr(get_shell(), "kernel")


def undisplayed() -> contextlib.AbstractContextManager[Any]:
    """Keep what a library displays out of the cell: a summary that Keras returns as text."""
    if not in_notebook():
        return contextlib.nullcontext()
    from IPython.utils.capture import capture_output

    return capture_output(stdout=False, stderr=False, display=True)


@final
class Panel:
    """Shows the run as HTML, at most four times a second; its last state stays in the notebook."""

    def __init__(
        self,
        clock: Callable[[], float],
        rule: KeepBest,
        best_before: Callable[[], tuple[float, int] | None],
        curves_before: Callable[[], Curves],
    ) -> None:
        self._clock, self._curves_before = clock, curves_before
        self._outlook = Outlook(clock, rule, best_before)
        self._run = Started(0, None, None, None)
        self._curves: Curves = {}
        self._live: dict[str, list[tuple[float, float]]] = {}
        """Running numbers of the epoch, as they were when they were drawn."""
        self._unfinished: Trained | None = None
        self._recent: deque[tuple[float, int]] = deque(maxlen=20)
        self._rate: float | None = None
        self._heading: list[Part] = []
        self._notes: deque[Part] = deque(maxlen=_MOST_NOTES)
        self._lines: deque[str] = deque(maxlen=_MOST_LINES)
        """The same as text, for what shows no HTML."""
        self._handle: Any = None
        self._due_at = float("-inf")

    def show(self, event: Event) -> None:
        """Draw an event, if a drawing is due."""
        self._outlook.update(event)
        match event:
            case Started():
                self._start(event)
            case Trained():
                self._unfinished = event
            case EpochStarted():
                self._recent.clear()
                self._live.clear()
            case Validated():
                curves.add_event(self._curves, event)
                self._recent.clear()  # the rate of steps does not include validation
            case EpochEnded():
                self._unfinished = None
                self._live.clear()
                curves.add_event(self._curves, event)
                self._heading = progress_text.ended(self._run, event)
                self._lines.append(_joined(self._heading))
            case PlanChosen():
                self._note(*progress_text.chosen(event)[:2])
            case BatchSkipped():
                self._note(*progress_text.skipped(event))
            case Noted():
                self._note(Part(f"note: {event.text}", "yellow"))
            case Finished():
                self._finish(event)
                return
            case _:
                return
        now = self._clock()
        if now >= self._due_at:
            self._measure(now)
            self._draw()
            done = self._clock()
            self._due_at = max(now + _SECONDS_BETWEEN_DRAWINGS, done + (done - now) / _MOST_SHARE)

    def close(self) -> None:
        """Leave the output as it is."""

    def _start(self, event: Started) -> None:
        self._run, self._handle, self._unfinished = event, None, None
        self._due_at = float("-inf")
        self._curves = curves.until(self._curves_before(), event.step)
        self._live.clear()
        self._notes.clear()
        self._lines.clear()
        of = "" if event.epochs is None else f" of {event.epochs} epochs"
        self._heading = [Part("starting", "bold"), Part(f"compiling the step{of}", "dim")]
        if event.resumed_steps:
            self._note(*progress_text.resumed(event))

    def _note(self, *parts: Part) -> None:
        note = Part(_joined(parts), parts[0].style)
        self._notes.append(note)
        self._lines.append(note.text)

    def _measure(self, now: float) -> None:
        """Note the rate of steps and the running numbers."""
        event = self._unfinished
        if event is None or not event.steps:
            return
        self._recent.append((now, event.step))
        (since, first), (until, last) = self._recent[0], self._recent[-1]
        if last > first and until > since:
            self._rate = (last - first) / (until - since)
        for name, value in curves.running(event.metrics).items():
            if name in self._curves or "/" not in name:
                line = self._live.setdefault(name, [])
                line.append((float(event.step), value))
                if len(line) > _MOST_LIVE:
                    del line[1::2]
        self._heading = progress_text.running(self._run, event, self._rate)

    def _finish(self, event: Finished) -> None:
        if self._unfinished is not None and self._unfinished.step_in_epoch:
            self._measure(self._clock())
            self._lines.append(_joined(self._heading))
        ending = progress_text.last(self._run, event)
        self._heading = [Part(ending.text, "bold"), *progress_text.spent(event)]
        self._lines.append(_joined(self._heading))
        if event.advice:
            self._note(Part(event.advice, "yellow"))
        self._draw(is_last=True)

    def _draw(self, *, is_last: bool = False) -> None:
        bundle = {"text/html": self._html(is_last), "text/plain": "\n".join(self._lines)}
        if self._handle is not None:
            self._handle.update(bundle, raw=True)
            return
        from IPython.display import display  # there is a kernel: it is imported already

        self._handle = display(bundle, raw=True, display_id=True)

    def _html(self, is_last: bool) -> str:
        event = self._unfinished
        now = {} if event is None else curves.running(event.metrics)
        done, total = (0, None) if event is None else progress_text.progress(self._run, event)
        of_run = None if event is None else self._outlook.progress(event)
        lines = [notebook_html.line(self._heading)]
        if not is_last and event is not None:
            left = [Part("run", "bold"), *self._outlook.left(event)] if of_run else []
            lines += [
                notebook_html.bar(*(of_run or (done, total))),
                notebook_html.line(left) if left else "",
            ]
        drawn = {
            name: {
                **self._curves.get(name, {}),
                **({_LIVE: live} if (live := self._live.get(name)) else {}),
            }
            for name in dict.fromkeys([*self._curves, *self._live])
        }
        best = curves.best_of(self._curves)
        return notebook_html.box(
            *lines,
            notebook_html.metrics(self._curves, now),
            svg_charts.charts(drawn, "step", None if best is None else best.x, _LIVE),
            *(notebook_html.line([note]) for note in self._notes),
        )


def _joined(parts: "list[Part] | tuple[Part, ...]") -> str:
    return progress_text.GAP.join(part.text for part in parts)
