"""The numbers of an epoch so far: means of what the steps returned, and the task's metrics."""

from typing import Any, final

import numpy as np

from loopwright.compiled import CompiledModel, as_keras_reports
from loopwright.meter import Meter
from loopwright.task import Task, reset, results


@final
class Tally:
    """Adds up the outputs of many steps and reads the metrics beside them."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._meter = Meter()
        self._last: dict[str, Any] = {}

    def start(self) -> None:
        """Begins a new epoch: the metrics are reset and the means forgotten."""
        reset(self._task)
        self._meter.reset()
        self._last = {}

    def add(self, outputs: Any) -> None:
        """Takes what a call of the compiled loop returned."""
        if isinstance(self._task, CompiledModel):
            self._last = outputs
        else:
            pairs = {name: (float(t), float(w)) for name, (t, w) in outputs.items()}
            self._meter.add(pairs)

    def numbers(self) -> dict[str, Any]:
        """Every number by name; a metric wins over a scalar of the same name.

        People return `metric.result()` from a step; the mean of running values would be wrong.
        """
        if isinstance(self._task, CompiledModel):
            found = as_keras_reports(self._task.model, self._last)
        else:
            found = self._meter.means() | results(self._task)
        return {name: _number(value) for name, value in found.items()}


def _number(value: Any) -> Any:
    array = np.asarray(value)
    return float(array) if array.ndim == 0 else array
