"""Runners: the compiled steps of a task, each made once, and anew when the task has changed."""

from typing import Any, final

import tensorflow as tf

from loopwright import adaptations, scheduled, state
from loopwright.building import Built, build
from loopwright.data import Feed, nests
from loopwright.finite import OnNan, Watch
from loopwright.plans import Plan, Terms
from loopwright.running import StepRunner
from loopwright.step import Step, StepName
from loopwright.task import Task
from loopwright.watching import GradientWatch


@final
class Runners:
    """Makes and keeps what runs the steps of one task."""

    def __init__(
        self,
        task: Task,
        strategy: tf.distribute.Strategy,
        on_nan: OnNan = "raise",
        watch: GradientWatch | None = None,
    ) -> None:
        self._task, self._strategy, self._on_nan = task, strategy, on_nan
        self._watched = watch
        self._fingerprint: Any = None
        self._built: dict[Any, Built] = {}
        self._runners: dict[Any, StepRunner] = {}

    @property
    def workers(self) -> int:
        """How many processes run these steps together."""
        return adaptations.workers(self._strategy)[0]

    def runner(self, name: StepName, feed: Feed | None, plan: Plan) -> StepRunner:
        """What runs this step over batches like those of this feed, by this plan."""
        self._forget_if_changed()
        batch_spec, is_share = (None, False) if feed is None else (feed.batch_spec, feed.is_share)
        kind = (name, str(batch_spec), plan, is_share)
        if kind not in self._runners:
            is_eager = plan.step == "eager"
            step = self._step(name, batch_spec, converts=not is_eager, is_share=is_share)
            # Debugging eagerly, a trace would stop at breakpoints with symbolic tensors.
            needs_trace = not is_eager or step.replicas > 1 or self._on_nan == "skip"
            built = self._build(step, batch_spec) if needs_trace else Built(None)
            self._runners[kind] = StepRunner(step, built, plan, self._watch(name, built))
        return self._runners[kind]

    def built(self, name: StepName, batch_spec: Any) -> Built:
        """What the trace of this step has told."""
        self._forget_if_changed()
        return self._build(self._step(name, batch_spec, converts=True), batch_spec)

    def terms(self, feed: Feed | None) -> Terms:
        """What a plan has to serve."""
        replicas = self._strategy.num_replicas_in_sync
        if feed is None:
            return Terms("none", replicas=replicas)
        leaves = tf.nest.flatten(feed.batch_spec)
        streamed = "python" if feed.end == "each epoch" else "pipeline"
        return Terms(
            batches="memory" if feed.resident is not None else streamed,
            plain=all(isinstance(s, tf.TensorSpec) and s.dtype != tf.string for s in leaves),
            replicas=replicas,
        )

    def last_gradients(self) -> dict[str, Any]:
        """Those that were put aside, by the names of their variables; none unless it is asked."""
        return {} if self._watched is None else self._watched.last(self._task)

    def _step(
        self, name: StepName, batch_spec: Any, *, converts: bool, is_share: bool = False
    ) -> Step:
        return Step(
            self._task,
            name,
            self._strategy,
            batch_spec is not None,
            converts=converts,
            is_share=is_share,
            watch=self._watched if name == "train_step" else None,
        )

    def _build(self, step: Step, batch_spec: Any) -> Built:
        kind = (step.name, str(batch_spec))
        if kind not in self._built:
            _ = self._task.step_counter
            spec = None if batch_spec is None else nests.spec_in_floatx(batch_spec)
            self._built[kind] = build(step, spec)
            # Building creates what is made lazily, so the fingerprint is taken after it.
            self._fingerprint = scheduled.fingerprint(self._task)
        return self._built[kind]

    def _watch(self, name: StepName, built: Built) -> Watch:
        if name != "train_step":
            return Watch(looks=False)
        if self._on_nan != "skip":
            return Watch(looks=True)
        named = state.named(self._task)
        own = {name: variable for name, variable in named.items() if name != "step"}
        used = {id(getattr(v, "handle", v)) for v in built.captured}
        return Watch(looks=True, kept=tuple(v for v in own.values() if id(v.handle) in used))

    def _forget_if_changed(self) -> None:
        if self._fingerprint != scheduled.fingerprint(self._task):
            self._built.clear()
            self._runners.clear()
            self._fingerprint = scheduled.fingerprint(self._task)
