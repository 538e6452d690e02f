"""The curves of a run: charts of lines over steps, with few enough points for one page."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from loopwright.checkpoints.retention import Best
from loopwright.sinks.journal_sample import Sample
from loopwright.sinks.record import mapping, number

Points = Sequence[tuple[float, float]]
Lines = dict[str, list[tuple[float, float]]]

_MOST_POINTS = 800
_MOST = 1e300  # beyond this, the length of an axis is not a finite number
_MOST_STEPS = 1e15  # beyond this, the next step may be the same number, and an axis has no ticks


def charts(journal: Mapping[str, Sample]) -> list[dict[str, Any]]:
    """Return the charts of a run as JSON values: a title, and lines of `x` and `y`.

    Values that are not finite are left out, and so are lines without a value.
    """
    drawn = [
        {"title": title, "lines": [_line(name, points) for name, points in lines.items()]}
        for title, lines in curves(journal).items()
    ]
    return [chart for chart in drawn if chart["lines"]]


def curves(journal: Mapping[str, Sample]) -> dict[str, Lines]:
    """Return lines by metric and name: training and learning rates per epoch, validation."""
    found: dict[str, dict[str, dict[float, float]]] = {}

    def add(metric: str, line: str, step: Any, value: Any) -> None:
        x, y = number(step), number(value)
        if x is not None and y is not None and abs(x) < _MOST_STEPS and abs(y) < _MOST:
            found.setdefault(metric, {}).setdefault(line, {})[x] = y

    for event in _events(journal, "epoch_ended"):
        step = event.get("step")
        for name, value in mapping(event.get("metrics")).items():
            group, _, rest = name.partition("/")
            add(group, rest or "train", step, value)
        for name, value in mapping(event.get("learning_rates")).items():
            owner, _, _ = name.rpartition("_learning_rate")
            add("learning rate", owner or "train", step, value)
    for event in _events(journal, "validated"):
        for name, value in mapping(event.get("metrics")).items():
            add(name, "validation", event.get("step"), value)
    return {metric: _in_order(lines) for metric, lines in found.items()}


def best_mark(best: Best | None, journal: Mapping[str, Sample]) -> dict[str, Any] | None:
    """Return where charts mark the best checkpoint; None if there is none.

    `chart` is the title of the chart that shows the metric, `label` is for people.
    """
    if best is None or not math.isfinite(best.score) or abs(best.score) >= _MOST:
        return None
    metric, score, step = best
    ended = {each.get("step"): each.get("epoch") for each in _events(journal, "epoch_ended")}
    epoch = number(ended.get(step))
    place = f"step {step:,}" if epoch is None else f"epoch {epoch + 1:,.0f}, step {step:,}"
    return {
        "chart": metric.removeprefix("val_").partition("/")[0],
        "label": f"best checkpoint by {metric}: {score:.6g} at {place}",
        "step": step,
        "score": score,
    }


def thinned(points: Points) -> Points:
    """Return at most 800 points: the lowest and the highest value of each part of a line.

    >>> line = [(step, 0.0) for step in range(100_000)]
    >>> line[777] = (777, 5.0)
    >>> few = thinned(line)
    >>> len(few) <= 800, max(few, key=lambda point: point[1]), few[0], few[-1]
    (True, (777, 5.0), (0, 0.0), (99999, 0.0))
    """
    if len(points) <= _MOST_POINTS:
        return points
    inner, parts = points[1:-1], _MOST_POINTS // 2 - 1
    kept = [points[0]]
    for part in range(parts):
        here = range(part * len(inner) // parts, (part + 1) * len(inner) // parts)
        low = min(here, key=lambda at: inner[at][1])
        high = max(here, key=lambda at: inner[at][1])
        kept += [inner[at] for at in sorted({low, high})]
    return [*kept, points[-1]]


def _line(name: str, points: Points) -> dict[str, Any]:
    drawn = thinned(points)
    # Nine digits tell every float32 from the next.
    y = [float(f"{y:.9g}") for _, y in drawn]
    return {"name": name, "x": [int(x) if x.is_integer() else x for x, _ in drawn], "y": y}


def _events(journal: Mapping[str, Sample], kind: str) -> list[dict[str, Any]]:
    sample = journal.get(kind)
    return sample.events if sample else []


def _in_order(lines: Mapping[str, Mapping[float, float]]) -> Lines:
    """Lines with training first, and their points from left to right."""
    names = sorted(lines, key=lambda name: name != "train")
    return {name: sorted(lines[name].items()) for name in names}
