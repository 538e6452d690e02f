"""Tuner: finds the fastest plan during training; steps of a comparison train, too.

It starts with a plan that is never slow. At a stop it has a candidate prepared (traced at once,
compiled in the background), then lets candidate and favourite take turns, and keeps the faster one.
It stops when a comparison costs more than it can save. A plan that an earlier run has chosen needs
none: it is compiled before the first step if that ends sooner, else in the background. What was
not tried then is tried now, and everything once more if the speed is far from the remembered one.
"""

import contextlib
import math
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from enum import Enum, auto
from statistics import median
from typing import Protocol, final

from loopwright.errors import first_line
from loopwright.loop.clock import Stopwatch
from loopwright.plans.comparison import Comparison, Speed, rate_in_words
from loopwright.plans.evidence import (
    BESIDE_TRAINING,
    TIE,
    Evidence,
    Findings,
    Row,
    is_far,
    is_worth,
    pays_at_once,
)
from loopwright.plans.plan import Plan
from loopwright.plans.plan_history import Choice

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
class Budget:
    """How much one call of `fit` will train, as far as that is known."""

    steps: int | None = None
    seconds: float | None = None

    @property
    def is_known(self) -> bool:
        """Whether the end is known."""
        return bool(self.steps or self.seconds)

    def steps_at(self, rate: float, compile_seconds: float) -> int | None:
        """Return how many steps fit in at this rate after a compile; None if the end is unknown."""
        if self.seconds is None:
            return self.steps
        fitting = math.ceil(max(0.0, self.seconds - compile_seconds) * rate)
        return fitting if self.steps is None else min(self.steps, fitting)


@dataclass(frozen=True)
class Candidate:
    """A plan that may be faster."""

    plan: Plan
    saving: float
    """The part of the run's time that it is expected to save."""


