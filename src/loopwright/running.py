"""Running: many steps in one call, by a plan."""

import warnings
from collections.abc import Callable
from typing import Any, final

import tensorflow as tf

from loopwright import adaptations
from loopwright.building import build
from loopwright.data import nests
from loopwright.errors import StepWarning
from loopwright.plans import Plan
from loopwright.step import Step, StepName
from loopwright.task import Task


@final
class StepRunner:
    """Runs the train step or the test step of a task over batches of one spec."""

    def __init__(
        self,
        task: Task,
        name: StepName,
        batch_spec: Any,
        *,
        strategy: tf.distribute.Strategy,
        plan: Plan,
    ) -> None:
        is_graph = plan.step == "graph"
        self._step = Step(task, name, strategy, batch_spec is not None, converts=is_graph)
        self._plan = plan
        self._loops: dict[str, Callable[..., Any]] = {}
        self._outputs: Any = None
        _ = task.step_counter
        # Debugging eagerly, a trace would stop at breakpoints with symbolic tensors.
        if is_graph or self._step.replicas > 1:
            spec = None if batch_spec is None else nests.spec_in_floatx(batch_spec)
            self._outputs = build(self._step, spec)

    def run(self, iterator: Any, end: str, steps: int) -> tuple[int, Any]:
        """Runs up to `steps` steps; returns how many it ran, and their totals or last outputs."""
        if self._plan.loop == "python":
            return self._run_eagerly(iterator, end, steps)
        # A tensor, not a Python number: every new number would be traced anew.
        arguments = [iterator, tf.constant(steps)] if self._step.has_data else [tf.constant(steps)]
        if end not in self._loops:
            self._loops[end] = adaptations.compiled(self._loop(end))
            with warnings.catch_warnings():
                # What is to be said about the step was said while it was built.
                warnings.simplefilter("ignore", StepWarning)
                ran, outputs = self._loops[end](*arguments)
        else:
            ran, outputs = self._loops[end](*arguments)
        return int(ran), tf.nest.map_structure(lambda t: t.numpy(), outputs)

    def _run_one(self, batch: Any) -> Any:
        outputs = self._step.on_all_replicas(batch)
        if self._step.name == "train_step":
            self._step.task.step_counter.assign_add(1)
        return outputs

    def _loop(self, end: str) -> Callable[..., Any]:
        """A compiled loop; `end` says how its data shows that it has come to an end."""

        def advance(batch: Any, done: Any, before: Any) -> Any:
            outputs = self._run_one(batch)
            if not self._step.reports_last:
                outputs = tf.nest.map_structure(tf.add, before, outputs)
            return done + 1, tf.constant(True), outputs

        def with_data(iterator: Any, steps: Any) -> Any:
            def body(done: Any, _: Any, before: Any) -> Any:
                if end == "never":
                    return advance(iterator.get_next(), done, before)
                optional = _next_optional(iterator, end)
                return tf.cond(
                    optional.has_value(),
                    lambda: advance(optional.get_value(), done, before),
                    lambda: (done, tf.constant(False), before),
                )

            return many(body, steps)

        def without_data(steps: Any) -> Any:
            return many(lambda done, _, before: advance(None, done, before), steps)

        def many(body: Callable[..., Any], steps: Any) -> Any:
            shapes = tf.nest.map_structure(lambda t: t.shape, self._outputs)
            empty = tf.nest.map_structure(_zeros, self._outputs)
            done, _, outputs = tf.while_loop(
                lambda done, more, _: tf.logical_and(more, done < steps),
                body,
                (tf.constant(0), tf.constant(True), empty),
                shape_invariants=(tf.TensorShape([]), tf.TensorShape([]), shapes),
                parallel_iterations=1,
            )
            return done, outputs

        return with_data if self._step.has_data else without_data

    def _run_eagerly(self, iterator: Any, end: str, steps: int) -> tuple[int, Any]:
        total: Any = None
        for done in range(steps):
            batch = None
            if self._step.has_data:
                optional = _next_optional(iterator, end)
                if not optional.has_value():
                    return done, total
                batch = optional.get_value()
            outputs = tf.nest.map_structure(lambda t: t.numpy(), self._run_one(batch))
            if total is None or self._step.reports_last:
                total = outputs
            else:
                total = tf.nest.map_structure(lambda a, b: a + b, total, outputs)
        return steps, total


def _next_optional(iterator: Any, end: str) -> Any:
    return iterator.get_next() if end == "marked" else iterator.get_next_as_optional()


def _zeros(like: Any) -> Any:
    return tf.zeros([0 if size is None else size for size in like.shape], like.dtype)
