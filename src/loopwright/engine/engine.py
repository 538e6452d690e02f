"""The engine: a task traced and compiled, to train, score and predict by plans.

Each step is compiled once for each kind of batch and plan, and again when the task has changed.
"""

import contextlib
import functools
import hashlib
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, final

import tensorflow as tf

from loopwright import launch, step_warnings
from loopwright.compat import keras_internals, tensorflow_internals
from loopwright.data import batches
from loopwright.data.adapter import as_data
from loopwright.data.read_errors import feed_after, read_errors_explained
from loopwright.data.source import Data, Feed
from loopwright.distribute.team import Agreement, Team
from loopwright.engine.bounds import Bounds
from loopwright.engine.compiled_loop import CompiledLoop
from loopwright.engine.loop_graph import LoopGraph, Recorder
from loopwright.engine.metrics import EpochMetrics, Updates
from loopwright.engine.nan import FiniteCheck, IgnoredNan, OnNan, all_finite
from loopwright.engine.predictor import Predictor
from loopwright.engine.step import Step, StepName
from loopwright.engine.trace import (
    Built,
    build,
    changing_values,
    check_source,
    require_unchanging,
)
from loopwright.environment import for_digest
from loopwright.errors import StepWarning
from loopwright.guards import resources
from loopwright.guards.watches import SettingsWatch
from loopwright.loop.clock import Pace, Stopwatch
from loopwright.loop.schedule import require_positive
from loopwright.loop.signals import Signals, deferred
from loopwright.plans.plan import Plan, Terms, nearest, objection, settled
from loopwright.plans.record import PlanHistory
from loopwright.plans.selector import PlanSelector, StepKind
from loopwright.plans.tuner import Candidate
from loopwright.rewrites import scope
from loopwright.task import scheduled, variables
from loopwright.task.context import GradientWatch
from loopwright.task.state import undisturbed
from loopwright.task.task import Task, class_name, require_step

_MOST_COPIED_BYTES = 64 * 2**20
"""A larger state is not copied to look for NaN after some steps: it is looked at after each."""


