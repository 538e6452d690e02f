"""The curves of a training: points by metric and line, from a history, a journal or events."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, final

from loopwright.checkpoints.retention import larger_is_better
from loopwright.errors import ConfigurationError, message
from loopwright.events import EpochEnded, Metrics, Validated
from loopwright.runs import Sample, read_sample
from loopwright.sinks.report import Lines, curves

Curves = dict[str, Lines]
"""Lines by metric: `{"loss": {"train": [(step, value), ...], "validation": [...]}}`."""


class Numbers(Protocol):
    """The numbers that a `History` holds."""

    epoch: list[int]
    epoch_steps: list[int]
    validation_steps: list[int]

    @property
    def history(self) -> dict[str, list[Any]]:
        """Every number by name."""
        ...


@final
class Best(NamedTuple):
    """The best validation: by which metric, where, and its score."""

    metric: str
    x: float
    score: float


def of_histories(histories: Iterable[Numbers]) -> Curves:
    """Return the curves of consecutive calls of `fit` over their steps."""
    epochs, validations = list[dict[str, Any]](), list[dict[str, Any]]()
    for numbers in histories:
        for name, values in numbers.history.items():
            is_validation = name.startswith("val_")
            steps = numbers.validation_steps if is_validation else numbers.epoch_steps
            to = validations if is_validation else epochs
            # A number that a callback began to report later belongs to the last epochs.
            for step, value in zip(steps[-len(values) :], values, strict=False):
                metrics = {name.removeprefix("val_"): plain(value)}
                to.append({"step": step, "metrics": metrics})
    return curves({"epoch_ended": _sample(epochs), "validated": _sample(validations)})


def _sample(events: list[dict[str, Any]]) -> Sample:
    return Sample(events, len(events), 1)


def plain(value: Any) -> Any:
    """Return a number as Python's own; NumPy has others, and a metric may report an array."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def by_epoch(numbers: Numbers) -> Curves:
    """Return the curves of one call of `fit` over its epochs; over steps if none has ended."""
    found = of_histories([numbers])
    if not numbers.epoch_steps:
        return found
    import numpy as np  # a history has it already; the progress in a notebook does without

    first, *later = numbers.epoch_steps
    ends = [first - (later[0] - first if later else first), first, *later]
    epochs = [numbers.epoch[0], *(number + 1 for number in numbers.epoch)]
    return {
        metric: {
            name: [(round(float(np.interp(x, ends, epochs)), 6), y) for x, y in points]
            for name, points in lines.items()
        }
        for metric, lines in found.items()
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
            message(
                "No such metric to plot.",
                expected=f"one of {', '.join(drawn)}" if drawn else "a training with an epoch",
                received=", ".join(unknown) or "no metric",
                do="choose from these, or leave the metrics out",
            )
        )
    return {name: drawn[name] for name in dict.fromkeys(wanted)}


@final
class Past:
    """The curves of the calls of `fit` before this one: of the run directory, or in memory."""

    def __init__(self, run_dir: Path | None) -> None:
        self._run_dir = run_dir
        self._histories: list[Numbers] = []

    def add(self, history: Numbers) -> None:
        """Include the history of a call of `fit`."""
        self._histories.append(history)

    def curves(self) -> Curves:
        """Return the curves so far."""
        if self._run_dir is not None:
            found = curves(read_sample(self._run_dir))
            found.pop("learning rate", None)  # only sinks of a run are told of it
            return found
        return of_histories(self._histories)


def until(drawn: Curves, step: int) -> Curves:
    """Return the points up to a step: what a resumed run has trained again is drawn once."""
    return {
        metric: {
            name: [point for point in line if point[0] <= step] for name, line in lines.items()
        }
        for metric, lines in drawn.items()
    }


def add_event(drawn: Curves, event: EpochEnded | Validated) -> None:
    """Add the numbers of an event to curves over steps."""
    kind = "validated" if isinstance(event, Validated) else "epoch_ended"
    metrics = {name: plain(value) for name, value in event.metrics.items()}
    for metric, lines in curves(
        {kind: _sample([{"step": event.step, "metrics": metrics}])}
    ).items():
        for name, points in lines.items():
            drawn.setdefault(metric, {}).setdefault(name, []).extend(points)


def running(metrics: Metrics) -> dict[str, float]:
    """Return the running numbers of an epoch that are one number each."""
    found = {name: plain(value) for name, value in metrics.items()}
    return {name: value for name, value in found.items() if value is not None}
