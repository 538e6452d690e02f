"""Charts of curves: SVG text for notebooks, matplotlib figures for files.

SVG has no script and no style sheet, and is readable on a light and on a dark page. Figures are
drawn without pyplot: no windows, no global state.
"""

import html
import io
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from loopwright.errors import ConfigurationError, printable
from loopwright.extras import imported
from loopwright.sinks import curves
from loopwright.sinks.curves import Best, Lines, Points, thinned

if TYPE_CHECKING:
    from loopwright import History

Scale = Callable[[float], float]
COLORS = ("#2f81d6", "#e07a1f", "#2a9d5c", "#c23b4b", "#8a63c9", "#8c6d4f", "#d45fa5", "#7a8791")
"""Read on white and on black; text and axes take the color of the page."""
_WIDTH, _HEIGHT = 320, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 10, 26, 30
_SVG_POINTS = 160
_MOST_CHARTS = 8
_MOST_COLUMNS = 3
_MOST_PANELS = 30


def escaped(value: object) -> str:
    """Return a text as HTML: what a user or a file has named is never markup.

    >>> escaped("<script>")
    '&lt;script&gt;'
    """
    return html.escape(printable(str(value)))


def svg_charts(
    drawn: Mapping[str, Lines], x_label: str, best_x: float | None = None, live: str = ""
) -> str:
    """Return a row of charts, one for each metric; `live` is the name of a faint line."""
    shown = [(title, lines) for title, lines in drawn.items() if any(lines.values())]
    found = [
        svg_chart(title, lines, x_label, best_x, live) for title, lines in shown[:_MOST_CHARTS]
    ]
    left = len(shown) - len(found)
    more = f'<div style="opacity:.65">and {left} more metrics</div>' if left else ""
    row = "display:flex;flex-wrap:wrap;gap:4px 12px;margin-top:6px"
    return f'<div style="{row}">{"".join(found)}</div>{more}' if found else ""


def svg_chart(
    title: str, lines: Lines, x_label: str, best_x: float | None = None, live: str = ""
) -> str:
    """Return one chart; values that are not finite are left out.

    >>> picture = svg_chart("a < b", {"train": [(1.0, 0.5), (2.0, 0.25)]}, "epoch")
    >>> picture.startswith("<svg"), "a &lt; b" in picture, "<polyline" in picture
    (True, True, True)
    """
    names = sorted(lines, key=lambda name: name != "train")  # the same color in every chart
    lines = {name: _finite(lines[name]) for name in names}
    points = [point for line in lines.values() for point in line]
    if not points:
        return ""
    xs, ys = zip(*points, strict=True)
    low, high = _padded(min(ys), max(ys))
    first, last = (min(xs), max(xs)) if max(xs) > min(xs) else (min(xs) - 0.5, max(xs) + 0.5)

    def x_of(x: float) -> float:
        return _LEFT + (x - first) / (last - first) * (_WIDTH - _LEFT - _RIGHT)

    def y_of(y: float) -> float:
        return _HEIGHT - _BOTTOM - (y - low) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

    parts = [_axes(ticks(low, high), ticks(first, last, whole=True), x_of, y_of)]
    if best_x is not None and first <= best_x <= last:
        parts.append(
            f'<line x1="{x_of(best_x):.1f}" x2="{x_of(best_x):.1f}" y1="{_TOP}" '
            f'y2="{_HEIGHT - _BOTTOM}" stroke="currentColor" stroke-opacity=".5" '
            'stroke-dasharray="3 3"/>'
        )
    named = list[tuple[str, str]]()
    for name, line in lines.items():
        if not line:
            continue
        color = COLORS[0] if name == live else COLORS[len(named) % len(COLORS)]
        if name != live:
            named.append((name, color))
        parts.append(_svg_line(line, color, x_of, y_of, is_faint=name == live))
    parts.append(_texts(title, named, x_label))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escaped(title)}" '
        f'width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'style="max-width:100%" font-family="system-ui,sans-serif" font-size="11" '
        f'fill="currentColor">{"".join(parts)}</svg>'
    )


