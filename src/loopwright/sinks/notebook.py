"""What a notebook shows: the progress, drawn again in place, and a history.

It is HTML without script and style sheet: a saved notebook shows it again, on a light and a dark
page. A viewer that does not trust the notebook leaves the charts out and keeps the tables.
"""

import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

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
from loopwright.sinks import curves, figures, progress_text
from loopwright.sinks.curves import Curves
from loopwright.sinks.figures import escaped
from loopwright.sinks.progress_text import GAP, Outlook, Part, RunLines, number, sparkline

if TYPE_CHECKING:
    from loopwright import History, KeepBest

_SECONDS_BETWEEN_DRAWINGS = 0.25
_MOST_SHARE = 0.02
"""Of the time, for drawing: a run of very many epochs is drawn less often."""
_MOST_LIVE = 400
_MOST_LINES = 200
_MOST_NOTES = 6
_MOST_ROWS = 12
_LIVE = "this epoch"
_SOFT = "opacity:.65"
_STYLES = {"bold": "font-weight:600", "dim": _SOFT, "yellow": "color:#b7791f"}


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook; nothing is imported for that."""
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return get_shell is not None and hasattr(get_shell(), "kernel")


@final
class Panel:
    """Shows the run as HTML, at most four times a second; its last state stays in the notebook."""

    def __init__(
        self,
        clock: Callable[[], float],
        rule: "KeepBest",
        best_before: Callable[[], tuple[float, int] | None],
        curves_before: Callable[[], Curves],
    ) -> None:
        self._clock, self._curves_before = clock, curves_before
        self._lines = RunLines()
        self._outlook = Outlook(clock, rule, best_before)
        self._curves: Curves = {}
        self._live: dict[str, list[tuple[float, float]]] = {}
        """Running numbers of the epoch, as they were when they were drawn."""
        self._heading: list[Part] = []
        self._notes: deque[list[Part]] = deque(maxlen=_MOST_NOTES)
        self._texts: deque[str] = deque(maxlen=_MOST_LINES)
        """All lines, for what shows no HTML."""
        self._handle: Any = None
        self._due_at = float("-inf")

    def show(self, event: Event) -> None:
        """Draw an event, if a drawing is due."""
        self._outlook.update(event)
        if isinstance(event, Started):
            self._start(event)
        lines = self._lines.add(event)
        self._texts += (GAP.join(part.text for part in line) for line in lines)
        match event:
            case Started() | PlanChosen() | BatchSkipped() | Noted():
                self._notes += lines
            case EpochStarted():
                self._live.clear()
            case Validated():
                curves.add_event(self._curves, event)
            case EpochEnded():
                self._live.clear()
                curves.add_event(self._curves, event)
                self._heading = lines[0]
            case Finished():
                ending, *notes = lines[-2:] if event.advice else lines[-1:]
                self._heading = [Part(ending[0].text, "bold"), *ending[1:]]
                self._notes += notes
                self._measure(self._clock())
                self._draw(is_last=True)
                return
            case Trained():
                pass
            case _:
                return
        now = self._clock()
        if now >= self._due_at:
            self._measure(now)
            if self._live:
                self._heading = self._lines.current()
            self._draw()
            done = self._clock()
            self._due_at = max(now + _SECONDS_BETWEEN_DRAWINGS, done + (done - now) / _MOST_SHARE)

    def close(self) -> None:
        """Leave the output as it is."""

    def _start(self, event: Started) -> None:
        self._handle, self._due_at = None, float("-inf")
        self._curves = curves.until(self._curves_before(), event.step)
        self._live.clear()
        self._notes.clear()
        self._texts.clear()
        of = "" if event.epochs is None else f" of {event.epochs} epochs"
        self._heading = [Part("starting", "bold"), Part(f"compiling the step{of}", "dim")]

    def _measure(self, now: float) -> None:
        """Note the rate of steps and the running numbers."""
        event = self._lines.unfinished
        if event is None or not event.steps:
            return
        self._lines.measure(now)
        for name, value in curves.running(event.metrics).items():
            if name in self._curves or "/" not in name:
                line = self._live.setdefault(name, [])
                line.append((float(event.step), value))
                if len(line) > _MOST_LIVE:
                    del line[1::2]

    def _draw(self, *, is_last: bool = False) -> None:
        bundle = {"text/html": self._html(is_last), "text/plain": "\n".join(self._texts)}
        if self._handle is not None:
            self._handle.update(bundle, raw=True)
            return
        from IPython.display import display  # there is a kernel: it is imported already

        self._handle = display(bundle, raw=True, display_id=True)

    def _html(self, is_last: bool) -> str:
        event, lines = self._lines.unfinished, [_line(self._heading)]
        now = {} if event is None else curves.running(event.metrics)
        if not is_last and event is not None and event.steps:
            of_run = self._outlook.progress(event)
            lines.append(_bar(*(of_run or progress_text.progress(self._lines.run, event))))
            if of_run:
                lines.append(_line([Part("run", "bold"), *self._outlook.left(event)]))
        drawn = {
            name: {
                **self._curves.get(name, {}),
                **({_LIVE: live} if (live := self._live.get(name)) else {}),
            }
            for name in dict.fromkeys([*self._curves, *self._live])
        }
        best = curves.best_of(self._curves)
        return _box(
            *lines,
            metrics_table(self._curves, "step", now),
            figures.svg_charts(drawn, "step", None if best is None else best.x, _LIVE),
            *map(_line, self._notes),
        )


def history_card(history: "History") -> str:
    """Return a history: the last and the best numbers of each metric, and the curves."""
    count = len(history.epoch)
    drawn, x_label = curves.by_epoch(history), "epoch" if count else "step"
    best = curves.best_of(drawn)
    title = [Part("History", "bold"), Part(f"{count} {'epoch' if count == 1 else 'epochs'}")]
    if best is not None:
        title.append(Part(f"best {best.metric} {number(best.score)} at {x_label} {best.x:,.6g}"))
    chart = figures.svg_charts(drawn, x_label, None if best is None else best.x)
    return _box(_line(title), metrics_table(drawn, x_label), chart)


def metrics_table(drawn: Curves, x_label: str, now: Mapping[str, float] | None = None) -> str:
    """Return the last numbers of each metric: training (`now`, in a running epoch), validation."""
    now = now or {}
    rows = list[Sequence[str]]()
    for name in dict.fromkeys([*now, *drawn]):
        lines = drawn.get(name, {})
        train, held_out = lines.get("train", []), lines.get("validation", [])
        last = now.get(name, train[-1][1] if train else None)
        best = curves.best_of({name: {"validation": held_out}})
        trend = [y for _, y in (held_out or train)[-24:]]
        rows.append(
            (
                name,
                "" if last is None else number(last),
                number(held_out[-1][1]) if held_out else "",
                "" if best is None else f"{number(best.score)} at {x_label} {best.x:,.6g}",
                sparkline(trend) if len(trend) > 1 else "",
            )
        )
    more = [(f"and {len(rows) - _MOST_ROWS} more",)] if len(rows) > _MOST_ROWS else []
    head = ("metric", "train", "validation", "best validation", "trend")
    return _table(head, [*rows[:_MOST_ROWS], *more])


# Every name and text is escaped.


def _box(*parts: str) -> str:
    style = "font:13px/1.5 system-ui,sans-serif;max-width:1040px"
    return f'<div style="{style}">{"".join(parts)}</div>'


def _line(parts: Iterable[Part]) -> str:
    shown = (
        f'<span style="{_STYLES.get(part.style, "")}">{escaped(part.text)}</span>' for part in parts
    )
    return f"<div>{GAP.join(shown)}</div>"


def _bar(done: int, total: int | None) -> str:
    """Return a bar; nothing if it is not known how much there is to do."""
    if not total:
        return ""
    share = 100 * min(1.0, max(0.0, done / total))
    return (
        '<div style="background:rgba(127,127,127,.25);border-radius:3px;height:6px;'
        f'max-width:480px;margin:4px 0"><div style="width:{share:.1f}%;height:6px;'
        f'border-radius:3px;background:{figures.COLORS[0]}"></div></div>'
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cell = "text-align:left;padding:1px 14px 1px 0;border:0;background:none"
    style = "border-collapse:collapse;margin:4px 0;width:auto;border:0;color:inherit;font:inherit"
    titles = "".join(f'<th style="{cell};{_SOFT};font-weight:400">{escaped(h)}</th>' for h in head)
    number_cell = f'<td style="{cell};font-variant-numeric:tabular-nums">'
    body = "".join(
        f"<tr>{''.join(f'{number_cell}{escaped(text)}</td>' for text in row)}</tr>" for row in rows
    )
    first = f"<tr>{titles}</tr>" if head else ""
    return f'<table style="{style}">{first}{body}</table>' if body else ""
