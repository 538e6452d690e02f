"""The numbers of an epoch so far: means of what the steps returned, and the task's metrics."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, final

import numpy as np
import tensorflow as tf

from loopwright.task.keras_model import CompiledModel, as_keras_reports
from loopwright.task.metric_updates import Updates
from loopwright.task.task import Task, reset, results


@final
class EpochMetrics:
    """Adds up the outputs of many steps, and reads the task's metrics."""

    def __init__(self, task: Task, step: str, updates: Updates) -> None:
        self._task, self._step, self._updates = task, step, updates
        self._restored: frozenset[Any] | None = None
        self._totals: dict[str, tuple[float, float]] = {}
        """Sums by weight, and weights; a checkpoint holds them, bit for bit."""
        self._last: dict[str, Any] = {}

    def start(self) -> None:
        """Begins a new epoch: the metrics are reset and the means forgotten."""
        reset(self._task)
        self._totals, self._last = {}, {}

    def add(self, outputs: Any) -> None:
        """Takes what a call of the compiled loop returned."""
        if isinstance(self._task, CompiledModel):
            self._last = outputs
            return
        for name, (total, weight) in self._founded(outputs).items():
            total_before, weight_before = self._totals.get(name, (0.0, 0.0))
            self._totals[name] = (total_before + float(total), weight_before + float(weight))

    def after_each(self, outputs: Any, metrics: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the numbers after each of some steps that are not added yet.

        `outputs` and `metrics` are those of the steps, with one more axis.
        """
        if isinstance(self._task, CompiledModel):
            return _rows(outputs)
        means = {
            name: _running_means(self._totals.get(name, (0.0, 0.0)), total, weight)
            for name, (total, weight) in self._founded(outputs).items()
        }
        return _rows({**means, **metrics})

    def of_each(self, outputs: Any) -> list[dict[str, Any]]:
        """Return what each of some steps returned by itself; `outputs` as for `after_each`."""
        if isinstance(self._task, CompiledModel):
            return _rows(outputs)
        pairs = self._founded(outputs).items()
        with np.errstate(invalid="ignore", divide="ignore"):  # no examples have no mean
            return _rows({name: np.divide(total, weight) for name, (total, weight) in pairs})

    def _founded(self, outputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs of a step, without results of metrics that it does not update."""
        seen = self._updates.of(self._step)
        unfounded = frozenset[str]() if seen is None else seen.unfounded
        return {name: pair for name, pair in outputs.items() if name not in unfounded}

    def state(self) -> dict[str, Any]:
        """Return the means so far, for a checkpoint; metrics are variables and not part of it."""
        updated = self._updated_metrics()
        places = [place for place, metric in enumerate(self._task.metrics) if metric in updated]
        last = tf.nest.map_structure(_plain, self._last)
        return {"totals": dict(self._totals), "last": last, "updated": places}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state; the metrics keep their values."""
        self._totals = {name: (total, weight) for name, (total, weight) in state["totals"].items()}
        self._last = dict(state["last"])
        places = state.get("updated")  # earlier versions wrote none
        if places is not None:
            known = enumerate(self._task.metrics)
            self._restored = frozenset(metric for place, metric in known if place in places)

    def numbers(self) -> dict[str, Any]:
        """Every number by name; a metric wins over a scalar of the same name.

        People return `metric.result()` from a step; the mean of running values would be wrong.
        """
        if isinstance(self._task, CompiledModel):
            found = as_keras_reports(self._task.model, self._last)
        else:
            updated = self._updated_metrics()
            self._updates.name_others(self._step, updated)
            means = {
                name: total / weight for name, (total, weight) in self._totals.items() if weight
            }
            found = means | results(self._task, updated)
        return {name: _number(value) for name, value in found.items()}

    def _updated_metrics(self) -> Collection[Any]:
        """Those that this pass has updated: as seen here, or before the run was resumed."""
        seen, before = self._updates.of(self._step), self._restored
        if seen is None:
            return self._task.metrics if before is None else before
        return seen.metrics if before is None or before <= seen.metrics else seen.metrics | before


def _running_means(before: tuple[float, float], total: Any, weight: Any) -> list[float | None]:
    """Return the mean after each step, summed as the compiled loop does; None while empty."""
    sums, weights = before[0] + np.cumsum(total), before[1] + np.cumsum(weight)
    pairs = zip(sums.tolist(), weights.tolist(), strict=True)
    return [s / w if w else None for s, w in pairs]


def _rows(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = zip(*map(_values, columns.values()), strict=True)
    return [
        {name: value for name, value in zip(columns, row, strict=True) if value is not None}
        for row in rows
    ]


def _values(column: Any) -> Sequence[Any]:
    if isinstance(column, list):
        return column
    array = np.asarray(column)
    return [*array] if array.ndim > 1 else array.astype(float).tolist()


def _plain(value: Any) -> Any:
    return np.asarray(value).tolist()


def _number(value: Any) -> Any:
    array = np.asarray(value)
    return float(array) if array.ndim == 0 else array
