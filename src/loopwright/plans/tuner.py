"""Tuner: finds the fastest plan during training. Every step of a trial is a training step.

It starts with a plan that is never slow. At a stop it has a candidate prepared (traced at once,
compiled in the background), then lets candidate and favourite take turns for some tenths of a
second, and keeps the faster one. It stops when a trial costs more than it can save. A plan that an
earlier run has chosen is prepared in the same way, and needs no trial.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, final

from loopwright.loop.clock import Stopwatch
from loopwright.plans.plan import Plan
from loopwright.plans.plan_history import Choice

_ROUND_SECONDS = 0.1
_ROUNDS = 3
_FAR_SLOWER = 3.0
_MOST_GROWTH = 16


@final
@dataclass
class Speed:
    """The speed of a plan: the best of rounds that take a tenth of a second each.

    >>> speed = Speed()
    >>> [speed.add(steps=10, seconds=0.06) for _ in range(2)], speed.seconds_per_step
    ([False, True], 0.006)
    """

    seconds_per_step: float = float("inf")
    steps: int = 0
    seconds: float = 0.0

    def add(self, steps: int, seconds: float) -> bool:
        """Add a call to the round; return whether that ends it."""
        self.steps, self.seconds = self.steps + steps, self.seconds + seconds
        if not self.steps or self.seconds < _ROUND_SECONDS:
            return False
        self.seconds_per_step = min(self.seconds_per_step, self.seconds / self.steps)
        self.steps, self.seconds = 0, 0.0
        return True

    def steps_to_end_of_round(self) -> int:
        """Return about how many steps are left in this round."""
        this_round = self.seconds / self.steps if self.steps else float("inf")
        seconds_per_step = max(min(self.seconds_per_step, this_round), 1e-9)
        return int((_ROUND_SECONDS - self.seconds) / seconds_per_step) + 1


@final
class Trial:
    """A comparison of a challenger with the favourite, whose speed is known."""

    def __init__(self, challenger: Plan, favourite: Plan, speed: Speed) -> None:
        self.challenger, self._favourite = challenger, favourite
        self.speeds = {challenger: Speed(), favourite: Speed(speed.seconds_per_step)}
        self._turns = deque([challenger, favourite] * _ROUNDS)
        self._calls_of_challenger = 0
        self._steps_of_last_call = 1

    @property
    def is_over(self) -> bool:
        """Whether all rounds were run, or the challenger is far slower."""
        return not self._turns

    def next(self, steps: int) -> tuple[Plan, int]:
        """Return the plan to run next, and for how many of the next `steps`."""
        plan = self._turns[0]
        if plan == self.challenger and not self._calls_of_challenger:
            return plan, 1  # it may be very slow
        fitting = self.speeds[plan].steps_to_end_of_round()
        return plan, max(1, min(steps, fitting, _MOST_GROWTH * self._steps_of_last_call))

    def ran(self, plan: Plan, steps: int, seconds: float) -> float:
        """Add the time of a call; return how many seconds the favourite would have saved."""
        self._steps_of_last_call = steps
        speed, favourite = self.speeds[plan], self.speeds[self._favourite].seconds_per_step
        if speed.add(steps, seconds):
            self._turns.popleft()
        if plan != self.challenger:
            return 0.0
        self._calls_of_challenger += 1
        # The first call of a program takes longer than the others.
        is_telling = self._calls_of_challenger > 1 and seconds > _ROUND_SECONDS / 2
        if (is_telling or seconds > 0.5) and seconds / steps > _FAR_SLOWER * favourite:
            speed.seconds_per_step = min(speed.seconds_per_step, seconds / steps)
            self._turns.clear()
        return max(0.0, seconds - steps * favourite)


_MUST_BE_FASTER = 0.97  # of the favourite's time; less is noise, and a change of plan changes bits
_BACKGROUND_COST = 0.4  # of a compile's time is lost to training on two cores
_MOST_COMPILE_SECONDS = 120.0


class Preparation(Protocol):
    """A plan that is being compiled."""

    def is_over(self) -> bool:
        """Return whether it has been compiled or has failed."""
        ...

    def failure(self) -> str | None:
        """Return why it failed; None if it did not."""
        ...


class Compiler(Protocol):
    """Compiles plans while training continues."""

    def prepare(self, plan: Plan) -> Preparation:
        """Trace a plan at once, and compile it in the background."""
        ...


@dataclass(frozen=True)
class Budget:
    """How much one call of `fit` will train, as far as that is known."""

    steps: int | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Candidate:
    """A plan that may be faster."""

    plan: Plan
    saving: float
    """The part of the run's time that it is expected to save."""


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