def _finite(points: Points) -> list[tuple[float, float]]:
    kept = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    return list(thinned(kept, _SVG_POINTS))


def _padded(low: float, high: float) -> tuple[float, float]:
    """Return the range of an axis: a little more than that of the values."""
    room = (high - low) * 0.05 or abs(high) * 0.1 or 1.0
    return low - room, high + room


def ticks(low: float, high: float, *, whole: bool = False) -> list[float]:
    """Return two to six round numbers in a range.

    >>> ticks(0.02, 0.93)
    [0.2, 0.4, 0.6, 0.8]
    >>> ticks(1, 8, whole=True)
    [2, 4, 6, 8]
    """
    rough = (high - low) / 5
    if not math.isfinite(rough) or rough <= 0:
        return []
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * n for n in (1, 2, 5, 10) if unit * n >= rough * 0.999)
    if whole:
        step = max(1.0, round(step))
    first = math.ceil(low / step - 1e-9)
    return [round(n * step, 12) for n in range(first, first + 7) if n * step <= high * (1 + 1e-12)]


def _axes(ys: Sequence[float], xs: Sequence[float], x_of: Scale, y_of: Scale) -> str:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    parts = list[str]()
    for y in ys:
        parts.append(
            f'<line x1="{_LEFT}" x2="{right}" y1="{y_of(y):.1f}" y2="{y_of(y):.1f}" '
            'stroke="currentColor" stroke-opacity=".15"/>'
            f'<text x="{_LEFT - 5}" y="{y_of(y) + 3.5:.1f}" text-anchor="end" '
            f'fill-opacity=".75">{y:.4g}</text>'
        )
    for x in xs:
        parts.append(
            f'<text x="{x_of(x):.1f}" y="{bottom + 13}" text-anchor="middle" '
            f'fill-opacity=".75">{_short(x)}</text>'
        )
    parts.append(
        f'<line x1="{_LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}" '
        'stroke="currentColor" stroke-opacity=".4"/>'
    )
    return "".join(parts)


def _short(x: float) -> str:
    """Return a step or an epoch in few characters.

    >>> [_short(x) for x in (7.0, 12_000.0, 2_500_000.0)]
    ['7', '12k', '2.5M']
    """
    for size, letter in ((1e6, "M"), (1e4, "k")):
        if abs(x) >= size:
            return f"{x / (1e3 if letter == 'k' else size):g}{letter}"
    return f"{x:g}"


def _svg_line(points: Points, color: str, x_of: Scale, y_of: Scale, *, is_faint: bool) -> str:
    strength = 'stroke-opacity=".4" stroke-width="1"' if is_faint else 'stroke-width="1.7"'
    if len(points) == 1:
        (x, y) = points[0]
        return f'<circle cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="2.5" fill="{color}"/>'
    path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in points)
    return (
        f'<polyline points="{path}" fill="none" stroke="{color}" stroke-linejoin="round" '
        f"{strength}/>"
    )


def _texts(title: str, named: Sequence[tuple[str, str]], x_label: str) -> str:
    shown = title if len(title) <= 28 else f"{title[:27]}…"
    parts = [
        f'<text x="{_LEFT}" y="15" font-weight="600" font-size="12">{escaped(shown)}</text>',
        f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 4}" text-anchor="end" '
        f'fill-opacity=".75">{escaped(x_label)}</text>',
    ]
    x = _WIDTH - _RIGHT
    for name, color in reversed(named[:3]):
        label = name if len(name) <= 12 else f"{name[:11]}…"
        parts.append(
            f'<text x="{x}" y="15" text-anchor="end">'
            f'<tspan fill="{color}">●</tspan> {escaped(label)}</text>'
        )
        x -= 6 * len(label) + 22
    return "".join(parts)


