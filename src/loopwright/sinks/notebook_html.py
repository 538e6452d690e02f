"""HTML for notebooks: progress, metrics, histories. Every name and text is escaped.

It has no script and no style sheet: a saved notebook shows it again, on a light and a dark page. A
viewer that does not trust the notebook leaves the charts out and keeps the tables.
"""

from collections.abc import Iterable, Mapping, Sequence

from loopwright.sinks import curves, svg_charts
from loopwright.sinks.curves import Curves, Numbers
from loopwright.sinks.progress_text import GAP, Part, number, sparkline
from loopwright.sinks.svg_charts import escaped

_BOX = "font:13px/1.5 system-ui,sans-serif;max-width:1040px"
_CELL = "text-align:left;padding:1px 14px 1px 0;border:0;background:none"
_NUMBER = f"{_CELL};font-variant-numeric:tabular-nums"
_SOFT = "opacity:.65"
_MOST_ROWS = 8
_MOST_METRICS = 12
_STYLES = {"bold": "font-weight:600", "dim": _SOFT, "yellow": "color:#b7791f"}


def box(*parts: str) -> str:
    """Return the parts of an output, in one element."""
    return f'<div style="{_BOX}">{"".join(part for part in parts if part)}</div>'


def line(parts: Iterable[Part]) -> str:
    """Return a line of progress."""
    shown = (_styled(escaped(part.text), _STYLES.get(part.style, "")) for part in parts)
    return f"<div>{GAP.join(shown)}</div>"


def _styled(shown: str, style: str) -> str:
    return f'<span style="{style}">{shown}</span>' if style else shown


def bar(done: int, total: int | None) -> str:
    """Return a bar; nothing if it is not known how much there is to do."""
    if not total:
        return ""
    share = 100 * min(1.0, max(0.0, done / total))
    return (
        '<div style="background:rgba(127,127,127,.25);border-radius:3px;height:6px;'
        f'max-width:480px;margin:4px 0"><div style="width:{share:.1f}%;height:6px;'
        f'border-radius:3px;background:{svg_charts.COLORS[0]}"></div></div>'
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; the cells are texts."""
    cells = "".join(f'<th style="{_CELL};{_SOFT};font-weight:400">{escaped(h)}</th>' for h in head)
    first = f"<tr>{cells}</tr>" if any(head) else ""
    body = "".join(
        f"<tr>{''.join(f'<td style={_quoted(_NUMBER)}>{escaped(cell)}</td>' for cell in row)}</tr>"
        for row in rows
    )
    style = "border-collapse:collapse;margin:4px 0;width:auto;border:0;color:inherit;font:inherit"
    return f'<table style="{style}">{first}{body}</table>' if body else ""


def _quoted(style: str) -> str:
    return f'"{style}"'


def metrics(drawn: Curves, now: Mapping[str, float]) -> str:
    """Return the last numbers of each metric: training (`now`, in a running epoch), validation."""
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
                "" if best is None else f"{number(best.score)} at step {best.x:,.0f}",
                sparkline(trend) if len(trend) > 1 else "",
            )
        )
    more = [(f"and {len(rows) - _MOST_METRICS} more",)] if len(rows) > _MOST_METRICS else []
    head = ("metric", "train", "validation", "best validation", "trend")
    return table(head, [*rows[:_MOST_METRICS], *more])


def history(numbers: Numbers) -> str:
    """Return a history: its last epochs as a table, and its curves."""
    count = len(numbers.epoch)
    found = curves.by_epoch(numbers)
    best = curves.best_of(found)
    title = [Part("History", "bold"), Part(f"{count} {'epoch' if count == 1 else 'epochs'}")]
    x_label = "epoch" if count else "step"
    if best is not None:
        title.append(Part(f"best {best.metric} {number(best.score)} at {x_label} {best.x:,.6g}"))
    return box(
        line(title),
        _epochs(numbers),
        svg_charts.charts(found, x_label, None if best is None else best.x),
    )


def _epochs(numbers: Numbers) -> str:
    """Return the table of the last epochs; `val_` numbers are the last ones of each epoch."""
    shown = list(zip(numbers.epoch, numbers.epoch_steps, strict=False))[-_MOST_ROWS:]
    names = list(numbers.history)[:_MOST_METRICS]
    rows = [
        [f"{epoch + 1}", f"{step:,}", *(_at(numbers, name, step) for name in names)]
        for epoch, step in shown
    ]
    return table(["epoch", "step", *names], rows)


def _at(numbers: Numbers, name: str, step: int) -> str:
    """Return the last value of a number up to a step, in few characters."""
    is_validation = name.startswith("val_")
    steps = numbers.validation_steps if is_validation else numbers.epoch_steps
    values = numbers.history[name]
    known = zip(steps[-len(values) :], values, strict=False)
    found = [value for at, value in known if at == step or (is_validation and at <= step)]
    return number(found[-1]) if found else ""
