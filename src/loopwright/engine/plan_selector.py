"""Which plan runs the next steps of a trainer: given, recorded, remembered or measured."""

import hashlib
import os
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, final

import tensorflow as tf

from loopwright.compat import xla_rewrites
from loopwright.compat.environment import environment
from loopwright.data.source import Feed
from loopwright.engine.compiled_steps import CompiledSteps
from loopwright.engine.trace import Built
from loopwright.events import PlanChosen
from loopwright.loop.clock import Stopwatch
from loopwright.plans.plan import WORDS, Plan, Terms, objection, plan_of, refuse, settled
from loopwright.plans.plan_history import (
    Choice,
    Pilot,
    PlanHistory,
    PlanRecorder,
    Recorded,
    Replayed,
    decide,
    load,
    recall,
)
from loopwright.plans.tuner import Budget, Candidate, Compiler, Tuner
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


def read_alike(one: Plan, other: Plan) -> bool:
    """Return whether training can switch between two plans while its data is open."""
    return (one.feed == "resident") == (other.feed == "resident")


def as_candidate(plan: Plan, among: Sequence[Candidate]) -> Candidate:
    """Return the plan that an earlier run chose, with the saving expected of it then."""
    savings = {candidate.plan: candidate.saving for candidate in among}
    return Candidate(plan, savings.get(plan, 0.5))


def identity(task: Any, built: Built, feed: Feed | None, terms: Terms) -> str:
    """Return a digest of step, shapes, machine and versions, the same in any process."""
    held = [
        variable for part in variables.parts(task) for variable in variables.variables(part.value)
    ]
    known = [
        built.digest,
        sorted(f"{variable.dtype.name}{tuple(variable.shape)}" for variable in held),
        None if feed is None else str(feed.batch_spec),
        feed.resident.batch_size if feed is not None and feed.resident is not None else None,
        terms,
        environment(),
    ]
    return hashlib.sha256(repr(known).encode()).hexdigest()


def asked_for(plan: "Plan | PlanHistory | str | os.PathLike[str]") -> PlanHistory | None:
    """Return the plan that the user asked for as a history to follow; None: measure."""
    if isinstance(plan, PlanHistory):
        return plan
    if isinstance(plan, os.PathLike) or (isinstance(plan, str) and plan.endswith(".json")):
        return load(plan)
    return None if plan == "auto" else PlanHistory().changed(0, plan_of(plan))


@final
class PlanSelector:
    """Selects the plans of one trainer: asked for, recorded, remembered or measured."""

    def __init__(self, asked: PlanHistory | None, compiled: CompiledSteps, task: Any) -> None:
        self._asked, self._compiled, self._task = asked, compiled, task
        self._tuners: dict[Any, Tuner] = {}
        self._tuner: Tuner | None = None
        self._identity = ""
        self._recorder: PlanRecorder | None = None
        self._done_before: PlanHistory | None = None
        self._replayed: PlanHistory | None = None
        """What the steps of this call of `fit` repeat, until its last change."""
        self._is_continued = self._is_unwritten = False
        self.history = PlanHistory()

    @property
    def plan(self) -> Plan:
        """The plan in use, or the one that training begins with."""
        if self.history.changes:
            return self.history.changes[-1].plan
        return WORDS["graph"] if self._asked is None else self._asked.changes[-1].plan

    @property
    def plan_in_force(self) -> Plan:
        """The plan to score and predict by: the plan in use, or the one before its trial.

        It follows from the record alone, so that a run that is repeated scores by the same plans.
        """
        return self.history.in_force or self.plan

    def begin(
        self, feed: Feed | None, compiler: Compiler, watch: Stopwatch, budget: Budget
    ) -> Pilot:
        """Return what chooses the plans of one call of `fit`."""
        pilot = self._pilot(feed, compiler, watch, budget)
        before, self._done_before, self._is_continued = self._done_before, None, False
        self._replayed = self._asked
        terms = self._compiled.terms(feed)
        # On other devices than before, what was recorded may not run any more.
        if before is None or any(objection(c.plan, terms) is not None for c in before.changes):
            return pilot
        self._replayed = before
        return Replayed(before, pilot)

    def _pilot(
        self, feed: Feed | None, compiler: Compiler, watch: Stopwatch, budget: Budget
    ) -> Pilot:
        self._tuner = None
        terms = self._compiled.terms(feed)
        if self._asked is not None:
            for change in self._asked.changes:
                refuse(change.plan, terms)
            return Recorded(self._asked.with_plans(lambda plan: settled(plan, terms)))
        start = settled(WORDS["graph"], terms)
        if self._compiled.workers > 1:
            # What each of them measures or remembers is another thing.
            return Recorded(PlanHistory().changed(0, start))
        spec = None if feed is None else feed.batch_spec
        built = self._compiled.built("train_step", spec)
        faster = candidates(built, feed, terms)
        self._identity = identity(self._task, built, feed, terms)
        if self._identity not in self._tuners:
            known, recorded = recall(
                self.history, self._identity, start, is_continued=self._is_continued
            )
            self._is_unwritten |= recorded is not self.history
            self.history, remembered = recorded, None
            if known is not None and objection(known.plan, terms) is None:
                remembered = Choice(known.plan, f"measured before: {known.why}")
                is_in_use = known.plan in (start, self._plan_before)
                if is_in_use or not read_alike(start, known.plan):
                    self._tuner = Tuner(
                        known.plan, deque(), remembered=remembered, choice=remembered
                    )
                    return self._tuner
                # Compiled at the first step, it would make this start slower than the first one.
                faster = [as_candidate(known.plan, faster)]
            self._tuners[self._identity] = Tuner(
                start, deque(faster), self._note, remembered=remembered
            )
        self._tuner = self._tuners[self._identity]
        self._tuner.begin(compiler, watch, budget)
        return self._tuner

    @property
    def _plan_before(self) -> Plan | None:
        """The plan that the run had switched to, also after the checkpoint it resumes from."""
        return (self._done_before or self.history).in_force

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

    def record_plan(self, step: int, plan: Plan) -> None:
        """Record that the steps after `step` run by this plan."""
        for note in xla_rewrites.notes() if plan.step == "xla" else ():
            if note not in self.history.notes:
                self._note(note)
        changed = self.history.changed(step, plan, is_trial=self._is_trial(step, plan))
        if changed is not self.history or self._is_unwritten:
            self.history, self._is_unwritten = changed, False
            self._write(changed)

    def _is_trial(self, step: int, plan: Plan) -> bool:
        replayed = self._replayed
        last = replayed.changes[-1].step if replayed is not None and replayed.changes else -1
        if replayed is not None and (replayed is self._asked or step < last):
            return replayed.is_trial_at(step)
        return self._tuner is not None and self._tuner.is_trying(plan)

    def pending_events(self, step: int) -> Iterable[PlanChosen]:
        """Return what has been chosen since the last call."""
        choice = None if self._tuner is None else self._tuner.take_choice()
        if self._tuner is not None and choice is not None:
            if self._tuner.remembered is None:
                self.history = decide(self.history, self._identity, choice)
                self._write(self.history)
            yield PlanChosen(step, choice.plan.in_words, choice.why, f"plan={choice.plan!r}")

    def end(self) -> None:
        """End a call of `fit`."""
        if self._tuner is not None:
            self._tuner.end()
            list(self.pending_events(0))

    def _write(self, history: PlanHistory) -> None:
        if self._recorder is not None:
            self._recorder.write_plans(history)

    def _note(self, text: str) -> None:
        self.history = self.history.noted(text)