@final
@dataclass
class _Compile:
    candidate: Candidate
    preparation: Preparation
    began: float


@final
@dataclass
class Tuner:
    """Chooses the plan of the next steps from how long the previous ones took."""

    plan: Plan
    """The fastest plan so far."""
    candidates: deque[Candidate]
    note: Callable[[str], None] = lambda text: None
    remembered: Choice | None = None
    """The choice of an earlier run: the only candidate, used without a trial."""
    choice: Choice | None = None
    """Set when no candidate is left; None if none was tried, or after `take_choice`."""
    _first_plan: Plan = field(init=False)
    _leg: _Leg | None = None
    _speed: Speed = field(default_factory=Speed)
    _first_speed: Speed | None = None
    _first_call_seconds: float = 0.0
    _seconds_before: float = 0.0
    _compile: _Compile | None = None
    _cost_seconds: float | None = None
    _trial: Trial | None = None
    _findings: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self._first_plan = self.plan

    def begin(self, compiler: Compiler, watch: Stopwatch, budget: Budget) -> None:
        """Start measuring in a call of `fit`."""
        self._leg = _Leg(compiler, watch, watch.clock(), budget)

    def take_choice(self) -> Choice | None:
        """Return the choice once; None before it is made and afterwards."""
        choice, self.choice = self.choice, None
        return choice

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left to try."""
        return not self.candidates and self._compile is None and self._trial is None

    def end(self) -> None:
        """End a call of `fit`; the next one continues from here."""
        if self._leg is not None:
            self._seconds_before += self._leg.trained_seconds
            self._leg = None
        is_busy = self._compile is not None or self._trial is not None
        if self._findings and self.candidates and not is_busy:
            self._settle()

    def is_trying(self, plan: Plan) -> bool:
        """Return whether a plan is being compared with the fastest so far."""
        return self._trial is not None and plan == self._trial.challenger

    def plan_after(self, step: int) -> Plan:
        """Return the fastest plan so far."""
        return self.plan

    def next(self, step: int, steps: int) -> tuple[Plan, int]:
        """Return the plan after `step` steps, and how many of the next `steps` to run by it."""
        if self._trial is None and self.candidates and self._leg is not None:
            self._start_trial_if_worth(self._leg)
        if self._trial is None:
            return self.plan, steps
        return self._trial.next(steps)

    def ran(self, plan: Plan, steps: int, seconds: float, compile_seconds: float) -> None:
        """Add the time of a call; `compile_seconds` of it were the first call of a function."""
        if self._leg is None:
            return
        self._leg.done += steps
        self._leg.trained_seconds += seconds - compile_seconds
        if compile_seconds:
            self._first_call_seconds = max(self._first_call_seconds, compile_seconds)
        elif self._trial is not None and steps:
            lost_seconds = self._trial.ran(plan, steps, seconds)
            self._leg.watch.add("tuning", lost_seconds)
            self._leg.watch.add("step", -lost_seconds)
            if self._trial.is_over:
                self._decide(self._trial)
        elif self._compile is None:  # during a compile everything is slower
            self._speed.add(steps, seconds)

    # -- between trials ------------------------------------------------------------------------

    def _start_trial_if_worth(self, leg: _Leg) -> None:
        if self._compile is not None:
            self._check_compile(self._compile, leg)
        elif self._speed.seconds_per_step < float("inf"):
            if self._is_worth_trying(self.candidates[0], leg):
                self._start_compile(self.candidates[0], leg)
            elif self._findings and (leg.budget.steps or leg.budget.seconds):
                self._settle()  # the remaining time only decreases

    def _is_worth_trying(self, candidate: Candidate, leg: _Leg) -> bool:
        cost = self._cost_seconds
        if cost is None:
            cost = self._first_call_seconds + 0.5  # roughly, measured with five models
        return self._expected_seconds(leg) * candidate.saving > 2 * cost

    def _expected_seconds(self, leg: _Leg) -> float:
        """Return how long training will continue: the budget, or as long as it took so far."""
        left = leg.trained_seconds
        if leg.budget.steps is not None:
            left = (leg.budget.steps - leg.done) * self._speed.seconds_per_step
        elif leg.budget.seconds is not None:
            left = leg.budget.seconds - (leg.watch.clock() - leg.began)
        return max(left, self._seconds_before)

    def _start_compile(self, candidate: Candidate, leg: _Leg) -> None:
        began = leg.watch.clock()
        with leg.watch.timing("tuning"):
            try:
                preparation = leg.compiler.prepare(candidate.plan)
            except Exception as error:
                self._drop(candidate, f"could not be traced ({first_line(error)})")
                return
        self._cost_seconds = leg.watch.clock() - began
        self._compile = _Compile(candidate, preparation, leg.watch.clock())

    def _check_compile(self, compiling: _Compile, leg: _Leg) -> None:
        seconds = leg.watch.clock() - compiling.began
        if not compiling.preparation.is_over():
            if seconds > _MOST_COMPILE_SECONDS:
                self._compile = None
                # A second compile at the same time would leave no CPU for training.
                for candidate in list(self.candidates):
                    self._drop(
                        candidate, f"skipped, compiling with XLA takes more than {seconds:,.0f} s"
                    )
            return
        self._compile = None
        failure = compiling.preparation.failure()
        if failure is not None:
            self._drop(compiling.candidate, f"could not be compiled ({failure})")
            return
        if self.remembered is not None:
            self.plan, self.choice = self.remembered.plan, self.remembered
            self.candidates.clear()
            return
        self._cost_seconds = (self._cost_seconds or 0.0) + _BACKGROUND_COST * seconds
        self._trial = Trial(compiling.candidate.plan, self.plan, self._speed)

    def _decide(self, trial: Trial) -> None:
        self._trial = None
        self.candidates.popleft()
        challenger, favourite = trial.speeds[trial.challenger], trial.speeds[self.plan]
        if self._first_speed is None:
            self._first_speed = favourite
        rates = f"{_rate(challenger)} against {_rate(favourite)} of {self.plan.in_words}"
        self._find(f"{trial.challenger.in_words}: {rates}")
        if challenger.seconds_per_step < _MUST_BE_FASTER * favourite.seconds_per_step:
            self.plan = trial.challenger
        self._speed = trial.speeds[self.plan]
        if not self.candidates:
            self._settle()

    def _drop(self, candidate: Candidate, reason: str) -> None:
        self.candidates.remove(candidate)
        self._find(f"{candidate.plan.in_words}: {reason}")
        if not self.candidates:
            self._settle()

    def _find(self, finding: str) -> None:
        self._findings.append(finding)
        self.note(finding)

    def _settle(self) -> None:
        self.candidates.clear()
        why = "nothing faster was found"
        if self._first_speed is not None and self.plan != self._first_plan:
            first, best = self._first_speed.seconds_per_step, self._speed.seconds_per_step
            why = f"{_rate(self._speed)}, {first / best:.1f}x the speed of the first plan"
        self.choice = Choice(self.plan, why)


def _rate(speed: Speed) -> str:
    rate = 1 / speed.seconds_per_step
    return f"{rate:,.0f} steps/s" if rate >= 10 else f"{rate:.2g} steps/s"


def first_line(error: Exception) -> str:
    """Return the type and the first line of an error."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