@final
class Engine:
    """Makes and keeps what runs the steps of one task; scores and predicts with it."""

    def __init__(
        self,
        task: Task,
        team: Team,
        plans: PlanSelector | None = None,
        *,
        on_nan: OnNan = "raise",
        watch: GradientWatch | None = None,
        silenced: frozenset[str] = frozenset(),
    ) -> None:
        self.task, self.team, self.plans = task, team, plans or PlanSelector(None)
        self.on_nan: OnNan = on_nan
        self._watched, self.silenced = watch, silenced
        self._predictor = Predictor(task, team.strategy)
        self._fingerprint: Any = None
        self._built: dict[Any, Built] = {}
        self._loops: dict[Any, CompiledLoop] = {}
        self._read: set[StepName] = set()
        self.updates = Updates(task, silenced)
        """Which metrics the steps update."""

    @property
    def strategy(self) -> tf.distribute.Strategy:
        """What the replicas of a step run under."""
        return self.team.strategy

    def aside(
        self, plan: "Plan | PlanHistory | None" = None, *, ignores_nan: bool = False
    ) -> "Engine":
        """Return an engine of the same task for steps that are no part of a run.

        It shares no trace with this one, nor what traces hold, and measures and records no plans.
        """
        return Engine(
            self.task,
            self.team,
            self.plans.aside(plan),
            on_nan="raise" if ignores_nan else self.on_nan,
            watch=None if ignores_nan else self._watched,
            silenced=self.silenced,
        )

    # -- train ---------------------------------------------------------------------------------

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
            needs_trace = not is_eager or step.replicas > 1 or self.on_nan == "skip"
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
        return SettingsWatch(step.title, step.source, self.task)

    def graph(self, name: StepName, batch_spec: Any) -> Any:
        """Return the graph of this step for batches of exactly this shape, of all replicas."""
        return self.probe(name, batch_spec, lambda _: ()).graph

    def probe(self, name: StepName, batch_spec: Any, fetch: Callable[[Any], Any]) -> Any:
        """Return a function that runs this step, and returns what `fetch` takes from its graph."""
        step = self._step(name, batch_spec, converts=True)
        if not self.traces(name):
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

    def traces(self, name: StepName) -> list[Built]:
        """Return the traces of a step, one for each kind of batch."""
        return [built for (known, _), built in self._built.items() if known == name]

    def changing_values(self, batch_spec: Any) -> str | None:
        """Return the message about an eager train step whose Python computes changing values."""
        step = self._step("train_step", batch_spec, converts=True)
        return changing_values(step, self._build(step, batch_spec), is_eager=True)

    def kind(self, feed: Feed | None) -> StepKind:
        """Return the kind of train step on this data: what its plans depend on."""
        spec = None if feed is None else feed.batch_spec
        resident = None if feed is None else feed.resident
        batch_size = None if resident is None else resident.batch_size
        terms = _terms(feed, self.strategy.num_replicas_in_sync)

        def trace() -> Built:
            return self.built("train_step", spec)

        def digest(*more: Any) -> str:
            parts = variables.parts(self.task)
            held = [v for part in parts for v in variables.variables(part.value)]
            shapes = sorted(f"{variable.dtype.name}{tuple(variable.shape)}" for variable in held)
            data = None if feed is None else str(spec)
            known = [trace().digest, shapes, data, batch_size, terms, *more]
            return hashlib.sha256(repr(known).encode()).hexdigest()

        return StepKind(
            terms,
            is_shared=not self.team.is_alone,
            candidates=functools.partial(_candidates, feed, terms, trace),
            identity=lambda: digest(for_digest(launch.current())),
            digest=digest,
        )

    def last_gradients(self) -> dict[str, Any]:
        """Return the last gradients by variable name; none unless they are watched."""
        return {} if self._watched is None else self._watched.last(self.task)

    # -- score and predict -----------------------------------------------------------------------

    def evaluate(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        batch_size: int | None = None,
        steps: int | None = None,
    ) -> dict[str, Any]:
        """Return the scores on data as users pass it."""
        require_step(self.task, "test_step")
        require_positive(steps=steps)
        with self.team.losses_explained():
            data = as_data(x, y, sample_weight, batch_size=batch_size)
            alone = Agreement(self.team, time.perf_counter, Signals())
            return self.score(data.of(self.team.size, self.team.index), steps, alone) or {}

    def predict(self, x: Any, *, batch_size: int | None = None, steps: int | None = None) -> Any:
        """Return the predictions for data as users pass it, as NumPy arrays."""
        require_step(self.task, "predict_step")
        require_positive(steps=steps)
        data = as_data(x, batch_size=batch_size)
        return self._predictor.predict(data, steps=steps, plan=self.plans.plan_in_force)

    def score(
        self,
        data: Data,
        steps: int | None,
        agreement: Agreement,
        on_batch: Callable[[int, Mapping[str, Any]], None] | None = None,
        watch: Stopwatch | None = None,
    ) -> dict[str, Any] | None:
        """Return the scores on a data set, by examples; None if all workers agreed to stop.

        `on_batch` is called after every batch, with its number and the scores so far.
        """
        watch = watch or Stopwatch(time.perf_counter)
        tally = EpochMetrics(self.task, "test_step", self.updates)
        pace, scored, rest = Pace(), 0, data.one_pass(steps=steps)
        with contextlib.ExitStack() as undoing:
            while rest is not None:
                with watch.timing("compile"):
                    feed, loop = rest, self._test_loop(rest)
                reader = loop.open(feed)
                if not scored:
                    # Only now: building the loop makes what the step makes lazily.
                    undoing.enter_context(undisturbed(self.task))
                    tally.start()
                asked, ran = 0, 0
                while ran == asked:
                    if agreement.interrupted():
                        return None
                    began, asked = agreement.now(), pace.at_most_steps if on_batch is None else 1
                    with read_errors_explained(feed):
                        result = loop.run(reader, asked, clock=watch.clock)
                    for part, seconds in result.seconds.items():
                        watch.add(part, seconds)
                    ran = result.steps
                    pace.add(steps=ran, seconds=agreement.now() - began)
                    scored += ran
                    if ran:
                        tally.add(result.totals)
                        if on_batch is not None:
                            on_batch(scored - 1, tally.numbers())
                rest = feed_after(feed, scored)
            return tally.numbers()

    def build_test_step(self, data: Data, steps: int | None) -> None:
        """Trace the test step for this data, so that what is wrong with it shows now."""
        self._test_loop(data.one_pass(steps=steps))

    def _test_loop(self, feed: Feed) -> CompiledLoop:
        # Any data can be scored, whatever plan the training runs by.
        terms = self.kind(feed).terms
        plan = self.plans.plan_in_force  # a comparison is no reason to compile a test step
        plan = settled(nearest(replace(plan, feed=None), terms), terms)
        return self.loop("test_step", feed, plan)

    # -- tracing -------------------------------------------------------------------------------

    def _step(
        self, name: StepName, batch_spec: Any, *, converts: bool, is_share: bool = False
    ) -> Step:
        return Step(
            self.task,
            name,
            self.strategy,
            batch_spec is not None,
            converts=converts,
            is_share=is_share,
            watch=self._watched if name == "train_step" else None,
            silenced=self.silenced,
        )

    def _build(self, step: Step, batch_spec: Any) -> Built:
        kind = (step.name, str(batch_spec))
        if kind not in self._built:
            _ = self.task.step_counter
            casts = batch_spec is not None and not step.reports_last
            spec = batches.spec_in_floatx(batch_spec) if casts else batch_spec
            self._built[kind] = build(step, spec)
            # Building creates what is made lazily, so the fingerprint is taken after it.
            self._fingerprint = scheduled.fingerprint(self.task)
            self._require_separate()
        return self._built[kind]

    def _require_separate(self) -> None:
        """Raise for a test step that would change the training."""
        trained = [r for built in self.traces("train_step") for r in built.resources]
        tested = [r for built in self.traces("test_step") for r in built.resources]
        title = f"{class_name(self.task)}.test_step"
        resources.require_separate(title, tested, trained)

    def _finite_check(self, step: Step, built: Built, ignored_nan: IgnoredNan) -> FiniteCheck:
        """Return what is looked at for NaN, and what of it can wait for some steps."""
        skips = self.on_nan == "skip"
        if step.name != "train_step" or (ignored_nan == "all" and not skips):
            return FiniteCheck(looks=False)
        if skips:
            resources.require_skippable(step.title, built.resources)
        named = variables.named(self.task)
        if step.replicas > 1:
            # Statistics differ between replicas: reading them all would be a collective operation.
            lasting = [v for v in named.values() if v.trainable]
            return FiniteCheck(looks=True, lasting=lasting, passes_losses=bool(ignored_nan))
        overwritten, lasting = _written(self.task, built)
        own = {id(v.handle): v for name, v in named.items() if name != "step"}
        used = {id(getattr(v, "handle", v)) for v in built.captured}
        kept = [v for handle, v in own.items() if handle in used]
        # Gradients that are watched are those of the last step, also of one that was skipped.
        repeats = built.is_repeatable and self._watched is None and bool(kept)
        if not skips:
            is_complete = used <= {*own, id(self.task.step_counter.handle)}
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
        if self._fingerprint != scheduled.fingerprint(self.task):
            self._built.clear()
            self._loops.clear()
            self.updates.task_changed()
            self._fingerprint = scheduled.fingerprint(self.task)


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


def _candidates(feed: Feed | None, terms: Terms, trace: Callable[[], Built]) -> list[Candidate]:
    leaves = [] if feed is None else tf.nest.flatten(feed.batch_spec)
    if any(None in leaf.shape[1:] for leaf in leaves):
        return []  # XLA would compile again for each length
    savings = {Plan("xla", "fused"): 0.5, Plan("xla", "graph"): 0.1}
    if trace().has_convolutions and not tf.config.list_physical_devices("GPU"):
        # Inside XLA's loop they run many times slower, and nothing can interrupt a step.
        savings = {Plan("xla", "graph"): 0.3}
    return [
        Candidate(settled(plan, terms), saving)
        for plan, saving in savings.items()
        if objection(plan, terms) is None
    ]


def _terms(feed: Feed | None, replicas: int) -> Terms:
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
