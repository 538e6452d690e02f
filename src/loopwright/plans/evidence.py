"""What is known of the plans for one kind of step: measured, failed or not tried.

A row of the cache holds the chosen plan with the evidence for it. Only what was compared to its end
counts as measured.
"""

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, final

from loopwright.plans import cache
from loopwright.plans.comparison import Speed, rate_in_words
from loopwright.plans.plan import Plan
from loopwright.plans.record import PlanChoice

_MOST_SECONDS = 14 * 86_400.0
_FAR = 1.5
TIE = "no difference beyond the noise"
BESIDE_TRAINING = 1.5
"""How much longer a compile takes while training continues, on two cores."""
_TRAINING_BESIDE = 0.6  # of its speed
_COST_OF_COMPILE = BESIDE_TRAINING * (1 - _TRAINING_BESIDE)
_SECONDS_OF_COMPARISON = 0.5
_SURELY = 2.0
"""A plan is tried if it can be expected to save so many times its cost."""
_LATEST_START = 1.5  # times the first call of the first plan


@final
@dataclass(frozen=True)
class Evidence:
    """What is known of a plan."""

    plan: Plan
    state: Literal["measured", "failed", "not tried"]
    reason: str = ""
    """Why it failed or was not tried."""
    rates: tuple[float, ...] = ()
    """The steps per second of each turn of its comparison."""
    compile_seconds: float = 0.0
    """How long it takes to compile while nothing else runs."""

    def __post_init__(self) -> None:
        is_whole = bool(self.rates) or self.state != "measured"
        is_positive = self.compile_seconds >= 0 and all(0 < rate < math.inf for rate in self.rates)
        if not (is_whole and is_positive):
            raise ValueError(f"invalid evidence: {self}")

    @property
    def rate(self) -> float:
        """The steps per second of the usual turn; 0 if it was not measured."""
        return statistics.median(self.rates) if self.rates else 0.0

    @property
    def in_words(self) -> str:
        """Rate and spread, or why there is none: `36.8 (35-37) steps/s`."""
        if self.state != "measured":
            return f"{self.state}, {self.reason}"
        reason = f", {self.reason}" if self.reason else ""
        return f"{rate_in_words(self.rates)} steps/s{reason}"


@final
@dataclass(frozen=True)
class CacheRow:
    """A remembered choice for one kind of step, and its evidence."""

    __pydantic_config__: ClassVar[Any] = cache.STRICT
    choice: PlanChoice
    evidence: tuple[Evidence, ...]
    """Of every plan that comes into question, the one that training starts with first."""
    date: float
    """When the oldest part of the evidence was measured, in seconds since 1970."""

    @property
    def is_complete(self) -> bool:
        """Whether every plan was compared to its end, or cannot be compiled."""
        return all(known.state != "not tried" for known in self.evidence)

    def is_valid(self, now: float) -> bool:
        """Return whether it is recent: the machine and its load may have changed.

        >>> row = CacheRow(PlanChoice(Plan(), ""), (), date=0.0)
        >>> [row.is_valid(days * 86_400.0) for days in (13, 15, -2)]
        [True, False, False]
        """
        return -86_400 <= now - self.date < _MOST_SECONDS


def is_far(rate: float, remembered: float) -> bool:
    """Return whether a rate is so far from the remembered one that the evidence is void.

    >>> is_far(15.8, remembered=36.8), is_far(33.0, remembered=36.8)
    (True, False)
    """
    return not 1 / _FAR < rate / remembered < _FAR


@final
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


