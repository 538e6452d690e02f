"""The compiled steps of a task, each made once, and again when the task has changed."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any, final

import tensorflow as tf

from loopwright import step_warnings
from loopwright.compat import keras_internals, tensorflow_internals
from loopwright.data import batches
from loopwright.data.source import Feed
from loopwright.engine.bounds import Bounds
from loopwright.engine.compiled_loop import CompiledLoop
from loopwright.engine.loop_graph import LoopGraph
from loopwright.engine.nan import FiniteCheck, IgnoredNan, OnNan, all_finite
from loopwright.engine.step import Step, StepName
from loopwright.engine.step_records import Recorder
from loopwright.engine.trace import (
    Built,
    build,
    changing_values,
    check_source,
    require_unchanging,
)
from loopwright.errors import StepWarning
from loopwright.guards import resources
from loopwright.guards.changes import SettingsWatch
from loopwright.loop.signals import deferred
from loopwright.plans.plan import Plan, Terms
from loopwright.rewrites import scope
from loopwright.task import scheduled_value, variables
from loopwright.task.context import GradientWatch
from loopwright.task.metric_updates import Updates
from loopwright.task.task import Task, class_name

_MOST_COPIED_BYTES = 64 * 2**20
"""A larger state is not copied to look for NaN after some steps: it is looked at after each."""


@final
class CompiledSteps:
    """Makes and keeps what runs the steps of one task."""

    def __init__(
        self,
        task: Task,
        strategy: tf.distribute.Strategy,
        on_nan: OnNan = "raise",
        watch: GradientWatch | None = None,
        silenced: frozenset[str] = frozenset(),
    ) -> None:
        self._task, self._strategy = task, strategy
        self._on_nan: OnNan = on_nan
        self._watched, self.silenced = watch, silenced
        self._fingerprint: Any = None
        self._built: dict[Any, Built] = {}
        self._loops: dict[Any, CompiledLoop] = {}
        self._read: set[StepName] = set()
        self.updates = Updates(task, silenced)
        """Which metrics the steps update."""

    def untraced(self) -> "CompiledSteps":
        """Return steps of the same task that share no trace with these, nor what traces hold."""
        return CompiledSteps(self._task, self._strategy, self._on_nan, self._watched, self.silenced)

    @property
    def workers(self) -> int:
        """How many processes run these steps together."""
        return tensorflow_internals.workers(self._strategy)[0]

    @deferred()
    def loop(
        self,
        name: StepName,
        feed: Feed | None,
        plan: Plan,
        *,
        recorded: Sequence[Any] | None = None,
        ignored_nan: IgnoredNan = "",
    ) -> CompiledLoop:
        """Return what runs this step over batches like those of this feed, by this plan.

        With `recorded`, the numbers of each step are recorded, and the values of these variables.
        With `ignored_nan`, a step that is not finite is a step like others, unless it is skipped.
        """
        self._forget_if_changed()
        batch_spec, is_share = (None, False) if feed is None else (feed.batch_spec, feed.is_share)
        ids = None if recorded is None else tuple(map(id, recorded))
        kind = (name, str(batch_spec), plan, is_share, ids, ignored_nan)
        if kind not in self._loops:
            is_eager = plan.step == "eager"
            step = self._step(name, batch_spec, converts=not is_eager, is_share=is_share)
            # Debugging eagerly, a trace would stop at breakpoints with symbolic tensors.
            needs_trace = not is_eager or step.replicas > 1 or self._on_nan == "skip"
            built = self._build(step, batch_spec) if needs_trace else Built(None)
            if built.updated is not None:
                self.updates.note(name, built.updated)
            if not is_eager and name not in self._read:
                self._read.add(name)
                check_source(step, built)
            if needs_trace and step.replicas > 1 and not is_eager:
                # Their constants lie between each other's in the loop's graph.
                require_unchanging(step, built)
            recorder = None
            if recorded is not None:
                recorder = Recorder(step, plan, self.updates, recorded, built.outputs)
            check = self._finite_check(step, built, ignored_nan)
            self._loops[kind] = CompiledLoop(step, built, plan, check, self.updates, recorder)
        return self._loops[kind]

    @deferred()
    def built(self, name: StepName, batch_spec: Any) -> Built:
        """Return the trace of this step."""
        self._forget_if_changed()
        return self._build(self._step(name, batch_spec, converts=True), batch_spec)

    def watched_settings(self) -> SettingsWatch:
        """Return a watch over what the trace of the train step has read from Python."""
        step = self._step("train_step", None, converts=True)
        return SettingsWatch(step.title, step.source, self._task)

    def graph(self, name: StepName, batch_spec: Any) -> Any:
        """Return the graph of this step for batches of exactly this shape, of all replicas."""
        return self.probe(name, batch_spec, lambda _: ()).graph

    def probe(self, name: StepName, batch_spec: Any, fetch: Callable[[Any], Any]) -> Any:
        """Return a function that runs this step, and returns what `fetch` takes from its graph."""
        step = self._step(name, batch_spec, converts=True)
        if not self._of(name):
            self._build(step, batch_spec)  # what is made lazily is there then
        arguments = () if batch_spec is None else (batch_spec,)

        def once(*batch: Any) -> Any:
            outputs = step.on_all_replicas(*(batch or (None,)))
            return outputs, fetch(tf.compat.v1.get_default_graph())

        with keras_internals.without_keras_warnings(), warnings.catch_warnings():
            warnings.simplefilter("ignore", StepWarning)  # they were given when it was built
            traced: Any = tensorflow_internals.compiled(once)
            return traced.get_concrete_function(*arguments)

    def alone(self, name: StepName, batch_spec: Any, plan: Plan) -> Callable[[Any], Any]:
        """Return a function of one batch that runs the step as this plan does, without its loop.

        It is Python code, to be called eagerly, or to be compiled with what surrounds it.
        """
        self._forget_if_changed()
        is_eager = plan.step == "eager"
        step = self._step(name, batch_spec, converts=not is_eager)
        built = Built(None) if is_eager else self._build(step, batch_spec)
        graph = LoopGraph(step, built.outputs, plan, FiniteCheck(looks=False), Bounds(looks=False))

        def one(batch: Any) -> Any:
            with step_warnings.silenced(self.silenced):
                return graph.one(batch)[0]

        return one

    def trains_built(self) -> list[Built]:
        """Return the traces of the train step, one for each kind of batch."""
        return self._of("train_step")

    def tests_built(self) -> list[Built]:
        """Return the traces of the test step, one for each kind of batch."""
        return self._of("test_step")

    def changing_values(self, batch_spec: Any) -> str | None:
        """Return the message about an eager train step whose Python computes changing values."""
        step = self._step("train_step", batch_spec, converts=True)
        return changing_values(step, self._build(step, batch_spec), is_eager=True)

    def terms(self, feed: Feed | None) -> Terms:
        """Return the conditions that a plan has to meet."""
        replicas = self._strategy.num_replicas_in_sync
        rewrites = scope.available()
        if feed is None:
            return Terms("none", replicas=replicas, rewrites=rewrites)
        leaves = tf.nest.flatten(feed.batch_spec)
        streamed = "python" if feed.end == "each epoch" else "pipeline"
        return Terms(
            batches="memory" if feed.resident is not None else streamed,
            plain=all(isinstance(s, tf.TensorSpec) and s.dtype != tf.string for s in leaves),
            replicas=replicas,
            rewrites=rewrites,
        )

    def last_gradients(self) -> dict[str, Any]:
        """Return the last gradients by variable name; none unless they are watched."""
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
            silenced=self.silenced,
        )

    def _build(self, step: Step, batch_spec: Any) -> Built:
        kind = (step.name, str(batch_spec))
        if kind not in self._built:
            _ = self._task.step_counter
            casts = batch_spec is not None and not step.reports_last
            spec = batches.spec_in_floatx(batch_spec) if casts else batch_spec
            self._built[kind] = build(step, spec)
            # Building creates what is made lazily, so the fingerprint is taken after it.
            self._fingerprint = scheduled_value.fingerprint(self._task)
            self._require_separate()
        return self._built[kind]

    def _require_separate(self) -> None:
        """Raise for a test step that would change the training."""
        trained = [r for built in self._of("train_step") for r in built.resources]
        tested = [r for built in self._of("test_step") for r in built.resources]
        title = f"{class_name(self._task)}.test_step"
        resources.require_separate(title, tested, trained)

    def _of(self, name: StepName) -> list[Built]:
        return [built for (known, _), built in self._built.items() if known == name]

    def _finite_check(self, step: Step, built: Built, ignored_nan: IgnoredNan) -> FiniteCheck:
        """Return what is looked at for NaN, and what of it can wait for some steps."""
        skips = self._on_nan == "skip"
        if step.name != "train_step" or (ignored_nan == "all" and not skips):
            return FiniteCheck(looks=False)
        if skips:
            resources.require_skippable(step.title, built.resources)
        named = variables.named(self._task)
        if step.replicas > 1:
            # Statistics differ between replicas: reading them all would be a collective operation.
            lasting = [v for v in named.values() if v.trainable]
            return FiniteCheck(looks=True, lasting=lasting, passes_losses=bool(ignored_nan))
        overwritten, lasting = _written(self._task, built)
        own = {id(v.handle): v for name, v in named.items() if name != "step"}
        used = {id(getattr(v, "handle", v)) for v in built.captured}
        kept = [v for handle, v in own.items() if handle in used]
        # Gradients that are watched are those of the last step, also of one that was skipped.
        repeats = built.is_repeatable and self._watched is None and bool(kept)
        if not skips:
            is_complete = used <= {*own, id(self._task.step_counter.handle)}
            size = sum(v.shape.num_elements() * v.dtype.size for v in kept)
            # Steps that run again end at the first bad one, which a callback may want to see.
            repeats = repeats and is_complete and size <= _MOST_COPIED_BYTES and not ignored_nan
        return FiniteCheck(
            looks=True,
            overwritten=overwritten,
            lasting=lasting,
            kept=kept,
            skips=skips,
            repeats=repeats,
            passes_losses=bool(ignored_nan) and not skips,
        )

    def _forget_if_changed(self) -> None:
        if self._fingerprint != scheduled_value.fingerprint(self._task):
            self._built.clear()
            self._loops.clear()
            self.updates.task_changed()
            self._fingerprint = scheduled_value.fingerprint(self._task)


def _written(task: Task, built: Built) -> tuple[list[Any], list[Any]]:
    """Return the variables that a step writes and that must be finite: overwritten, and lasting.

    Metrics may well be NaN. A task may keep infinity or NaN in a variable on purpose: the best
    score so far, a table that is not filled yet.
    """
    metrics = {id(v) for v in variables.metric_variables(task)}
    untrained = {id(v) for v in variables.untrained_variables(task)}
    found = [
        v
        for v in variables.named(task).values()
        if v.dtype.is_floating and id(v) not in metrics
        if built.written is None or id(v.handle) in built.written
    ]
    overwritten = [v for v in found if id(v) in untrained]
    overwritten = [v for v in overwritten if all_finite([v.read_value()])]
    return overwritten, [v for v in found if id(v) not in untrained]