@final
class State(Enum):
    """What the tuner is doing."""

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
    """One call of `fit`: its budget and what it has used of it."""

    compiler: Compiler
    watch: Stopwatch
    began: float
    budget: Budget
    done: int = 0
    trained_seconds: float = 0.0

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
        note: Callable[[str], None] = lambda text: None,
        *,
        remembered: Choice | None = None,
        row: Row | None = None,
    ) -> None:
        """Begin with `plan`; a remembered choice without a row is a record that is followed."""
        self.plan, self.remembered = plan, remembered
        self.choice: Choice | None = None
        """What to announce: set when nothing is left to try, or a remembered plan is in use."""
        self._candidates = (*candidates, Candidate(plan, _SAVING_OF_FIRST_PLAN))
        self._note = note
        self._is_recorded = remembered is not None and row is None
        self._findings = Findings([plan, *(c.plan for c in candidates)], row)
        self._awaited = remembered
        """The remembered choice, until its plan is in use."""
        self._is_unchecked = row is not None and remembered is None
        """Whether the plan in use was measured by an earlier run, at a speed to be checked."""
        self._is_check = False
        self._speed = Speed()
        self._seconds_before = 0.0
        self._leg: _Leg | None = None
        self._work: _Compile | Comparison | None = None
        """What is done about the first candidate in the queue."""
        self._queue = deque[Candidate]()
        if remembered is None:
            self._queue_unknown()
        elif remembered.plan == plan:
            self._adopt(remembered)
        else:
            savings = {candidate.plan: candidate.saving for candidate in candidates}
            self._queue.append(Candidate(remembered.plan, savings.get(remembered.plan, 0.5)))

    @property
    def state(self) -> State:
        """What it is doing."""
        match self._work:
            case _Compile():
                return State.COMPILING
            case Comparison():
                return State.COMPARING
            case None:
                return State.TRAINING if self._queue else State.SETTLED

    # -- calls of fit --------------------------------------------------------------------------

    def begin(self, compiler: Compiler, watch: Stopwatch, budget: Budget) -> None:
        """Start measuring in a call of `fit`."""
        self._leg = _Leg(compiler, watch, watch.clock(), budget)

    def is_comparing(self, plan: Plan) -> bool:
        """Return whether a plan is being compared with the fastest so far."""
        return isinstance(self._work, Comparison) and plan == self._work.challenger

    def next(self, steps: int) -> tuple[Plan, int]:
        """Return the plan to run next, and how many of the next `steps` to run by it."""
        if self._leg is not None and isinstance(self._work, _Compile):
            self._check_compile(self._leg, self._work)
        elif self._leg is not None and self.state is State.TRAINING:
            self._consider(self._leg, self._queue[0])
        return self._work.next(steps) if isinstance(self._work, Comparison) else (self.plan, steps)

    def ran(self, timing: Timing) -> None:
        """Add the time of a call."""
        leg, steps, seconds, work = self._leg, timing.steps, timing.seconds, self._work
        if leg is None:
            return
        leg.done += steps
        leg.trained_seconds += seconds - timing.compile_seconds
        if timing.compile_seconds:
            self._findings.add_first_call(timing.compile_seconds)
        elif isinstance(work, Comparison) and steps:
            lost_seconds = work.ran(timing.plan, steps, seconds)
            leg.watch.add("tuning", lost_seconds)
            leg.watch.add("step", -lost_seconds)
            if work.is_over:
                self._decide(work)
        elif not isinstance(work, _Compile):  # beside a compile everything is slower
            self._speed.add(steps, seconds)
            self._check_speed()

    def end(self) -> None:
        """End a call of `fit`; the next one continues from here."""
        if self._leg is not None:
            self._seconds_before += self._leg.trained_seconds
            self._leg = None
        if self._findings.has_tried and self.state is State.TRAINING:
            self._settle()

    def take_choice(self) -> Choice | None:
        """Return the choice once; None before it is made and afterwards."""
        choice, self.choice = self.choice, None
        return choice

    def take_row(self) -> Row | None:
        """Return what to remember; None if nothing was found out since the last call."""
        return self._row() if self._findings.take_news() and not self._is_recorded else None

    # -- transitions ---------------------------------------------------------------------------

    def _consider(self, leg: _Leg, candidate: Candidate) -> None:
        """Compile a candidate if that is worth it: TRAINING to COMPILING, or to SETTLED."""
        if self._awaited is not None and self._pays_at_once(leg, candidate.plan):
            self._start_compile(leg, candidate)
            if isinstance(self._work, _Compile):
                with leg.watch.timing("compile"), contextlib.suppress(TimeoutError):
                    self._work.result.exception(_MOST_COMPILE_SECONDS)
                self._check_compile(leg, self._work, is_alone=True)
        elif self._is_unchecked:
            return  # the evidence may be void
        elif self._speed.is_known and self._is_worth_trying(leg, candidate):
            self._start_compile(leg, candidate)
        elif self._speed.is_known and self._findings.has_tried and leg.budget.is_known:
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
        plan = self._queue[0].plan
        try:
            compiling.result.result()
        except Exception as error:
            self._drop(f"could not be compiled ({first_line(error)})")
            return
        seconds = compiling.trace_seconds + seconds / (1 if is_alone else BESIDE_TRAINING)
        self._findings.add_compile(plan, seconds)
        if self._awaited is not None:
            self._adopt(self._awaited)
        else:
            self._work = Comparison(plan, self.plan, self._speed)

    def _decide(self, comparison: Comparison) -> None:
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

    def _adopt(self, choice: Choice) -> None:
        """Use the remembered plan, and try what an earlier run did not: to TRAINING or SETTLED."""
        self.plan, self.choice, self._awaited = choice.plan, choice, None
        self._speed, self._is_unchecked = Speed(), not self._is_recorded
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
            self._note(f"{self.plan.in_words}: {words}; the other plans are due again")
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
        if self._awaited is not None:
            # What an earlier run has compiled may fail for want of memory, and work the next time.
            self._awaited = None
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
        if not self._is_recorded:  # what failed once is tried again when the run is resumed
            self._findings.mark_news()
            why = self._row().choice.why
            self.choice = Choice(self.plan, f"{'checked again: ' if self._is_check else ''}{why}")

    # -- what is worth trying ------------------------------------------------------------------

    def _queue_unknown(self) -> None:
        """Queue the plans that nothing is known of; a record is followed without any."""
        others = () if self._is_recorded else self._candidates
        is_open = self._findings.is_open
        self._queue = deque(c for c in others if c.plan != self.plan and is_open(c.plan))

    def _pays_at_once(self, leg: _Leg, plan: Plan) -> bool:
        first, known = self._findings.get(self._findings.first_plan), self._findings.get(plan)
        if leg.done or first is None or known is None or not (first.rates and known.rates):
            return False
        if self._findings.first_call_seconds:
            first = replace(first, compile_seconds=0.0)
        steps = leg.budget.steps_at(known.rate, known.compile_seconds)
        return leg.compiler.can_prepare() and pays_at_once(first, known, steps)

    def _is_worth_trying(self, leg: _Leg, candidate: Candidate) -> bool:
        has_won = self.plan != self._findings.first_plan and not self._is_check
        saving = candidate.saving * (_SAVING_AFTER_A_WIN if has_won else 1)
        left = max(leg.seconds_left(self._speed.seconds_per_step), self._seconds_before)
        return is_worth(left, saving, self._findings.seconds_to_try(candidate.plan))

    def _find(self, found: Evidence, words: str = "") -> None:
        """Add and note what was found out."""
        self._findings.add(found)
        self._note(f"{found.plan.in_words}: {words or found.reason}")

    def _row(self) -> Row:
        is_settled = self.state is State.SETTLED
        why_not = "not worth it in a run this short" if is_settled else "the run ended before"
        return self._findings.row(self.plan, self._speed, why_not)
