"""The curves of a training: points by metric and line, from a journal, a history or events."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, final

from loopwright.checkpoints import retention
from loopwright.errors import ConfigurationError
from loopwright.events import EpochEnded, Metrics, Validated
from loopwright.metric_direction import larger_is_better
from loopwright.runs import Sample, mapping, number, read_sample

if TYPE_CHECKING:
    from loopwright import History

Points = Sequence[tuple[float, float]]
Lines = dict[str, list[tuple[float, float]]]
Curves = dict[str, Lines]
"""Lines by metric: `{"loss": {"train": [(step, value), ...], "validation": [...]}}`."""

_MOST_POINTS = 800
_MOST = 1e300  # above this, the length of an axis overflows
_MOST_STEPS = 1e15  # above this, consecutive steps may be the same float, and an axis has no ticks


@final
class Best(NamedTuple):
    """The best validation: by which metric, where, and its score."""

    metric: str
    x: float
    score: float


def of_journal(journal: Mapping[str, Sample]) -> Curves:
    """Return the curves of a run: training and learning rates per epoch, validation."""
    drawn: Curves = {}
    for event in _events(journal, "epoch_ended"):
        _add_epoch(drawn, event.get("step"), mapping(event.get("metrics")))
        for name, value in mapping(event.get("learning_rates")).items():
            owner, _, _ = name.rpartition("_learning_rate")
            _add(drawn, "learning rate", owner or "train", event.get("step"), value)
    for event in _events(journal, "validated"):
        _add_validation(drawn, event.get("step"), mapping(event.get("metrics")))
    return _in_order(drawn)


def of_histories(histories: "Iterable[History]") -> Curves:
    """Return the curves of consecutive calls of `fit` over their steps."""
    drawn: Curves = {}
    for history in histories:
        for name, values in history.history.items():
            is_validation = name.startswith("val_")
            steps = history.validation_steps if is_validation else history.epoch_steps
            # A number that a callback began to report later belongs to the last epochs.
            for step, value in zip(steps[-len(values) :], values, strict=False):
                if is_validation:
                    _add_validation(drawn, step, {name.removeprefix("val_"): value})
                else:
                    _add_epoch(drawn, step, {name: value})
    return _in_order(drawn)


def add_event(drawn: Curves, event: EpochEnded | Validated) -> None:
    """Add the numbers of an event to curves over steps."""
    add = _add_validation if isinstance(event, Validated) else _add_epoch
    add(drawn, event.step, event.metrics)


def _add_epoch(drawn: Curves, step: Any, metrics: Metrics) -> None:
    for name, value in metrics.items():
        group, _, rest = name.partition("/")
        _add(drawn, group, rest or "train", step, value)


def _add_validation(drawn: Curves, step: Any, metrics: Metrics) -> None:
    for name, value in metrics.items():
        _add(drawn, name, "validation", step, value)


def _add(drawn: Curves, metric: str, line: str, step: Any, value: Any) -> None:
    """Add a point; values that are not finite numbers are left out."""
    x, y = number(step), plain(value)
    if x is not None and y is not None and abs(x) < _MOST_STEPS and abs(y) < _MOST:
        drawn.setdefault(metric, {}).setdefault(line, []).append((x, y))


def plain(value: Any) -> float | None:
    """Return a value as a finite float; None if it is none: a metric may report an array."""
    try:
        return None if isinstance(value, str) else number(float(value))
    except (TypeError, ValueError, OverflowError):
        return None


def running(metrics: Metrics) -> dict[str, float]:
    """Return the running numbers of an epoch that are one number each."""
    found = {name: plain(value) for name, value in metrics.items()}
    return {name: value for name, value in found.items() if value is not None}


def _events(journal: Mapping[str, Sample], kind: str) -> list[dict[str, Any]]:
    sample = journal.get(kind)
    return sample.events if sample else []


def _in_order(drawn: Curves) -> Curves:
    """Return lines with training first, and their points in order, the last one of each step."""
    return {
        metric: {
            name: sorted(dict(lines[name]).items())
            for name in sorted(lines, key=lambda name: name != "train")
        }
        for metric, lines in drawn.items()
    }


def by_epoch(history: "History") -> Curves:
    """Return the curves of one call of `fit` over its epochs; over steps if none has ended."""
    drawn = of_histories([history])
    if not history.epoch_steps:
        return drawn
    import numpy as np  # a history has it already; the progress in a notebook does without

    first, *later = history.epoch_steps
    ends = [first - (later[0] - first if later else first), first, *later]
    epochs = [history.epoch[0], *(number + 1 for number in history.epoch)]
    return {
        metric: {
            name: [(round(float(np.interp(x, ends, epochs)), 6), y) for x, y in points]
            for name, points in lines.items()
        }
        for metric, lines in drawn.items()
    }


def best_of(drawn: Curves) -> Best | None:
    """Return the best validation: by the loss, or by the first metric with a known direction.

    >>> best_of({"loss": {"validation": [(1.0, 0.5), (2.0, 0.3), (3.0, 0.4)]}})
    Best(metric='val_loss', x=2.0, score=0.3)
    """
    for metric in sorted(drawn, key=lambda name: name != "loss"):
        points, larger = drawn[metric].get("validation", []), larger_is_better(metric)
        if points and larger is not None:
            x, score = (max if larger else min)(points, key=lambda point: point[1])
            return Best(f"val_{metric}", x, score)
    return None


def chosen(drawn: Curves, metrics: Sequence[str] | None) -> Curves:
    """Return the curves of some metrics, `val_` names included; raise for one that is unknown."""
    if metrics is None:
        return drawn
    if isinstance(metrics, str):
        metrics = [metrics]
    wanted = [str(name).removeprefix("val_") for name in metrics]
    unknown = [name for name in wanted if name not in drawn]
    if unknown or not wanted:
        raise ConfigurationError(
            "No such metric to plot.",
            expected=f"one of {', '.join(drawn)}" if drawn else "a training with an epoch",
            received=", ".join(unknown) or "no metric",
            do="choose from these, or leave the metrics out",
        )
    return {name: drawn[name] for name in dict.fromkeys(wanted)}


def before(run_dir: Path | None, histories: "Iterable[History]") -> Curves:
    """Return the curves of the calls of `fit` before this one: of the run, or in memory."""
    if run_dir is None:
        return of_histories(histories)
    drawn = of_journal(read_sample(run_dir))
    drawn.pop("learning rate", None)  # only sinks of a run are told of it
    return drawn


def until(drawn: Curves, step: int) -> Curves:
    """Return the points up to a step: what a resumed run has trained again is drawn once."""
    return {
        metric: {
            name: [point for point in line if point[0] <= step] for name, line in lines.items()
        }
        for metric, lines in drawn.items()
    }


def charts(journals: Mapping[str, Mapping[str, Sample]]) -> list[dict[str, Any]]:
    """Return the charts of runs by name, as JSON values: a title, and lines of `x` and `y`.

    Of several runs, each has a color, and dashes for validation. Values that are not finite are
    left out, and so are lines without a value.
    """
    drawn: dict[str, list[dict[str, Any]]] = {}
    for color, (run, journal) in enumerate(journals.items()):
        for title, lines in of_journal(journal).items():
            for name, points in lines.items():
                line = _line(name, points)
                if len(journals) > 1:
                    is_main = len(lines) == 1 or name == "train"
                    line |= {"name": run if is_main else f"{run} {name}"}
                    line |= {"color": color, "dash": int(not is_main)}
                drawn.setdefault(title, []).append(line)
    return [{"title": title, "lines": lines} for title, lines in drawn.items()]


def best_mark(best: retention.Best | None, journal: Mapping[str, Sample]) -> dict[str, Any] | None:
    """Return the mark of the best checkpoint in charts; None if there is none.

    `chart` is the title of the chart that shows the metric, `label` the text above the charts.
    """
    if best is None or not math.isfinite(best.score) or abs(best.score) >= _MOST:
        return None
    metric, score, step = best
    epochs = {row.get("step"): row.get("epoch") for row in _events(journal, "epoch_ended")}
    epoch = number(epochs.get(step))
    place = f"step {step:,}" if epoch is None else f"epoch {epoch + 1:,.0f}, step {step:,}"
    return {
        "chart": metric.removeprefix("val_").partition("/")[0],
        "label": f"best checkpoint by {metric}: {score:.6g} at {place}",
        "step": step,
        "score": score,
    }


def thinned(points: Points, most: int = _MOST_POINTS) -> Points:
    """Return at most `most` points: the lowest and the highest value of each part of a line.

    >>> line = [(step, 0.0) for step in range(100_000)]
    >>> line[777] = (777, 5.0)
    >>> few = thinned(line)
    >>> len(few) <= 800, max(few, key=lambda point: point[1]), few[0], few[-1]
    (True, (777, 5.0), (0, 0.0), (99999, 0.0))
    """
    if len(points) <= most:
        return points
    inner, parts = points[1:-1], most // 2 - 1
    kept = [points[0]]
    for part in range(parts):
        here = range(part * len(inner) // parts, (part + 1) * len(inner) // parts)
        low = min(here, key=lambda at: inner[at][1])
        high = max(here, key=lambda at: inner[at][1])
        kept += [inner[at] for at in sorted({low, high})]
    return [*kept, points[-1]]


def _line(name: str, points: Points) -> dict[str, Any]:
    drawn = thinned(points)
    # Nine digits distinguish all float32 values.
    y = [float(f"{y:.9g}") for _, y in drawn]
    return {"name": name, "x": [int(x) if x.is_integer() else x for x, _ in drawn], "y": y}