def new(what: str, size: tuple[float, float] = (7, 4)) -> Any:
    """Return an empty figure; raise if matplotlib, which `what` needs, is not installed."""
    matplotlib = imported("plot", what, instead="use the numbers, which are there without it")
    from matplotlib.figure import Figure

    if Path(matplotlib.matplotlib_fname()).resolve().parent == Path.cwd():
        matplotlib.rcdefaults()  # the settings of a directory from elsewhere can start LaTeX

    @final
    class ShownFigure(Figure):
        """A figure that a notebook shows, also where pyplot was never imported."""

        def _repr_png_(self) -> bytes:
            drawn = io.BytesIO()
            self.savefig(drawn, format="png", dpi=100)
            return drawn.getvalue()

    return ShownFigure(figsize=size, layout="constrained")


def saved(figure: Any, path: Any) -> Any:
    """Return the figure; write it to a `.png`, `.pdf` or `.svg` file if there is a path."""
    if path is None:
        return figure
    target = Path(path)
    kind = target.suffix.lstrip(".").lower() or "png"
    drawn = io.BytesIO()
    try:
        figure.savefig(drawn, format=kind, dpi=100)
        target.write_bytes(drawn.getvalue())
    except (ValueError, OSError) as error:
        raise ConfigurationError(
            f"The figure cannot be written to {target}.",
            expected="a path that ends in .png, .pdf or .svg, in a directory that exists",
            received=str(error),
            do="pass another path",
        ) from error
    return figure


def plot_history(history: "History", metrics: "str | Sequence[str] | None") -> Any:
    """Return a figure with one panel for each metric; the best validation is marked in each."""
    known = curves.by_epoch(history)
    best, x_label = curves.best_of(known), "epoch" if history.epoch else "step"
    drawn = curves.chosen(known, metrics)
    titles = [title for title, lines in drawn.items() if any(lines.values())][:_MOST_PANELS]
    if not titles:
        raise ConfigurationError(
            "There are no numbers to plot.",
            expected="a training with at least one epoch or validation",
            received="no numbers",
            do="train first: Trainer.fit, or loopwright train",
        )
    columns = min(_MOST_COLUMNS, len(titles))
    rows = math.ceil(len(titles) / columns)
    figure = new("A plot of curves", (4.6 * columns + 0.4, 3.4 * rows))
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    for panel, title in zip(panels, titles, strict=False):
        _draw(panel, title, {name: line for name, line in drawn[title].items() if line}, best)
        panel.set_xlabel(x_label)
    for panel in panels[len(titles) :]:
        panel.set_axis_off()
    if best is not None:
        place = f"{x_label} {best.x:,.6g}"
        figure.suptitle(_text(f"best {best.metric} {best.score:.4g} at {place}"), fontsize=10)
    return figure


def _draw(panel: Any, title: str, lines: Lines, best: Best | None) -> None:
    from matplotlib.ticker import MaxNLocator

    for (name, points), color in zip(lines.items(), itertools.cycle(COLORS), strict=False):
        xs, ys = zip(*points, strict=True)
        marker = "o" if len(points) <= 12 else None
        panel.plot(
            xs, ys, label=_text(name), color=color, linewidth=1.6, marker=marker, markersize=3.5
        )
    if best is not None:
        panel.axvline(best.x, color="0.5", linewidth=1, linestyle=":", zorder=0)
        if best.metric == f"val_{title}":
            color = COLORS[list(lines).index("validation")]
            panel.plot([best.x], [best.score], "*", color=color, markersize=11, zorder=3)
    panel.set_title(_text(title), fontsize=11, loc="left", fontweight="bold")
    panel.grid(alpha=0.25)
    panel.spines[["top", "right"]].set_visible(False)
    panel.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))
    if len(lines) > 1:
        panel.legend(frameon=False, fontsize=9)


def _text(text: str) -> str:
    r"""Return a label that matplotlib draws as it is: a `$` would begin a formula.

    >>> print(_text("cost in $"), _text("_hidden").encode("ascii", "replace").decode())
    cost in \$ ?_hidden
    """
    shown = text if len(text) <= 60 else f"{text[:59]}…"
    # Labels that begin with an underscore are left out of legends.
    hidden = "\u200b" if shown.startswith("_") else ""
    return hidden + "".join(c if c.isprintable() else "?" for c in shown).replace("$", r"\$")
