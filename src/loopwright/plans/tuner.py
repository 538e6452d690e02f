"""Tuner: finds the fastest plan during training. Every step of a trial is a training step.

It starts with a plan that is never slow. At a stop it has a candidate prepared (traced at once,
compiled in the background), then lets candidate and favourite take turns, and keeps the faster one.
It stops when a trial costs more than it can save. A plan that an earlier run has chosen needs no
trial: it is compiled before the first step if that ends sooner, else in the background. What was
not tried then is tried now, and everything once more if the speed is far from the remembered one.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol, final

from loopwright.errors import first_line
from loopwright.loop.clock import Stopwatch
from loopwright.plans import worth
from loopwright.plans.memory import TIE, Check, Entry, Tried, is_far, rate_in_words, reason_for
from loopwright.plans.plan import Plan
from loopwright.plans.plan_history import Choice
from loopwright.plans.trial import Speed, Trial
from loopwright.plans.worth import Budget, Pace

_MOST_COMPILE_SECONDS = 120.0
_TURNS_TO_COMPARE = 5
# Of eight workloads, none whose loop inside XLA won had a second candidate that was faster still.
_SAVING_AFTER_A_WIN = 0.2
_SAVING_OF_FIRST_PLAN = 0.1


class Preparation(Protocol):
    """A plan that is being compiled."""

    def is_over(self) -> bool:
        """Return whether it has been compiled or has failed."""
        ...

    def wait(self, seconds: float) -> None:
        """Wait until it is over, and at most that long."""
        ...

    def failure(self) -> str | None:
        """Return why it failed; None if it did not."""
        ...


class Compiler(Protocol):
    """Compiles plans while training continues."""

    def can_prepare(self) -> bool:
        """Return whether enough is known of the batches to compile a plan."""
        ...

    def prepare(self, plan: Plan) -> Preparation:
        """Trace a plan at once, and compile it in the background."""
        ...


@dataclass(frozen=True)
class Candidate:
    """A plan that may be faster."""

    plan: Plan
    saving: float
    """The part of the run's time that it is expected to save."""


@final
@dataclass(frozen=True)
class Remembered:
    """What earlier runs found out; without `entry`, a record that is followed and not checked."""

    choice: Choice | None
    """The plan to switch to; None: of what was tried, nothing was faster than the first plan."""
    entry: Entry | None = None
    check: Check = "not due"


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
    trace_seconds: float


