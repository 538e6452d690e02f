"""Which plan runs the next steps of a trainer: given, recorded, remembered or measured.

The record of a run comes first: a resumed run never asks the cache.
"""

import os
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import final

from loopwright import launch
from loopwright.errors import ConfigurationError
from loopwright.events import PlanChosen
from loopwright.loop.clock import Stopwatch
from loopwright.plans import cache
from loopwright.plans.evidence import Row
from loopwright.plans.plan import WORDS, Plan, Terms, objection, plan_of, refuse, settled
from loopwright.plans.plan_history import Choice, PlanHistory, PlanLog, load
from loopwright.plans.tuner import Budget, Candidate, Compiler, State, Timing, Tuner


@final
@dataclass(frozen=True)
class StepKind:
    """A step on one kind of data; it is traced only for its digests and candidates."""

    terms: Terms
    """What the step and its data require of a plan."""
    is_shared: bool
    """Whether several workers run it together: what each of them measures is another thing."""
    candidates: Callable[[], Sequence[Candidate]]
    """The plans that may be faster than the first one, the most promising first."""
    identity: Callable[[], str]
    """A digest of step, shapes, machine, versions and process settings."""
    digest: Callable[[], str]
    """A digest of the step and its shapes, the same on any machine."""


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
@dataclass(frozen=True)
class Recalled:
    """What is known when training begins."""

    choice: Choice | None
    """The choice to follow; None: the run measures."""
    history: PlanHistory
    """The history that records this answer."""
    row: Row | None = None
    """The evidence, if the answer is from the cache."""


def recall(
    history: PlanHistory,
    identity: str,
    start: Plan,
    candidates: Collection[Plan],
    *,
    is_continued: bool,
) -> Recalled:
    """Return the choice known for a kind of step, and the history that records this answer.

    A run asks the cache once for each kind of step. Resumed (`is_continued`), it follows its own
    record and never the cache, which other runs may have changed since. `start` is the plan that
    training starts with. Of the cache, which anyone may edit, only one of `candidates` is used.
    """
    if identity in history.choices:
        return Recalled(history.choices[identity], history)
    if identity in history.measured:
        return Recalled(None, history)
    if is_continued:
        # A plan that was asked for is recorded only as the plan of every step.
        plans = [change.plan for change in history.changes]
        is_choice = len(plans) == 1 and plans[0] != start
        return Recalled(Choice(plans[0], "as recorded") if is_choice else None, history)
    row = cache.read("plans", identity, Row)
    is_usable = row is not None and row.choice.plan in (start, *candidates)
    if row is None or not is_usable or not row.is_valid(time.time()):
        return Recalled(None, history.measuring(identity))
    if row.choice.plan == start and not row.is_complete:
        return Recalled(None, history.measuring(identity), row)
    return Recalled(row.choice, history.chosen(identity, row.choice), row)


