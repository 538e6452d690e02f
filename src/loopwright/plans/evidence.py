"""What is known of the plans for one kind of step: measured, failed or not tried.

A row of the cache holds the chosen plan with the evidence for it. Only what was compared to its end
counts as measured. The record of a run comes first: a resumed run never asks the cache.
"""

import math
import statistics
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final

from loopwright.plans import cache
from loopwright.plans.comparison import rate_in_words
from loopwright.plans.plan import Plan
from loopwright.plans.plan_history import Choice, PlanHistory

_MOST_SECONDS = 14 * 86_400.0
_FAR = 1.5
TIE = "no difference beyond the noise"


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
class Row:
    """A remembered choice for one kind of step, and its evidence."""

    __pydantic_config__: ClassVar[Any] = cache.STRICT
    choice: Choice
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

        >>> row = Row(Choice(Plan(), ""), (), date=0.0)
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
