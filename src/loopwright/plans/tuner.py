"""Tuner: which plan runs the next steps, and the fastest one, found during training.

What was asked for or recorded is followed first. Steps of a comparison train, too.

It starts with a plan that is never slow. At a stop it has a candidate prepared (traced at once,
compiled in the background), then lets candidate and favourite take turns, and keeps the faster one.
It stops when a comparison costs more than it can save. A plan that an earlier run has chosen needs
none: it is compiled before the first step if that ends sooner, else in the background. What was
not tried then is tried now, and everything once more if the speed is far from the remembered one.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from enum import Enum, auto
from statistics import median
from typing import Protocol, final

from loopwright.errors import first_line
from loopwright.events import PlanChosen
from loopwright.loop.clock import Stopwatch
from loopwright.plans.comparison import PlanComparison, Speed, rate_in_words
from loopwright.plans.evidence import (
    BESIDE_TRAINING,
    TIE,
    Budget,
    CacheRow,
    Evidence,
    Findings,
    is_far,
)
from loopwright.plans.plan import Plan
from loopwright.plans.record import PlanChoice, PlanHistory, PlanLog

_MOST_COMPILE_SECONDS = 120.0
_TURNS_TO_CHECK = 5
# Of eight workloads, none whose loop inside XLA won had a second candidate that was faster still.
_SAVING_AFTER_A_WIN = 0.2
_SAVING_OF_FIRST_PLAN = 0.1


class Compiler(Protocol):
    """Compiles plans while training continues."""

    def can_prepare(self) -> bool:
        """Return whether enough is known of the batches to compile a plan."""
        ...

    def prepare(self, plan: Plan) -> Future[None]:
        """Trace a plan at once, and compile it in the background."""
        ...


@dataclass(frozen=True)
class Timing:
    """How long a call of some steps took."""

    plan: Plan
    steps: int
    seconds: float
    compile_seconds: float
    """The part of them that was the first call of a function."""


@dataclass(frozen=True)
class Candidate:
    """A plan that may be faster."""

    plan: Plan
    saving: float
    """The part of the run's time that it is expected to save."""
    remembered: PlanChoice | None = None
    """The choice of an earlier run: this plan is used without a comparison."""


@final
class TunerState(Enum):
    """What the tuner is doing, where no record is followed."""

    TRAINING = auto()
    """The fastest plan so far runs; a candidate is compiled as soon as that is worth it."""
    COMPILING = auto()
    """The first candidate is compiled while training continues."""
    COMPARING = auto()
    """The first candidate takes turns with the fastest plan so far."""
    SETTLED = auto()
    """The fastest plan runs; nothing is left to try."""


@final
@dataclass
class _Leg:
    """One call of `fit`: its budget, what it has used of it, and what it follows."""

    compiler: Compiler
    watch: Stopwatch
    began: float
    budget: Budget
    script: PlanHistory
    is_fixed: bool
    done: int = 0
    trained_seconds: float = 0.0

    def script_after(self, step: int) -> PlanHistory | None:
        """Return the plans to follow after `step` steps; None: nothing is recorded of them."""
        changes = self.script.changes
        return self.script if self.is_fixed or (changes and step < changes[-1].step) else None

    def hold(self, plan: Plan) -> None:
        """Follow one plan from now on."""
        self.script, self.is_fixed = PlanHistory().changed(0, plan), True

    def add(self, steps: int, seconds: float) -> None:
        """Add what has been trained."""
        self.done, self.trained_seconds = self.done + steps, self.trained_seconds + seconds

    def seconds_left(self, seconds_per_step: float) -> float:
        """Return how long training will continue: the budget, or as long as it took so far."""
        if self.budget.steps is not None:
            return (self.budget.steps - self.done) * seconds_per_step
        if self.budget.seconds is not None:
            return self.budget.seconds - (self.watch.clock() - self.began)
        return self.trained_seconds


@final
@dataclass(frozen=True)
class _Compile:
    """A compile under way."""

    result: "Future[None]"
    began: float
    trace_seconds: float