@final
class PlanSelector:
    """Selects the plans of one trainer, and records which plan ran which steps."""

    def __init__(self, asked: PlanHistory | None) -> None:
        self._asked, self._followed, self._is_fixed = asked, PlanHistory(), True
        self._tuners: dict[str, Tuner] = {}
        self._identity = ""
        """Of the step of this call of `fit`, if its plans are measured: the key of its tuner."""
        self._ran_before: PlanHistory | None = None
        self._is_continued = False
        self.settings = launch.current()
        """What this process runs by."""
        self.log = PlanLog()

    @property
    def history(self) -> PlanHistory:
        """Which plan ran which steps."""
        return self.log.history

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
    def asked_settings(self) -> launch.Settings | None:
        """The process settings in the plan history that was asked for, if any."""
        return None if self._asked is None else self._asked.settings_after(0)

    @property
    def is_tuning(self) -> bool:
        """Whether plans are measured here, and something is left to try."""
        return self._tuner is not None and self._tuner.state is not State.SETTLED

    @property
    def _tuner(self) -> Tuner | None:
        return self._tuners.get(self._identity)

    # -- a call of fit -------------------------------------------------------------------------

    def begin(self, kind: StepKind, compiler: Compiler, watch: Stopwatch, budget: Budget) -> None:
        """Begin a call of `fit`: follow what was asked for or recorded, or measure."""
        terms, self._identity = kind.terms, ""
        before, self._ran_before = self._ran_before, None
        start = settled(WORDS["graph"], terms)
        self._followed, self._is_fixed = PlanHistory(), self._asked is not None or kind.is_shared
        if self._asked is not None:
            for change in self._asked.changes:
                refuse(change.plan, terms)
            self._followed = self._asked.with_plans(lambda plan: settled(plan, terms))
        elif kind.is_shared:
            self._followed = PlanHistory().changed(0, start)
        else:
            self._identity = kind.identity()
            if self._tuner is None:
                in_use = (start, (before or self.history).in_force)
                self._tuners[self._identity] = self._make_tuner(kind, start, in_use)
            self._tuners[self._identity].begin(compiler, watch, budget)
        self._is_continued = False
        # On other devices than before, what was recorded may not run any more.
        if before is not None and all(objection(c.plan, terms) is None for c in before.changes):
            last = before.changes[-1].step if before.changes else 0
            self._followed = before.changed(last, start) if kind.is_shared else before

    def hold(self, plan: Plan) -> None:
        """Run all steps of this call of `fit` by this plan from now on."""
        self._followed, self._is_fixed = PlanHistory().changed(0, plan), True

    def plan_after(self, step: int) -> Plan:
        """Return the plan after `step` steps, as far as it is known now."""
        tuner = self._tuner_after(step)
        return self._followed.at(step)[0] if tuner is None else tuner.plan

    def next(self, step: int, steps: int) -> tuple[Plan, int]:
        """Return the plan after `step` steps, and how many of the next `steps` to run by it.

        It is recorded before it is used. A resumed run repeats the steps after its checkpoint by
        the plans that they ran by before.
        """
        tuner = self._tuner_after(step)
        if tuner is None:
            plan, left = self._followed.at(step)
            fitting, is_trial = min(steps, left or steps), self._followed.is_trial_at(step)
        else:
            plan, fitting = tuner.next(steps)
            is_trial = tuner.is_comparing(plan)
        self._record_choice()
        changed = self.history.changed(step, plan, is_trial=is_trial)
        self.log.change(changed.with_settings(step, self.settings))
        self.log.flush()
        return plan, fitting

    def ran(self, step: int, result: Timing) -> None:
        """Take note of how long the steps after `step` took."""
        tuner = self._tuner_after(step)
        if tuner is not None:
            tuner.ran(result)

    def _tuner_after(self, step: int) -> Tuner | None:
        """Return the tuner, unless the steps after `step` follow a record."""
        changes = self._followed.changes
        is_repeated = self._is_fixed or (bool(changes) and step < changes[-1].step)
        return None if is_repeated else self._tuner

    def _make_tuner(self, kind: StepKind, start: Plan, in_use: Sequence[Plan | None]) -> Tuner:
        """Return a tuner that knows what is known of this kind of step; record the answer."""
        terms, faster = kind.terms, kind.candidates()
        known = recall(
            self.history,
            self._identity,
            start,
            [candidate.plan for candidate in faster],
            is_continued=self._is_continued,
        )
        self.log.change(known.history)
        choice = known.choice
        if choice is not None and objection(choice.plan, terms) is not None:
            return Tuner(start, faster, self.log.note)
        if choice is not None and known.row is None:
            is_read_alike = (start.feed == "resident") == (choice.plan.feed == "resident")
            if choice.plan in in_use or not is_read_alike:
                # It needs no compile beside training, or cannot follow while the data is open.
                return Tuner(choice.plan, [], remembered=choice)
        return Tuner(start, faster, self.log.note, remembered=choice, row=known.row)

    def pending_events(self, step: int) -> Iterable[PlanChosen]:
        """Return what has been chosen since the last call."""
        self._record_choice()
        if self.history.changes:
            self.log.flush()
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
        self.log.resume(history.until(step))
        self._is_continued = is_continued
        if self._asked is None:
            self._ran_before = history
        else:
            # Asked for by name, a plan leaves open what a run in its middle has settled.
            self._asked = self._asked.with_rewrites_of(history)

    def _record_choice(self) -> None:
        """Record what was measured: in the history of the run, and in the cache."""
        tuner = self._tuner
        if tuner is None:
            return
        if tuner.choice is not None and tuner.choice != tuner.remembered:
            self.log.change(self.history.chosen(self._identity, tuner.choice))
        row = tuner.take_row()
        if row is not None:
            cache.write("plans", self._identity, row)

    # -- beside a run --------------------------------------------------------------------------

    def aside(self, plan: Plan | PlanHistory | None = None) -> "PlanSelector":
        """Return a selector for steps that are no part of a run: it measures and records nothing.

        They run by `plan`, or by the plan that this selector was given or uses.
        """
        asked = self._asked if plan is None else plan
        if not isinstance(asked, PlanHistory):
            asked = PlanHistory().changed(0, asked or self.plan)
        return PlanSelector(asked)

    def prospects(self, kind: StepKind) -> tuple[list[Plan], str]:
        """Return the plans that training on this data would try, and why it would try none."""
        if self._asked is not None:
            return [], "the plan was given"
        if kind.is_shared:
            return [], "several workers share one plan"
        faster = [candidate.plan for candidate in kind.candidates()]
        start = settled(WORDS["graph"], kind.terms)
        known = recall(self.history, kind.identity(), start, faster, is_continued=False).choice
        if known is not None:
            return [], f"measured before: {known.plan.in_words}"
        return faster, "none may be faster"