@final
@dataclass
class Tuner:
    """Chooses the plan of the next steps from how long the previous ones took."""

    plan: Plan
    """The fastest plan so far."""
    candidates: deque[Candidate]
    note: Callable[[str], None] = lambda text: None
    remembered: Remembered | None = None
    choice: Choice | None = None
    """Set when no candidate is left; None if none was tried, or after `take_choice`."""
    _first_plan: Plan = field(init=False)
    _rivals: tuple[Candidate, ...] = field(init=False)
    _awaited: Candidate | None = None
    """The remembered plan, until it is in use."""
    _check: Check = "not due"
    _to_check: set[Plan] = field(default_factory=set[Plan])
    """Plans that were measured before, and have to be measured again."""
    _tried: dict[Plan, Tried] = field(default_factory=dict[Plan, Tried])
    _has_news: bool = False
    _remembered_rate: float | None = None
    """Of the plan in use; None once it was compared."""
    _has_won: bool = False
    _leg: _Leg | None = None
    _speed: Speed = field(default_factory=Speed)
    _first_call_seconds: float = 0.0
    _seconds_before: float = 0.0
    _compile: _Compile | None = None
    _compile_seconds: dict[Plan, float] = field(default_factory=dict[Plan, float])
    _trial: Trial | None = None
    _has_tried: bool = False

    def __post_init__(self) -> None:
        self._first_plan = self.plan
        first = Candidate(self.plan, _SAVING_OF_FIRST_PLAN)
        self._rivals = (*self.candidates, first)
        if self.remembered is None:
            return
        entry, choice = self.remembered.entry, self.remembered.choice
        if entry is not None:
            self._check = self.remembered.check
            self._tried = {one.plan: one for one in entry.tried}
        self.candidates.clear()
        if choice is None:
            self._remembered_rate = self._known_rate(self.plan) or None
            self._queue()
        elif choice.plan == self.plan:
            self._adopt(choice)
        else:
            savings = {candidate.plan: candidate.saving for candidate in self._rivals}
            self._awaited = Candidate(choice.plan, savings.get(choice.plan, 0.5))

    def begin(self, compiler: Compiler, watch: Stopwatch, budget: Budget) -> None:
        """Start measuring in a call of `fit`."""
        self._leg = _Leg(compiler, watch, watch.clock(), budget)

    def take_choice(self) -> Choice | None:
        """Return the choice once; None before it is made and afterwards."""
        choice, self.choice = self.choice, None
        return choice

    @property
    def is_settled(self) -> bool:
        """Whether a plan was chosen; others may be checked once more in a long run."""
        is_known = self.remembered is not None and self.remembered.choice is not None
        return not (self._is_busy or self._awaited) and (is_known or not self.candidates)

    @property
    def _is_busy(self) -> bool:
        return self._compile is not None or self._trial is not None

    def take_news(self) -> tuple[Choice, tuple[Tried, ...], bool] | None:
        """Return what was found out since the last call: plan, evidence, whether all of it is new.

        None if nothing was.
        """
        has_news, self._has_news = self._has_news, False
        entry = None if self.remembered is None else self.remembered.entry
        if not has_news or (self.remembered is not None and entry is None):
            return None
        if entry is not None and self._to_check and self.plan == entry.choice.plan:
            # Rates of another day, or beside other work, are not put between those of then.
            return entry.choice, tuple(map(self._with_compile_seconds, entry.tried)), False
        tried = tuple(map(self._evidence, self._plans))
        known = () if entry is None else entry.tried
        is_all_new = not any(one in known for one in tried if one.state != "not tried")
        return Choice(self.plan, self._why()), tried, is_all_new

    def end(self) -> None:
        """End a call of `fit`; the next one continues from here."""
        if self._leg is not None:
            self._seconds_before += self._leg.trained_seconds
            self._leg = None
        if self._has_tried and self.candidates and not self._is_busy:
            self._settle()

    def is_trying(self, plan: Plan) -> bool:
        """Return whether a plan is being compared with the fastest so far."""
        return self._trial is not None and plan == self._trial.challenger

    def plan_after(self, step: int) -> Plan:
        """Return the fastest plan so far."""
        return self.plan

    def next(self, step: int, steps: int) -> tuple[Plan, int]:
        """Return the plan after `step` steps, and how many of the next `steps` to run by it."""
        leg = self._leg
        if self._trial is None and leg is not None and (self._awaited or self.candidates):
            self._start_trial_if_worth(self._awaited or self.candidates[0], leg)
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
            self._compare_with_remembered()

    # -- what is remembered --------------------------------------------------------------------

    def _adopt(self, choice: Choice) -> None:
        """Use the remembered plan, and queue what has to be compared with it."""
        self.plan, self.choice, self._awaited = choice.plan, choice, None
        self._speed = Speed()
        self._remembered_rate = self._known_rate(self.plan) or None
        self._has_won = choice.plan != self._first_plan and self._check != "due"
        self._queue()

    def _queue(self) -> None:
        """Queue the plans that were not tried, or all others if they have to be checked."""
        entry = None if self.remembered is None else self.remembered.entry
        if entry is None:
            return
        old = {one.plan for one in entry.tried if one == self._tried.get(one.plan)}
        again = old if self._check != "not due" else set[Plan]()
        rivals = [rival for rival in self._rivals if rival.plan != self.plan]
        rivals = [r for r in rivals if r.plan in again or not self._is_known(r.plan)]
        self.candidates = deque(sorted(rivals, key=lambda rival: -self._known_rate(rival.plan)))
        self._to_check = {rival.plan for rival in rivals if self._is_known(rival.plan)}

    def _compare_with_remembered(self) -> None:
        """Try every plan again if this one is far slower or faster than it was."""
        rate, turns = self._remembered_rate, self._speed.rates
        if rate is None or len(turns) < _TURNS_TO_COMPARE:
            return
        self._remembered_rate = None
        if is_far(Tried(self.plan, "measured", rates=turns).rate, rate):
            words = f"{rate_in_words(turns)} steps/s, {rate_in_words((rate,))} were remembered"
            self.note(f"{self.plan.in_words}: {words}; the other plans are due again")
            self._check, self._has_won = "due", False
            self._queue()

    def _pays_at_once(self, plan: Plan, leg: _Leg) -> bool:
        first, known = self._tried.get(self._first_plan), self._tried.get(plan)
        if leg.done or first is None or known is None or not (first.rates and known.rates):
            return False
        if not leg.compiler.can_prepare():
            return False
        compiled = 0.0 if self._first_call_seconds else first.compile_seconds
        paces = Pace(first.rate, compiled), Pace(known.rate, known.compile_seconds)
        return worth.pays_at_once(*paces, leg.budget)

    def _is_known(self, plan: Plan) -> bool:
        return plan in self._tried and self._tried[plan].state != "not tried"

    def _known_rate(self, plan: Plan) -> float:
        return self._tried[plan].rate if plan in self._tried and self._tried[plan].rates else 0.0

    # -- between trials ------------------------------------------------------------------------

    def _start_trial_if_worth(self, candidate: Candidate, leg: _Leg) -> None:
        is_awaited = candidate is self._awaited
        if self._compile is not None:
            self._check_compile(self._compile, leg)
        elif is_awaited and self._pays_at_once(candidate.plan, leg):
            compiling = self._start_compile(candidate, leg)
            if compiling is not None:
                with leg.watch.timing("compile"):
                    compiling.preparation.wait(_MOST_COMPILE_SECONDS)
                self._check_compile(compiling, leg, is_alone=True)
        elif self._speed.seconds_per_step < float("inf"):
            if self._is_worth_trying(candidate, leg):
                self._start_compile(candidate, leg)
            elif self._has_tried and (leg.budget.steps or leg.budget.seconds):
                self._settle()  # the remaining time only decreases

    def _is_worth_trying(self, candidate: Candidate, leg: _Leg) -> bool:
        known, left = self._tried.get(candidate.plan), self._expected_seconds(leg)
        seconds = self._compile_seconds.values()
        cost = self._first_call_seconds + 0.5  # roughly, measured with five models
        if known is not None and known.compile_seconds:
            cost = worth.trial_seconds(known.compile_seconds)
        elif seconds:
            cost = worth.trial_seconds(max(seconds))
        if self._is_known(candidate.plan) and self._check == "if the run is long":
            return left * worth.CHECK_SHARE > cost * len(self.candidates)
        saving = candidate.saving * (_SAVING_AFTER_A_WIN if self._has_won else 1)
        return worth.is_worth(left, saving, cost)

    def _expected_seconds(self, leg: _Leg) -> float:
        """Return how long training will continue: the budget, or as long as it took so far."""
        left = leg.trained_seconds
        if leg.budget.steps is not None:
            left = (leg.budget.steps - leg.done) * self._speed.seconds_per_step
        elif leg.budget.seconds is not None:
            left = leg.budget.seconds - (leg.watch.clock() - leg.began)
        return max(left, self._seconds_before)

    def _start_compile(self, candidate: Candidate, leg: _Leg) -> _Compile | None:
        began = leg.watch.clock()
        with leg.watch.timing("tuning"):
            try:
                preparation = leg.compiler.prepare(candidate.plan)
            except Exception as error:
                self._drop(candidate, f"could not be traced ({first_line(error)})")
                return None
        now = leg.watch.clock()
        self._compile = _Compile(candidate, preparation, now, now - began)
        return self._compile

    def _check_compile(self, compiling: _Compile, leg: _Leg, *, is_alone: bool = False) -> None:
        seconds, candidate = leg.watch.clock() - compiling.began, compiling.candidate
        if not compiling.preparation.is_over():
            if seconds > _MOST_COMPILE_SECONDS:
                self._compile = None
                reason = f"skipped, compiling with XLA takes more than {seconds:,.0f} s"
                # A second compile at the same time would leave no CPU for training.
                rest = [each for each in self.candidates if each is not candidate]
                self._drop(candidate, reason)
                for each in rest:
                    self._drop(each, reason, is_failure=False)
            return
        self._compile = None
        failure = compiling.preparation.failure()
        if failure is not None:
            self._drop(candidate, f"could not be compiled ({failure})")
            return
        alone = seconds if is_alone else seconds / worth.BESIDE_TRAINING
        self._compile_seconds[candidate.plan] = compiling.trace_seconds + alone
        if candidate is self._awaited and self.remembered and self.remembered.choice:
            self._note_compile_seconds(candidate.plan)
            self._adopt(self.remembered.choice)
            return
        self._trial = Trial(candidate.plan, self.plan, self._speed)

    def _note_compile_seconds(self, plan: Plan) -> None:
        """Correct what is remembered of a compile: it decides how the next run begins."""
        seconds, known = self._compile_seconds[plan], self._tried.get(plan)
        if known is not None and is_far(seconds + 0.1, known.compile_seconds + 0.1):
            self._tried[plan] = self._with_compile_seconds(known)
            self._has_news = True

    def _with_compile_seconds(self, one: Tried) -> Tried:
        return replace(
            one, compile_seconds=self._compile_seconds.get(one.plan, one.compile_seconds)
        )

    def _decide(self, trial: Trial) -> None:
        self._trial, verdict = None, trial.verdict
        self.candidates.popleft()
        self._to_check -= set() if verdict == "too noisy" else {trial.challenger}
        favourite = self._measured(self.plan, trial.speeds[self.plan])
        reason = TIE if verdict == "no difference" else ""
        challenger = self._measured(trial.challenger, trial.speeds[trial.challenger], reason)
        self._tried |= {self.plan: favourite, trial.challenger: challenger}
        of_favourite = f"{rate_in_words(favourite.rates)} steps/s"
        against = f"{rate_in_words(challenger.rates)} steps/s against {of_favourite}"
        if verdict == "too noisy":
            reason = "too noisy to decide"
            self._tried[trial.challenger] = Tried(
                trial.challenger, "not tried", f"{reason}: {against}"
            )
        tie = f"{reason}: " if reason else ""
        self._find(f"{trial.challenger.in_words}: {tie}{against} of {self.plan.in_words}")
        if verdict == "faster":
            self.plan, self._has_won = trial.challenger, True
        self._speed = trial.speeds[self.plan]
        if not self.candidates:
            self._settle()

    def _drop(self, candidate: Candidate, reason: str, *, is_failure: bool = True) -> None:
        # What an earlier run has compiled may fail for want of memory, and work the next time.
        is_failure = is_failure and candidate is not self._awaited
        state = "failed" if is_failure else "not tried"
        self._tried[candidate.plan] = Tried(candidate.plan, state, reason)
        self._find(f"{candidate.plan.in_words}: {reason}")
        if candidate is self._awaited:
            self._awaited, self._check = None, "due"
            self._queue()
            self.candidates = deque(c for c in self.candidates if c.plan != candidate.plan)
        else:
            self.candidates.remove(candidate)
            self._to_check.discard(candidate.plan)
            if not self.candidates:
                self._settle()

    def _find(self, finding: str) -> None:
        self._has_tried = self._has_news = True
        self.note(finding)

    def _settle(self) -> None:
        self.candidates.clear()
        is_check = self.remembered is not None and self.remembered.choice is not None
        self.choice = Choice(self.plan, f"{'checked again: ' if is_check else ''}{self._why()}")
        self._has_news = True

    # -- evidence ------------------------------------------------------------------------------

    @property
    def _plans(self) -> tuple[Plan, ...]:
        """Every plan that comes into question, the one that training starts with first."""
        return tuple(dict.fromkeys([self._first_plan, *(rival.plan for rival in self._rivals)]))

    def _measured(self, plan: Plan, speed: Speed, reason: str = "") -> Tried:
        known = self._tried.get(plan)
        seconds = 0.0 if known is None else known.compile_seconds
        if plan == self._first_plan and self._first_call_seconds:
            seconds = self._first_call_seconds
        seconds = self._compile_seconds.get(plan, seconds)
        rates = speed.rates or (1 / max(speed.estimate, 1e-9),)
        return Tried(plan, "measured", reason, rates, speed.total_steps, seconds)

    def _evidence(self, plan: Plan) -> Tried:
        known = self._tried.get(plan)
        if known is not None and known.state != "not tried":
            return known
        if plan == self.plan and self._speed.turns:
            return self._measured(plan, self._speed)
        if known is not None:
            return known
        is_left = self._is_busy or self.candidates
        reason = "the run ended before" if is_left else "not worth it in a run this short"
        return Tried(plan, "not tried", reason)

    def _why(self) -> str:
        return reason_for(self.plan, [self._evidence(plan) for plan in self._plans])
