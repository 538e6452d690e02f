"""Which plan runs the next steps of a trainer: given, recorded, remembered or measured."""

import hashlib
import os
from collections.abc import Iterable, Sequence
from typing import Any, final

import tensorflow as tf

from loopwright.data.source import Feed
from loopwright.engine.compiled_steps import CompiledSteps
from loopwright.engine.trace import Built
from loopwright.environment import for_digest
from loopwright.errors import ConfigurationError
from loopwright.events import PlanChosen
from loopwright.loop.clock import Stopwatch
from loopwright.plans import cache
from loopwright.plans import settings as settings_of
from loopwright.plans.evidence import recall
from loopwright.plans.plan import WORDS, Plan, Terms, objection, plan_of, refuse, settled
from loopwright.plans.plan_history import (
    Pilot,
    PlanHistory,
    PlanRecorder,
    Recorded,
    load,
)
from loopwright.plans.settings import Settings
from loopwright.plans.tuner import Candidate, Compiler, State, Tuner
from loopwright.plans.worth import Budget
from loopwright.task import variables


def candidates(built: Built, feed: Feed | None, terms: Terms) -> list[Candidate]:
    """Return the plans that may be faster than the graph loop, the most promising first."""
    leaves = [] if feed is None else tf.nest.flatten(feed.batch_spec)
    if any(None in leaf.shape[1:] for leaf in leaves):
        return []  # XLA would compile again for each length
    savings = {Plan("xla", "fused"): 0.5, Plan("xla", "graph"): 0.1}
    if built.has_convolutions and not tf.config.list_physical_devices("GPU"):
        # Inside XLA's loop they run many times slower, and nothing can interrupt a step.
        savings = {Plan("xla", "graph"): 0.3}
    return [
        Candidate(settled(plan, terms), saving)
        for plan, saving in savings.items()
        if objection(plan, terms) is None
    ]


def data_facts(feed: Feed | None, terms: Terms) -> list[Any]:
    """Return what a kind of step depends on of its data, without the data itself."""
    spec = None if feed is None else feed.batch_spec
    resident = None if feed is None else feed.resident
    return [
        None if spec is None else str(spec),
        None if resident is None else resident.batch_size,
        terms,
    ]


def digest(task: Any, built: Built, facts: Sequence[Any]) -> str:
    """Return a digest of a step and facts about its data and machine, the same in any process."""
    held = [
        variable for part in variables.parts(task) for variable in variables.variables(part.value)
    ]
    shapes = sorted(f"{variable.dtype.name}{tuple(variable.shape)}" for variable in held)
    return hashlib.sha256(repr([built.digest, shapes, *facts]).encode()).hexdigest()


def identity(task: Any, built: Built, feed: Feed | None, terms: Terms) -> str:
    """Return a digest of step, shapes, machine, versions and process settings."""
    facts = [*data_facts(feed, terms), for_digest(settings_of.current())]
    return digest(task, built, facts)


def asked_for(plan: "Plan | PlanHistory | str | os.PathLike[str]") -> PlanHistory | None:
    """Return the plan that the user asked for as a history to follow; None: measure."""
    if isinstance(plan, PlanHistory):
        return plan
    if isinstance(plan, os.PathLike) or (isinstance(plan, str) and plan.endswith(".json")):
        return _without_changes(load(plan), os.fspath(plan))
    return None if plan == "auto" else PlanHistory().changed(0, plan_of(plan))


def _without_changes(history: PlanHistory, path: str) -> PlanHistory:
    """Return the history of a file; raise if its process settings changed in mid-run."""
    if len(history.settings) < 2:
        return history
    changes = [f"{c.settings.in_words} from step {c.step + 1:,}" for c in history.settings]
    raise ConfigurationError(
        f"{path} changes its process settings in mid-run, which no process can.",
        expected="a plan history with the same process settings for all steps",
        received="; ".join(changes),
        do='leave plan out: the run directory resumes by its own record, and "auto" measures',
    )