@final
class Findings:
    """What is known of the plans for one kind of step, while a run finds out more."""

    def __init__(self, plans: Sequence[Plan], row: CacheRow | None) -> None:
        """Of these plans; training starts with the first."""
        self._plans = tuple(dict.fromkeys(plans))
        self._known = {} if row is None else {known.plan: known for known in row.evidence}
        self._date = time.time() if row is None else row.date
        self.first_plan = self._plans[0]
        self.first_call_seconds = 0.0
        """How long the first plan took to compile in this run; 0: not yet known."""
        self.has_tried = self._has_news = False

    def get(self, plan: Plan) -> Evidence | None:
        """Return what is known of a plan, if anything."""
        return self._known.get(plan)

    def add(self, found: Evidence) -> None:
        """Add what was found out."""
        self._known[found.plan] = found
        self.has_tried = self._has_news = True

    def mark_news(self) -> None:
        """Have the row written again: its reasons have changed."""
        self._has_news = True

    def take_news(self) -> bool:
        """Return whether something was found out since the last call."""
        has_news, self._has_news = self._has_news, False
        return has_news

    def void(self) -> None:
        """Forget everything: the machine or its load has changed."""
        self._known, self._date = {}, time.time()

    def add_first_call(self, seconds: float) -> None:
        """Add how long the first call of a function took."""
        self.first_call_seconds = max(self.first_call_seconds, seconds)

    def add_compile(self, plan: Plan, seconds: float) -> None:
        """Add how long a plan took to compile: it decides how the next run begins."""
        known = self._known.get(plan, Evidence(plan, "not tried", "the run ended before"))
        if is_far(seconds + 0.1, known.compile_seconds + 0.1):
            self._known[plan] = replace(known, compile_seconds=seconds)
            self._has_news = True

    def measured(self, plan: Plan, speed: Speed) -> Evidence:
        """Return the evidence of a plan that has run at this speed."""
        seconds = self.first_call_seconds if plan == self.first_plan else 0.0
        if not seconds and plan in self._known:
            seconds = self._known[plan].compile_seconds
        rates = speed.rates or (1 / max(speed.estimate, 1e-9),)
        return Evidence(plan, "measured", "", rates, seconds)

    def is_open(self, plan: Plan) -> bool:
        """Return whether a plan is still to be tried."""
        known = self._known.get(plan)
        return known is None or known.state == "not tried"

    def is_worth_trying(self, plan: Plan, left_seconds: float, saving: float) -> bool:
        """Return whether what a plan may save, a part of the time left, pays for trying it."""
        return left_seconds * saving > _SURELY * self._seconds_to_try(plan)

    def _seconds_to_try(self, plan: Plan) -> float:
        """Return about how long compiling and comparing a plan will hold training up."""
        known = self._known.get(plan)
        others = [other for other in self._known.values() if other.plan != self.first_plan]
        seconds = max((other.compile_seconds for other in others), default=0.0)
        if known is not None and known.compile_seconds:
            seconds = known.compile_seconds
        if seconds:
            return _COST_OF_COMPILE * seconds + _SECONDS_OF_COMPARISON
        return self.first_call_seconds + 0.5  # roughly, measured with five models

    def pays_at_once(self, plan: Plan, budget: Budget) -> bool:
        """Return whether to begin by compiling a plan, of what is known of it."""
        first, known = self._known.get(self.first_plan), self._known.get(plan)
        if first is None or known is None or not (first.rates and known.rates):
            return False
        if self.first_call_seconds:
            first = replace(first, compile_seconds=0.0)
        return pays_at_once(first, known, budget.steps_at(known.rate, known.compile_seconds))

    def row(self, in_use: Plan, speed: Speed, why_not: str) -> CacheRow:
        """Return what to remember; `why_not`: the others were not tried."""

        def evidence_of(plan: Plan) -> Evidence:
            known = self._known.get(plan)
            if known is not None and known.state != "not tried":
                return known
            if plan == in_use and speed.turns:
                return self.measured(plan, speed)
            return known or Evidence(plan, "not tried", why_not)

        evidence = tuple(map(evidence_of, self._plans))
        return CacheRow(PlanChoice(in_use, reason_for(in_use, evidence)), evidence, self._date)


def reason_for(plan: Plan, evidence: Sequence[Evidence]) -> str:
    """Return in words why a plan was chosen; training started with the first in `evidence`.

    >>> graph, fused = Plan(), Plan("xla", "fused")
    >>> rates = Evidence(graph, "measured", "", (20.0,)), Evidence(fused, "measured", "", (50.0,))
    >>> reason_for(fused, rates)
    '50 steps/s, 2.5x the speed of the first plan'
    """
    first, *others = evidence
    chosen = next(known for known in evidence if known.plan == plan)
    if chosen is not first:
        is_faster = first.rates and chosen.rate > first.rate
        times = (
            f", {chosen.rate / first.rate:.1f}x the speed of the first plan" if is_faster else ""
        )
        return f"{chosen.in_words}{times}"
    for other in others:
        if other.reason == TIE and first.rates:
            spreads = (rate_in_words(known.rates) for known in (other, first))
            return f"{TIE}: {' against '.join(spreads)} steps/s"
    left = [other.plan.in_words for other in others if other.state == "not tried"]
    words = f" so far, not tried: {'; '.join(left)}" if left else ""
    return f"nothing faster was found{words}"


def pays_at_once(start: Evidence, known: Evidence, steps: int | None) -> bool:
    """Return whether to begin by compiling a plan that an earlier run has found to be faster.

    Compiled at once, it runs every step, and nothing runs meanwhile. In the background, training
    continues with its first plan, and both are slower. A short run ends before either pays.

    >>> start = Evidence(Plan(), "measured", "", (16.0,), compile_seconds=1.5)
    >>> known = Evidence(Plan("xla", "fused"), "measured", "", (37.0,), compile_seconds=5.5)
    >>> [pays_at_once(start, known, steps) for steps in (2_000, 20)]
    [True, False]
    """
    if steps is None:
        # Without a known end, training must not begin much later than it would by the first plan.
        return known.compile_seconds <= _LATEST_START * start.compile_seconds
    compiling = BESIDE_TRAINING * known.compile_seconds
    slow_rate = _TRAINING_BESIDE * start.rate
    done_beside = min(steps, slow_rate * compiling)
    at_once = known.compile_seconds + steps / known.rate
    beside = done_beside / slow_rate + (steps - done_beside) / known.rate
    return at_once < start.compile_seconds + min(beside, steps / start.rate)
