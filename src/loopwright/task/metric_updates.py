"""Which metrics each step of a task updates: one without an update has nothing to report."""

import contextlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, final

import keras
import numpy as np

from loopwright import step_warnings
from loopwright.compat import keras_internals, tensorflow_internals
from loopwright.errors import StepError, message
from loopwright.task import dataflow, variables
from loopwright.task.task import Task, class_name, owner


@dataclass(frozen=True)
class Updated:
    """What one step does to the metrics of its task."""

    metrics: frozenset[keras.metrics.Metric]
    unfounded: frozenset[str] = frozenset()
    """Scalars that it returns under the name of a metric, read from one that it leaves alone."""


@final
class Updates:
    """What the steps of a task were seen to update; names once what they do not."""

    def __init__(self, task: Task, silenced: Collection[str] = ()) -> None:
        self._task, self._silenced = task, silenced
        self._seen: dict[str, Updated] = {}
        self._outdated: set[str] = set()
        self._looked_at: dict[str, Any] = {}
        self._named: set[tuple[str, str]] = set()

    def note(self, step: str, seen: Updated) -> None:
        """Adds what a trace or a run of the step has shown."""
        known = self._seen.get(step)
        if known is not None and step not in self._outdated:
            seen = Updated(known.metrics | seen.metrics, known.unfounded & seen.unfounded)
        self._seen[step] = seen
        self._outdated.discard(step)

    def task_changed(self) -> None:
        """What is noted next replaces what was seen of the task as it was."""
        self._outdated = set(self._seen)

    def of(self, step: str) -> Updated | None:
        """What the step updates; None as long as nobody has seen it."""
        return self._seen.get(step)

    def name_others(self, step: str, updated: Collection[Any]) -> None:
        """Warns of the metrics that a step does not update, of each once."""
        if self._looked_at.get(step) is updated:
            return  # asked at every stop, and walking through a task takes a while
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
                    "idle-metric",
                    message(
                        f"{class_name(self._task)}.{step} does not update {kind} {listed}: "
                        f"left out of the numbers of {numbers}.",
                        do=f"call update_state in {step} to report it there; nothing, if it is "
                        "meant for the other step only",
                    ),
                )


def traced(task: Task, graph: Any, outputs: Mapping[str, Any]) -> Updated:
    """What a step does to the metrics, by its graph: an update in a branch counts as one."""
    written = tensorflow_internals.written_handles(graph)
    if written is None:
        return Updated(frozenset(task.metrics))
    updated, unfounded = set[Any](), set[str]()
    for metric in task.metrics:
        handles = _handles(metric)
        if not handles or handles & written:
            updated.add(metric)
        elif metric.name in outputs:
            read = tensorflow_internals.captures_of(graph, handles)
            reached = dataflow.flow_in_sight(graph, read)
            if any(tensor.name in reached for tensor in outputs[metric.name]):
                unfounded.add(metric.name)
    return Updated(frozenset(updated), frozenset(unfounded))


def check_compiled(step: str, task: Task, graph: Any, outputs: Any) -> None:
    """Look for metrics of a compiled Keras model that its own step forgets.

    Keras reports what the step returns: of a metric without updates, its initial value.
    """
    if any(keras_internals.without_values(metric) for metric in task.metrics):
        raise StepError(
            message(
                f"{step} does not update the metrics that the model was compiled with.",
                expected="a step that updates them, or compile() without metrics",
                received="compile(metrics=...), and no call of compute_metrics",
                do="call self.compute_metrics(x, y, y_pred) in the step, or leave metrics out of "
                "compile",
            )
        )
    written = tensorflow_internals.written_handles(graph)
    if written is None or not isinstance(outputs, Mapping):
        return
    for metric in task.metrics:
        handles, returned = _handles(metric), outputs.get(metric.name)
        if not handles or handles & written or returned is None:
            continue
        if keras_internals.is_loss_tracker(metric, owner(task)):
            continue
        reached = dataflow.flow_in_sight(graph, tensorflow_internals.captures_of(graph, handles))
        if returned.name in reached:
            step_warnings.warn(
                "idle-metric",
                message(
                    f"{step} returns the metric {metric.name!r} without an update: its value "
                    "stays the same.",
                    do=f"call update_state of {metric.name!r} in the step, or leave it out of "
                    "what the step returns",
                ),
            )


@contextlib.contextmanager
def watched(task: Task) -> Iterator[set[keras.metrics.Metric]]:
    """The metrics that are updated while it lasts, where steps run one by one without a trace."""
    before = {metric: _values(metric) for metric in task.metrics}
    with keras_internals.watching_updates(list(before)) as updated:
        yield updated
    for metric in task.metrics:
        was = before.get(metric)
        now = _values(metric)
        is_same = was is not None and len(was) == len(now) and all(map(_is_same, was, now))
        if not now or not is_same:
            updated.add(metric)


def _handles(metric: keras.metrics.Metric) -> set[int]:
    held = [own for v in metric.variables for own in variables.replicas(v.value)]
    return {id(own.handle) for own in held}


def _is_same(one: Any, other: Any) -> bool:
    return one.tobytes() == other.tobytes()  # NaN is not equal to itself


def _values(metric: keras.metrics.Metric) -> list[Any]:
    return [np.asarray(variable.value) for variable in metric.variables]