@final
class PlanSelector:
    """Selects the plans of one trainer: asked for, recorded, remembered or measured."""

    def __init__(self, asked: PlanHistory | None, compiled: CompiledSteps, task: Any) -> None:
        self._asked, self._compiled, self._task = asked, compiled, task
        self._tuners: dict[str, Tuner] = {}
        self._identity = ""
        """Of the step of this call of `fit`, if its plans are measured: the key of its tuner."""
        self._pilot: Pilot = Recorded(PlanHistory())
        self._recorder: PlanRecorder | None = None
        self._done_before: PlanHistory | None = None
        self._is_continued = self._is_unwritten = False
        self._batch_spec: Any = None
        self._data_facts: list[Any] = []
        self.settings = settings_of.current()
        """What this process runs by."""
        self.history = PlanHistory()

    @property
    def plan(self) -> Plan:
        """The plan in use, or the one that training begins with."""
        if self.history.changes:
            return self.history.changes[-1].plan
        return WORDS["graph"] if self._asked is None else self._asked.changes[-1].plan

    @property
    def plan_in_force(self) -> Plan:
        """The plan to score and predict by: the plan in use, or the one before its comparison.

        It follows from the record alone, so that a run that is repeated scores by the same plans.
        """
        return self.history.in_force or self.plan

    @property
    def asked_settings(self) -> Settings | None:
        """The process settings in the plan history that was asked for, if any."""
        return None if self._asked is None else self._asked.settings_after(0)

    @property
    def step_digest(self) -> str:
        """A digest of the step and its shapes, the same on any machine."""
        built = self._compiled.built("train_step", self._batch_spec)
        return digest(self._task, built, self._data_facts)

    @property
    def is_tuning(self) -> bool:
        """Whether plans are measured here, and something is left to try."""
        return self._tuner is not None and self._tuner.state is not State.SETTLED

    @property
    def _tuner(self) -> Tuner | None:
        return self._tuners.get(self._identity)

    # -- a call of fit -------------------------------------------------------------------------

    def begin(
        self, feed: Feed | None, compiler: Compiler, watch: Stopwatch, budget: Budget
    ) -> Pilot:
        """Return what chooses the plans of one call of `fit`."""
        terms, self._identity = self._compiled.terms(feed), ""
        self._batch_spec = None if feed is None else feed.batch_spec
        self._data_facts = data_facts(feed, terms)
        before, self._done_before = self._done_before, None
        start = settled(WORDS["graph"], terms)
        if self._asked is not None:
            for change in self._asked.changes:
                refuse(change.plan, terms)
            self._pilot = Recorded(self._asked.with_plans(lambda plan: settled(plan, terms)))
        elif self._compiled.workers > 1:
            # What each of them measures or remembers is another thing.
            self._pilot = Recorded(PlanHistory().changed(0, start))
        else:
            built = self._compiled.built("train_step", self._batch_spec)
            faster = candidates(built, feed, terms)
            self._identity = identity(self._task, built, feed, terms)
            if self._tuner is None:
                in_use = (start, (before or self.history).in_force)
                self._tuners[self._identity] = self._make_tuner(terms, start, faster, in_use)
            self._pilot = self._tuners[self._identity]
            self._pilot.begin(compiler, watch, budget)
        self._is_continued = False
        # On other devices than before, what was recorded may not run any more.
        if before is not None and all(objection(c.plan, terms) is None for c in before.changes):
            self._pilot = Recorded(before, self._pilot)
        return self._pilot

    def _make_tuner(
        self, terms: Terms, start: Plan, faster: Sequence[Candidate], in_use: Sequence[Plan | None]
    ) -> Tuner:
        """Return a tuner that knows what is known of this kind of step; record the answer."""
        known = recall(
            self.history,
            self._identity,
            start,
            [candidate.plan for candidate in faster],
            is_continued=self._is_continued,
        )
        self._is_unwritten |= known.history is not self.history
        self.history, choice = known.history, known.choice
        if choice is not None and objection(choice.plan, terms) is not None:
            return Tuner(start, faster, self._note)
        if choice is not None and known.row is None:
            is_read_alike = (start.feed == "resident") == (choice.plan.feed == "resident")
            if choice.plan in in_use or not is_read_alike:
                # It needs no compile beside training, or cannot follow while the data is open.
                return Tuner(choice.plan, [], remembered=choice)
        return Tuner(start, faster, self._note, remembered=choice, row=known.row)

    def record_plan(self, step: int, plan: Plan) -> None:
        """Record that the steps after `step` run by this plan."""
        self._record_choice()
        is_compared = self._pilot.is_comparing(step, plan)
        changed = self.history.changed(step, plan, is_trial=is_compared)
        changed = changed.with_settings(step, self.settings)
        self._is_unwritten |= changed is not self.history
        self.history = changed
        self._write()

    def pending_events(self, step: int) -> Iterable[PlanChosen]:
        """Return what has been chosen since the last call."""
        self._record_choice()
        if self.history.changes:
            self._write()
        tuner = self._tuner
        choice = None if tuner is None else tuner.take_choice()
        if tuner is not None and choice is not None:
            why = f"{'measured before: ' if choice == tuner.remembered else ''}{choice.why}"
            yield PlanChosen(step, choice.plan.in_words, why, f"plan={choice.plan!r}")

    def end(self) -> None:
        """End a call of `fit`."""
        if self._tuner is not None:
            self._tuner.end()
            list(self.pending_events(0))

    # -- the record ----------------------------------------------------------------------------

    def follow(self, plans: PlanHistory) -> None:
        """Follow these plans from now on."""
        self._asked = plans

    def resume(self, history: PlanHistory, step: int, *, is_continued: bool) -> None:
        """Resume a run after `step` steps; `history` may include later ones, not saved.

        A leg that `is_continued` follows this record, not what the cache has learned since.
        """
        self.history, self._is_continued = history.until(step), is_continued
        if self._asked is None:
            self._done_before = history
        else:
            # Asked for by name, a plan leaves open what a run in its middle has settled.
            self._asked = self._asked.with_rewrites_of(history)

    def go_back(self, step: int) -> None:
        """Forget the plans after `step` steps: these steps run again."""
        self.history = self.history.until(step)

    def record_to(self, recorder: PlanRecorder) -> None:
        """Write each change to a recorder before it is used."""
        self._recorder = recorder

    def _record_choice(self) -> None:
        """Record what was measured: in the history of the run, and in the cache."""
        tuner = self._tuner
        if tuner is None:
            return
        if tuner.choice is not None and tuner.choice != tuner.remembered:
            chosen = self.history.chosen(self._identity, tuner.choice)
            self._is_unwritten |= chosen != self.history
            self.history = chosen
        row = tuner.take_row()
        if row is not None:
            cache.write("plans", self._identity, row)

    def _write(self) -> None:
        if self._is_unwritten and self._recorder is not None:
            self._recorder.write_plans(self.history)
        self._is_unwritten = False

    def _note(self, text: str) -> None:
        self.history = self.history.noted(text)

    # -- beside a run --------------------------------------------------------------------------

    def aside(
        self, plan: Plan | PlanHistory | None = None, compiled: CompiledSteps | None = None
    ) -> "PlanSelector":
        """Return a selector for steps that are no part of a run: it measures and records nothing.

        They run by `plan`, or by the plan that this selector was given or uses.
        """
        asked = self._asked if plan is None else plan
        if not isinstance(asked, PlanHistory):
            asked = PlanHistory().changed(0, asked or self.plan)
        return PlanSelector(asked, compiled or self._compiled, self._task)

    def prospects(self, feed: Feed | None, compiled: CompiledSteps) -> tuple[list[Plan], str]:
        """Return the plans that training on this feed would try, and why it would try none."""
        if self._asked is not None:
            return [], "the plan was given"
        if compiled.workers > 1:
            return [], "several workers share one plan"
        terms = compiled.terms(feed)
        built = compiled.built("train_step", None if feed is None else feed.batch_spec)
        faster = [candidate.plan for candidate in candidates(built, feed, terms)]
        key, start = identity(self._task, built, feed, terms), settled(WORDS["graph"], terms)
        known = recall(self.history, key, start, faster, is_continued=False).choice
        if known is not None:
            return [], f"measured before: {known.plan.in_words}"
        return faster, "none may be faster"
