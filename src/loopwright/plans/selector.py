"""Which plan runs the next steps of a trainer: given, recorded, remembered or measured.

The record of a run comes first: a resumed run never asks the cache.
"""

import functools
import os
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import final

from loopwright.errors import ConfigurationError
from loopwright.loop.clock import Stopwatch
from loopwright.plans import cache
from loopwright.plans.evidence import Budget, CacheRow
from loopwright.plans.plan import WORDS, Plan, Terms, objection, plan_of, refuse, settled
from loopwright.plans.record import PlanChoice, PlanHistory, PlanLog, load
from loopwright.plans.tuner import Candidate, Compiler, Tuner


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
    if not (isinstance(plan, os.PathLike) or (isinstance(plan, str) and plan.endswith(".json"))):
        return None if plan == "auto" else PlanHistory().changed(0, plan_of(plan))
    history = load(plan)
    if len(history.settings) < 2:
        return history
    changes = [f"{c.settings.in_words} from step {c.step + 1:,}" for c in history.settings]
    raise ConfigurationError(
        f"{os.fspath(plan)} changes its process settings in mid-run, which no process can.",
        expected="a plan history with the same process settings for all steps",
        received="; ".join(changes),
        do='leave plan out: the run directory resumes by its own record, and "auto" measures',
    )


def recall(
    history: PlanHistory,
    identity: str,
    start: Plan,
    candidates: Collection[Plan],
    *,
    is_continued: bool,
) -> tuple[PlanChoice | None, PlanHistory, CacheRow | None]:
    """Return the choice known for a kind of step, the history with this answer, and its evidence.

    Without a choice the run measures; only the cache has evidence. A run asks the cache once for
    each kind of step. Resumed (`is_continued`), it follows its own record and never the cache,
    which other runs may have changed since. `start` is the plan that training starts with. Of the
    cache, which anyone may edit, only one of `candidates` is used.
    """
    if identity in history.choices:
        return history.choices[identity], history, None
    if identity in history.measured:
        return None, history, None
    if is_continued:
        # A plan that was asked for is recorded only as the plan of every step.
        plans = [change.plan for change in history.changes]
        is_choice = len(plans) == 1 and plans[0] != start
        return PlanChoice(plans[0], "as recorded") if is_choice else None, history, None
    row = cache.read("plans", identity, CacheRow)
    is_usable = row is not None and row.choice.plan in (start, *candidates)
    if row is None or not is_usable or not row.is_valid(time.time()):
        return None, history.measuring(identity), None
    if row.choice.plan == start and not row.is_complete:
        return None, history.measuring(identity), row
    return row.choice, history.chosen(identity, row.choice), row


@final
class PlanSelector:
    """Makes the tuners of one trainer: they follow what was asked for or recorded, or measure."""

    def __init__(self, asked: PlanHistory | None) -> None:
        self.asked = asked
        """What the user asked for; None: plans are measured."""
        self.log = PlanLog()
        self._tuners: dict[str, Tuner] = {}
        """By the identity of the step."""
        self._resumed: tuple[PlanHistory, bool] | None = None
        """The record of a resumed run, and whether its leg is continued."""

    @property
    def plan(self) -> Plan:
        """The plan in use, or the one that training begins with."""
        if self.log.history.changes:
            return self.log.history.changes[-1].plan
        return WORDS["graph"] if self.asked is None else self.asked.changes[-1].plan

    @property
    def plan_in_force(self) -> Plan:
        """The plan to score and predict by: the plan in use, or the one before its comparison.

        It follows from the record alone, so that a run that is repeated scores by the same plans.
        """
        return self.log.history.in_force or self.plan

    def begin(self, kind: StepKind, compiler: Compiler, watch: Stopwatch, budget: Budget) -> Tuner:
        """Begin a call of `fit`: follow what was asked for or recorded, or measure."""
        terms, start = kind.terms, settled(WORDS["graph"], kind.terms)
        (record, is_continued), self._resumed = self._resumed or (None, False), None
        script, is_fixed = PlanHistory(), self.asked is not None or kind.is_shared
        if self.asked is not None:
            for change in self.asked.changes:
                refuse(change.plan, terms)
            script = self.asked.with_plans(lambda plan: settled(plan, terms))
            tuner = Tuner(script.changes[-1].plan, [], self.log)
        elif kind.is_shared:
            script, tuner = script.changed(0, start), Tuner(start, [], self.log)
        else:
            identity = kind.identity()
            if identity not in self._tuners:
                in_use = (record or self.log.history).in_force
                self._tuners[identity] = self._make_tuner(
                    kind, identity, in_use, is_continued=is_continued
                )
            tuner = self._tuners[identity]
        # On other devices than before, what was recorded may not run any more.
        if record is not None and all(objection(c.plan, terms) is None for c in record.changes):
            last = record.changes[-1].step if record.changes else 0
            script = record.changed(last, start) if kind.is_shared else record
        tuner.begin(compiler, watch, budget, script, is_fixed=is_fixed)
        return tuner

    def _make_tuner(
        self, kind: StepKind, identity: str, in_use: Plan | None, *, is_continued: bool
    ) -> Tuner:
        """Return a tuner that knows what is known of this kind of step; record the answer."""
        start, faster = settled(WORDS["graph"], kind.terms), kind.candidates()
        plans = [candidate.plan for candidate in faster]
        choice, history, row = recall(
            self.log.history, identity, start, plans, is_continued=is_continued
        )
        self.log.change(history)
        if choice is not None and objection(choice.plan, kind.terms) is not None:
            choice, row = None, None
        elif choice is not None and row is None:
            faster = []  # a record is followed
            is_read_alike = (start.feed == "resident") == (choice.plan.feed == "resident")
            if choice.plan in (start, in_use) or not is_read_alike:
                # It needs no compile beside training, or cannot follow while the data is open.
                start = choice.plan
        return Tuner(
            start,
            faster,
            self.log,
            identity=identity,
            remembered=choice,
            row=row,
            remember=functools.partial(cache.write, "plans", identity),
        )

    def follow(self, plans: PlanHistory) -> None:
        """Follow these plans from now on."""
        self.asked = plans

    def resume(self, history: PlanHistory, step: int, *, is_continued: bool) -> None:
        """Resume a run after `step` steps; `history` may include later ones, not saved.

        A leg that `is_continued` follows this record, not what the cache has learned since.
        """
        self.log.resume(history.until(step))
        if self.asked is None:
            self._resumed = (history, is_continued)
        else:
            # Asked for by name, a plan leaves open what a run in its middle has settled.
            self.asked = self.asked.with_rewrites_of(history)

    def aside(self, plan: Plan | PlanHistory | None = None) -> "PlanSelector":
        """Return a selector for steps that are no part of a run: it measures and records nothing.

        They run by `plan`, or by the plan that this selector was given or uses.
        """
        asked = self.asked if plan is None else plan
        if not isinstance(asked, PlanHistory):
            asked = PlanHistory().changed(0, asked or self.plan)
        return PlanSelector(asked)

    def prospects(self, kind: StepKind) -> tuple[list[Plan], str]:
        """Return the plans that training on this data would try, and why it would try none."""
        if self.asked is not None:
            return [], "the plan was given"
        if kind.is_shared:
            return [], "several workers share one plan"
        faster = [candidate.plan for candidate in kind.candidates()]
        start = settled(WORDS["graph"], kind.terms)
        choice, *_ = recall(self.log.history, kind.identity(), start, faster, is_continued=False)
        if choice is not None:
            return [], f"measured before: {choice.plan.in_words}"
        return faster, "none may be faster"
