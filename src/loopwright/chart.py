"""Charts as SVG text: lines over steps, with axes a person can read. No library, no script.

>>> drawn = chart("loss", {"train": [(0, 1.0), (10, 0.5)], "validation": [(10, 0.7)]}, "step")
>>> drawn.startswith("<svg") and "validation" in drawn
True
"""

import html
import math
from collections.abc import Mapping, Sequence

Points = Sequence[tuple[float, float]]

_WIDTH, _HEIGHT = 640, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 34, 42
_MOST_POINTS = 600
_MOST, _LEAST = 1e300, 1e-290


def chart(title: str, lines: Mapping[str, Points], x_label: str) -> str:
    """Lines by name in one frame; points that are not finite are left out."""
    lines = {name: _thinned(_finite(points)) for name, points in lines.items()}
    lines = {name: points for name, points in lines.items() if points}
    if not lines:
        return ""
    xs = [x for points in lines.values() for x, _ in points]
    ys = [y for points in lines.values() for _, y in points]
    x_ticks, y_ticks = ticks(min(xs), max(xs)), ticks(min(ys), max(ys))
    x_range = (min(xs[0], *xs, x_ticks[0]), max(*xs, x_ticks[-1]))
    y_range = (min(*ys, y_ticks[0]), max(*ys, y_ticks[-1]))

    def place(x: float, y: float) -> str:
        across = (x - x_range[0]) / ((x_range[1] - x_range[0]) or 1.0)
        up = (y - y_range[0]) / ((y_range[1] - y_range[0]) or 1.0)
        left = _LEFT + across * (_WIDTH - _LEFT - _RIGHT)
        return f"{left:.1f},{_HEIGHT - _BOTTOM - up * (_HEIGHT - _TOP - _BOTTOM):.1f}"

    parts = [f'<text class="title" x="{_LEFT}" y="18">{html.escape(title)}</text>']
    for tick in y_ticks:
        y = place(x_range[0], tick).partition(",")[2]
        parts.append(f'<path class="grid" d="M{_LEFT},{y}H{_WIDTH - _RIGHT}"/>')
        parts.append(
            f'<text class="tick" x="{_LEFT - 6}" y="{y}" dy="4" text-anchor="end">'
            f"{number(tick)}</text>"
        )
    for tick in x_ticks:
        x = place(tick, y_range[0]).partition(",")[0]
        parts.append(
            f'<text class="tick" x="{x}" y="{_HEIGHT - _BOTTOM + 16}" '
            f'text-anchor="middle">{number(tick)}</text>'
        )
    parts.append(
        f'<text class="tick" x="{(_LEFT + _WIDTH) / 2:.0f}" y="{_HEIGHT - 6}" '
        f'text-anchor="middle">{html.escape(x_label)}</text>'
    )
    for index, (name, points) in enumerate(lines.items()):
        at = [place(x, y) for x, y in points]
        kind = f"line-{index % 6}"
        if len(at) == 1:
            x, _, y = at[0].partition(",")
            parts.append(f'<circle class="{kind} dot" cx="{x}" cy="{y}" r="3.5"/>')
        else:
            parts.append(f'<polyline class="{kind}" points="{" ".join(at)}"/>')
        x = _WIDTH - _RIGHT - 118 * (len(lines) - index)
        parts.append(
            f'<path class="{kind}" d="M{x},14h16"/>'
            f'<text class="tick" x="{x + 21}" y="18">{html.escape(name[:14])}</text>'
        )
    label = html.escape(f"{title} over {x_label}s")
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">'
        f"{''.join(parts)}</svg>"
    )


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers that span a range.

    >>> ticks(0.0, 0.93)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    if high - low <= _LEAST:
        low, high = low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{index * step:.12g}") for index in range(first, last + 1)]


def number(value: float) -> str:
    """A number beside an axis.

    >>> [number(value) for value in (0.0, 0.25, 1500.0, 2e6, 3e-5)]
    ['0', '0.25', '1,500', '2e+06', '3e-05']
    """
    if value and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.3g}"
    return f"{value:,.6g}"


def _finite(points: Points) -> list[tuple[float, float]]:
    # Beyond this a range has no length that is a number.
    return [(x, y) for x, y in points if abs(x) < _MOST and abs(y) < _MOST]


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """So many points that a page stays small; the first and the last stay."""
    every = math.ceil(len(points) / _MOST_POINTS)
    return points if every <= 1 else [*points[:-1:every], points[-1]]
