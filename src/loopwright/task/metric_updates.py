"""Which metrics each step of a task updates: a metric without updates is not reported."""

import contextlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, final

import keras
import numpy as np

from loopwright import step_warnings
from loopwright.compat import keras_internals, tensorflow_internals
from loopwright.errors import message
from loopwright.task import dataflow, variables
from loopwright.task.task import Task, class_name

IDLE_METRIC = step_warnings.declare(
    "idle-metric", "a step does not update a metric of the task: it is left out of that pass"
)


@dataclass(frozen=True)
class Updated:
    """The metrics that one step updates."""

    metrics: frozenset[keras.metrics.Metric]
    unfounded: frozenset[str] = frozenset()
    """Scalars returned under the name of a metric that the step reads but does not update."""


@final
class Updates:
    """The metrics that the steps of a task were seen to update; warns once of the others."""

    def __init__(self, task: Task, silenced: Collection[str] = ()) -> None:
        self._task, self._silenced = task, silenced
        self._seen: dict[str, Updated] = {}
        self._outdated: set[str] = set()
        self._looked_at: dict[str, Any] = {}
        self._named: set[tuple[str, str]] = set()

    def note(self, step: str, seen: Updated) -> None:
        """Add what a trace or a run of the step has shown."""
        known = self._seen.get(step)
        if known is not None and step not in self._outdated:
            seen = Updated(known.metrics | seen.metrics, known.unfounded & seen.unfounded)
        self._seen[step] = seen
        self._outdated.discard(step)

    def task_changed(self) -> None:
        """Let what is noted next replace what was seen before the task changed."""
        self._outdated = set(self._seen)

    def of(self, step: str) -> Updated | None:
        """Return what the step updates; None if it was not seen yet."""
        return self._seen.get(step)

    def name_others(self, step: str, updated: Collection[Any]) -> None:
        """Warn once of each metric that a step does not update."""
        if self._looked_at.get(step) is updated:
            return  # called at every stop, and walking through a task takes a while
        self._looked_at[step] = updated
        names = [m.name for m in self._task.metrics if m not in updated and m.variables]
        new = [name for name in dict.fromkeys(names) if (step, name) not in self._named]
        if new:
            self._named |= {(step, name) for name in new}
            listed = ", ".join(map(repr, new))
            kind = "the metric" if len(new) == 1 else "the metrics"
            numbers = "the training" if step == "train_step" else "validation and evaluate"
            with step_warnings.silenced(self._silenced):
                step_warnings.warn(
                    IDLE_METRIC,
                    message(
                        f"{class_name(self._task)}.{step} does not update {kind} {listed}: "
                        f"left out of the numbers of {numbers}.",
                        do=f"call update_state in {step} to report it there; nothing, if it is "
                        "for the other step only",
                    ),
                )


def traced(task: Task, graph: Any, outputs: Mapping[str, Any]) -> Updated:
    """Return what a step does to the metrics, by its graph: an update in a branch counts."""
    written = tensorflow_internals.written_handles(graph)
    if written is None:
        return Updated(frozenset(task.metrics))
    updated, unfounded = set[Any](), set[str]()
    for metric in task.metrics:
        own = handles(metric)
        if not own or own & written:
            updated.add(metric)
        elif metric.name in outputs:
            read = tensorflow_internals.captures_of(graph, own)
            reached = dataflow.flow_in_sight(graph, read)
            if any(tensor.name in reached for tensor in outputs[metric.name]):
                unfounded.add(metric.name)
    return Updated(frozenset(updated), frozenset(unfounded))


@contextlib.contextmanager
def watched(task: Task) -> Iterator[set[keras.metrics.Metric]]:
    """Collect the metrics that are updated inside, where steps run without a trace."""
    before = {metric: _values(metric) for metric in task.metrics}
    with keras_internals.watching_updates(list(before)) as updated:
        yield updated
    for metric in task.metrics:
        was = before.get(metric)
        now = _values(metric)
        is_same = was is not None and len(was) == len(now) and all(map(_is_same, was, now))
        if not now or not is_same:
            updated.add(metric)


def handles(metric: keras.metrics.Metric) -> set[int]:
    """Return the ids of the handles of a metric's variables, on all replicas."""
    held = [own for v in metric.variables for own in variables.replicas(v.value)]
    return {id(own.handle) for own in held}


def _is_same(one: Any, other: Any) -> bool:
    return one.tobytes() == other.tobytes()  # NaN is not equal to itself


def _values(metric: keras.metrics.Metric) -> list[Any]:
    return [np.asarray(variable.value) for variable in metric.variables]