@final
class Tuner:
    """Chooses the plan of the next steps from how long the previous ones took."""

    def __init__(
        self,
        plan: Plan,
        candidates: Sequence[Candidate],
        log: PlanLog,
        *,
        identity: str = "",
        remembered: PlanChoice | None = None,
        row: CacheRow | None = None,
        remember: Callable[[CacheRow], None] = lambda row: None,
    ) -> None:
        """Begin with `plan`; without candidates nothing is measured, and a choice is followed.

        Choices are logged by the `identity` of the step, and `remember` keeps them for later runs.
        """
        self.plan = plan
        self._log, self._identity, self._remember = log, identity, remember
        first = [Candidate(plan, _SAVING_OF_FIRST_PLAN)] if candidates else []
        self._candidates = (*candidates, *first)
        self._findings = Findings([plan, *(c.plan for c in candidates)], row)
        self._choice: PlanChoice | None = None
        """What to announce: set when nothing is left to try, or a remembered plan is in use."""
        self._is_unchecked = row is not None and remembered is None
        """Whether the plan in use was measured by an earlier run, at a speed to be checked."""
        self._is_check = False
        self._speed = Speed()
        self._seconds_before = 0.0
        self._leg: _Leg | None = None
        self._work: _Compile | PlanComparison | None = None
        """What is done about the first candidate in the queue."""
        self._queue = deque[Candidate]()
        if remembered is None:
            self._queue_unknown()
        elif remembered.plan == plan:
            self._adopt(remembered)
        else:
            savings = {candidate.plan: candidate.saving for candidate in candidates}
            saving = savings.get(remembered.plan, 0.5)
            self._queue.append(Candidate(remembered.plan, saving, remembered))

    @property
    def state(self) -> TunerState:
        """What it is doing."""
        match self._work:
            case _Compile():
                return TunerState.COMPILING
            case PlanComparison():
                return TunerState.COMPARING
            case None:
                return TunerState.TRAINING if self._queue else TunerState.SETTLED

    # -- calls of fit --------------------------------------------------------------------------

    def begin(
        self,
        compiler: Compiler,
        watch: Stopwatch,
        budget: Budget,
        script: PlanHistory,
        *,
        is_fixed: bool = False,
    ) -> None:
        """Begin a call of `fit`; follow `script` up to its last change, or to the end if fixed."""
        self._leg = _Leg(compiler, watch, watch.clock(), budget, script, is_fixed)

    def hold(self, plan: Plan) -> None:
        """Run all steps of this call of `fit` by this plan from now on."""
        if self._leg is not None:
            self._leg.hold(plan)

    def plan_after(self, step: int) -> Plan:
        """Return the plan after `step` steps, as far as it is known now."""
        script = None if self._leg is None else self._leg.script_after(step)
        return self.plan if script is None else script.at(step)[0]

    def next(self, step: int, steps: int) -> tuple[Plan, int]:
        """Return the plan after `step` steps, and how many of the next `steps` to run by it.

        It is recorded before it is used. A resumed run repeats the steps after its checkpoint by
        the plans that they ran by before.
        """
        leg = self._leg
        script = None if leg is None else leg.script_after(step)
        if script is not None:
            plan, left = script.at(step)
            fitting, is_trial = min(steps, left or steps), script.is_trial_at(step)
        else:
            if leg is not None and isinstance(self._work, _Compile):
                self._check_compile(leg, self._work)
            elif leg is not None and self.state is TunerState.TRAINING:
                self._consider(leg, self._queue[0])
            work = self._work if isinstance(self._work, PlanComparison) else None
            plan, fitting = (self.plan, steps) if work is None else work.next(steps)
            is_trial = work is not None and plan == work.challenger
        self._log.record(step, plan, is_trial=is_trial)
        return plan, fitting

    def ran(self, step: int, timing: Timing) -> None:
        """Add the time of a call after `step` steps."""
        leg, steps, seconds, work = self._leg, timing.steps, timing.seconds, self._work
        if leg is None or leg.script_after(step) is not None:
            return
        leg.add(steps, seconds - timing.compile_seconds)
        if timing.compile_seconds:
            self._findings.add_first_call(timing.compile_seconds)
        elif isinstance(work, PlanComparison) and steps:
            lost_seconds = work.ran(timing.plan, steps, seconds)
            leg.watch.add("tuning", lost_seconds)
            leg.watch.add("step", -lost_seconds)
            if work.is_over:
                self._decide(work)
        elif not isinstance(work, _Compile):  # beside a compile everything is slower
            self._speed.add(steps, seconds)
            self._check_speed()

    def pending_events(self, step: int) -> Iterable[PlanChosen]:
        """Return what has been chosen since the last call."""
        if self._candidates and self._findings.take_news():
            self._remember(self._row())
        self._log.flush()
        choice, self._choice = self._choice, None
        if choice is not None:
            yield PlanChosen(step, choice.plan.in_words, choice.why, f"plan={choice.plan!r}")

    def end(self) -> None:
        """End a call of `fit`; the next one continues from here.

        What is chosen only now is recorded, and not announced.
        """
        if self._leg is not None:
            self._seconds_before += self._leg.trained_seconds
            self._leg = None
        if self._findings.has_tried and self.state is TunerState.TRAINING:
            self._settle()
        list(self.pending_events(0))

    # -- transitions ---------------------------------------------------------------------------

    def _consider(self, leg: _Leg, candidate: Candidate) -> None:
        """Compile a candidate if that is worth it: TRAINING to COMPILING, or to SETTLED."""
        can_begin = candidate.remembered is not None and not leg.done and leg.compiler.can_prepare()
        if can_begin and self._findings.pays_at_once(candidate.plan, leg.budget):
            self._start_compile(leg, candidate)
            if isinstance(self._work, _Compile):
                with leg.watch.timing("compile"), contextlib.suppress(TimeoutError):
                    self._work.result.exception(_MOST_COMPILE_SECONDS)
                self._check_compile(leg, self._work, is_alone=True)
        elif self._speed.is_known and not self._is_unchecked:  # else the evidence may be void
            has_won = self.plan != self._findings.first_plan and not self._is_check
            saving = candidate.saving * (_SAVING_AFTER_A_WIN if has_won else 1)
            left = max(leg.seconds_left(self._speed.seconds_per_step), self._seconds_before)
            if self._findings.is_worth_trying(candidate.plan, left, saving):
                self._start_compile(leg, candidate)
            elif self._findings.has_tried and leg.budget.is_known:
                self._settle()  # the remaining time only decreases

    def _start_compile(self, leg: _Leg, candidate: Candidate) -> None:
        """Trace a candidate: TRAINING to COMPILING, or drop it."""
        began = leg.watch.clock()
        with leg.watch.timing("tuning"):
            try:
                result = leg.compiler.prepare(candidate.plan)
            except Exception as error:
                self._drop(f"could not be traced ({first_line(error)})")
                return
        now = leg.watch.clock()
        self._work = _Compile(result, now, now - began)

    def _check_compile(self, leg: _Leg, compiling: _Compile, *, is_alone: bool = False) -> None:
        """When the compile has ended: COMPILING to COMPARING, or adopt or drop the candidate."""
        seconds = leg.watch.clock() - compiling.began
        if not compiling.result.done():
            if seconds > _MOST_COMPILE_SECONDS:
                # A second compile at the same time would leave no CPU for training.
                reason = f"skipped, compiling with XLA takes more than {seconds:,.0f} s"
                rest = [*self._queue][1:]
                self._drop(reason)
                for candidate in rest:
                    self._find(Evidence(candidate.plan, "not tried", reason))
                self._settle()
            return
        self._work = None
        candidate = self._queue[0]
        try:
            compiling.result.result()
        except Exception as error:
            self._drop(f"could not be compiled ({first_line(error)})")
            return
        seconds = compiling.trace_seconds + seconds / (1 if is_alone else BESIDE_TRAINING)
        self._findings.add_compile(candidate.plan, seconds)
        if candidate.remembered is not None:
            self._adopt(candidate.remembered)
        else:
            self._work = PlanComparison(candidate.plan, self.plan, self._speed)

    def _decide(self, comparison: PlanComparison) -> None:
        """Keep the faster plan: COMPARING to TRAINING, or to SETTLED."""
        self._work = None
        self._queue.popleft()
        verdict, challenger = comparison.verdict, comparison.challenger
        favourite = self._findings.measured(self.plan, comparison.speeds[self.plan])
        found = self._findings.measured(challenger, comparison.speeds[challenger])
        against = f"{rate_in_words(found.rates)} steps/s against {favourite.in_words}"
        words = f"{against} of {self.plan.in_words}"
        if verdict == "no difference":
            found, words = replace(found, reason=TIE), f"{TIE}: {words}"
        elif verdict == "too noisy":
            reason = f"too noisy to decide: {against}"
            found = Evidence(challenger, "not tried", reason, (), found.compile_seconds)
            words = f"too noisy to decide: {words}"
        self._findings.add(favourite)
        self._find(found, words)
        if verdict == "faster":
            self.plan = challenger
        self._speed = comparison.speeds[self.plan]
        if not self._queue:
            self._settle()

    def _adopt(self, choice: PlanChoice) -> None:
        """Use the remembered plan, and try what an earlier run did not: to TRAINING or SETTLED."""
        self.plan, self._choice = choice.plan, replace(choice, why=f"measured before: {choice.why}")
        self._speed, self._is_unchecked = Speed(), bool(self._candidates)
        self._queue_unknown()

    def _check_speed(self) -> None:
        """Void the evidence if the plan in use is far slower or faster than it was."""
        turns = self._speed.rates
        if not self._is_unchecked or len(turns) < _TURNS_TO_CHECK:
            return
        self._is_unchecked = False
        known, rate = self._findings.get(self.plan), median(turns)
        if known is not None and known.rates and is_far(rate, known.rate):
            words = f"{rate_in_words(turns)} steps/s, {rate_in_words([known.rate])} were remembered"
            self._log.note(f"{self.plan.in_words}: {words}; the other plans are due again")
            self._start_over()

    def _start_over(self) -> None:
        """Compare everything once more: to TRAINING."""
        self._findings.void()
        self._is_check = True
        self._queue_unknown()

    def _drop(self, reason: str) -> None:
        """Leave the first candidate out: to TRAINING or SETTLED."""
        candidate = self._queue.popleft()
        self._work = None
        if candidate.remembered is not None:
            # What an earlier run has compiled may fail for want of memory, and work the next time.
            self._start_over()
            self._queue = deque(c for c in self._queue if c.plan != candidate.plan)
            self._find(Evidence(candidate.plan, "not tried", reason))
        else:
            self._find(Evidence(candidate.plan, "failed", reason))
        if not self._queue:
            self._settle()

    def _settle(self) -> None:
        """Announce the fastest plan: to SETTLED."""
        self._queue.clear()
        if self._candidates:  # what a record asks for and failed is tried again when it is resumed
            self._findings.mark_news()
            why = self._row().choice.why
            self._choice = PlanChoice(
                self.plan, f"{'checked again: ' if self._is_check else ''}{why}"
            )
            self._log.change(self._log.history.chosen(self._identity, self._choice))

    # -- what is worth trying ------------------------------------------------------------------

    def _queue_unknown(self) -> None:
        """Queue the plans that nothing is known of."""
        is_open = self._findings.is_open
        self._queue = deque(c for c in self._candidates if c.plan != self.plan and is_open(c.plan))

    def _find(self, found: Evidence, words: str = "") -> None:
        """Add and note what was found out."""
        self._findings.add(found)
        self._log.note(f"{found.plan.in_words}: {words or found.reason}")

    def _row(self) -> CacheRow:
        is_settled = self.state is TunerState.SETTLED
        why_not = "not worth it in a run this short" if is_settled else "the run ended before"
        return self._findings.row(self.plan, self._speed, why_not)
