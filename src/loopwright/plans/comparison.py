"""A comparison: two plans take turns over real steps, and the spread of the turns decides.

A turn takes about a tenth of a second, and its rate is kept. A plan is faster if most of its turns
are faster than the best turn of the other one. While the turns of the two overlap there are more of
them, up to a limit; after that the favourite stays, since a change of plan changes bits.
"""

import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, final

from loopwright.plans.plan import Plan

TURN_SECONDS = 0.1
_FIRST_TURNS, _MORE_TURNS, _MOST_TURNS = 3, 2, 15
_MOST_CALLS_TO_WARM_UP = 12
_FAR_SLOWER, _FAR_FASTER = 3.0, 1.5
_HOPELESS = 20.0
_MOST_GROWTH = 16
_MUST_BE_FASTER = 0.97  # of the favourite's time; a change of plan changes bits

Verdict = Literal["faster", "slower", "no difference", "too noisy"]


@final
@dataclass
class Speed:
    """The speed of a plan: the seconds per step of its last turns.

    >>> speed = Speed()
    >>> [speed.add(steps=10, seconds=0.06) for _ in range(2)], speed.seconds_per_step
    ([False, True], 0.006)
    """

    estimate: float = float("inf")
    """Seconds per step, from before these turns."""
    turns: deque[float] = field(default_factory=lambda: deque[float](maxlen=_MOST_TURNS))
    steps: int = 0
    seconds: float = 0.0

    @property
    def seconds_per_step(self) -> float:
        """Of the best turn: other work on the machine only makes turns slower."""
        return min([self.estimate, *self.turns])

    @property
    def is_known(self) -> bool:
        """Whether a turn has ended, or the speed was known before."""
        return self.seconds_per_step < float("inf")

    @property
    def rates(self) -> tuple[float, ...]:
        """The steps per second of each turn."""
        return tuple(1 / max(seconds, 1e-9) for seconds in self.turns)

    def add(self, steps: int, seconds: float) -> bool:
        """Add a call to the turn; return whether that ends it."""
        self.steps, self.seconds = self.steps + steps, self.seconds + seconds
        if not self.steps or self.seconds < TURN_SECONDS:
            return False
        self.turns.append(self.seconds / self.steps)
        self.steps, self.seconds = 0, 0.0
        return True

    def lower_estimate(self, seconds_per_step: float) -> float:
        """Return the estimate, lowered to this time if it was longer."""
        self.estimate = min(self.estimate, seconds_per_step)
        return self.estimate

    def steps_to_end_of_turn(self) -> int:
        """Return about how many steps are left in this turn."""
        this_turn = self.seconds / self.steps if self.steps else float("inf")
        seconds_per_step = max(min(self.seconds_per_step, this_turn), 1e-9)
        return int((TURN_SECONDS - self.seconds) / seconds_per_step) + 1


def verdict_of(challenger: Sequence[float], favourite: Sequence[float]) -> Verdict:
    """Compare the rates of turns that were taken in the same seconds.

    >>> verdict_of([35, 36, 37], favourite=[16, 15, 14])
    'faster'
    >>> verdict_of([35, 36.8, 37], favourite=[33, 36.1, 38])
    'no difference'
    >>> verdict_of([4, 7, 8], favourite=[2, 9.5, 14])
    'too noisy'
    """
    if _beats(challenger, favourite, _MUST_BE_FASTER):
        return "faster"
    if _beats(favourite, challenger):
        return "slower"
    spread = max(max(rates) / sorted(rates)[len(rates) // 4] for rates in (challenger, favourite))
    return "too noisy" if spread > _FAR_FASTER else "no difference"


def _beats(one: Sequence[float], other: Sequence[float], factor: float = 1.0) -> bool:
    """Return whether three quarters of the turns are faster than the best turn of the other plan.

    Where the usual turns are far apart half of them do, so that other work on the machine cannot
    hide it. Of few turns all must be.
    """
    is_far_faster = statistics.median(one) > _FAR_FASTER * statistics.median(other)
    few = len(one) <= _FIRST_TURNS
    passed_over = len(one) // 2 if is_far_faster and not few else len(one) // 4
    return sorted(one)[passed_over] * factor > max(other)


def rate_in_words(rates: Sequence[float]) -> str:
    """Return the usual rate, and the spread where there is one.

    >>> rate_in_words((35.0, 36.8, 37.2)), rate_in_words((5000.0, 5000.0))
    ('36.8 (35-37.2)', '5,000')
    """
    usual, *spread = (
        f"{rate:,.0f}" if rate >= 1000 else f"{rate:.3g}"
        for rate in (statistics.median(rates), min(rates), max(rates))
    )
    return usual if len({*spread}) == 1 else f"{usual} ({'-'.join(spread)})"


@final
class PlanComparison:
    """A comparison of a challenger with the favourite, whose speed is known."""

    def __init__(self, challenger: Plan, favourite: Plan, speed: Speed) -> None:
        self.challenger, self._favourite = challenger, favourite
        self.speeds = {challenger: Speed(), favourite: Speed(speed.seconds_per_step)}
        self._turns = deque([challenger, favourite] * _FIRST_TURNS)
        self._calls_of_challenger = self._slow_calls = 0
        self._is_warm = False
        self._steps_of_last_call = 1
        self._is_given_up = False

    @property
    def is_over(self) -> bool:
        """Whether the turns have decided, or the challenger is far slower."""
        return not self._turns

    @property
    def verdict(self) -> Verdict:
        """How the challenger compares with the favourite, by the turns so far."""
        if self._is_given_up:
            return "slower"
        speeds = self.speeds
        return verdict_of(speeds[self.challenger].rates, speeds[self._favourite].rates)

    def next(self, steps: int) -> tuple[Plan, int]:
        """Return the plan to run next, and for how many of the next `steps`."""
        plan = self._turns[0]
        if plan == self.challenger and not self._calls_of_challenger:
            return plan, 1  # it may be very slow
        fitting = self.speeds[plan].steps_to_end_of_turn()
        return plan, max(1, min(steps, fitting, _MOST_GROWTH * self._steps_of_last_call))

    def ran(self, plan: Plan, steps: int, seconds: float) -> float:
        """Add the time of a call; return how many seconds the favourite would have saved."""
        self._steps_of_last_call = steps
        speed, favourite = self.speeds[plan], self.speeds[self._favourite].seconds_per_step
        if plan != self.challenger:
            self._add(speed, steps, seconds)
            return 0.0
        self._calls_of_challenger += 1
        self._is_warm = self._is_warm or not self._warms_up(speed, steps, seconds)
        if self._is_far_slower(steps, seconds):
            speed.turns.append(seconds / steps)
            self._is_given_up = True
            self._turns.clear()
        elif self._is_warm:
            self._add(speed, steps, seconds)
        return max(0.0, seconds - steps * favourite)

    def _warms_up(self, speed: Speed, steps: int, seconds: float) -> bool:
        """Return whether calls still get faster by far: the first ones, and those of few steps."""
        before = speed.estimate
        is_faster = _FAR_FASTER * speed.lower_estimate(seconds / steps) < before
        return is_faster and self._calls_of_challenger < _MOST_CALLS_TO_WARM_UP

    def _add(self, speed: Speed, steps: int, seconds: float) -> None:
        if not speed.add(steps, seconds):
            return
        self._turns.popleft()
        is_open = not self._turns and self.verdict in ("no difference", "too noisy")
        if is_open and len(speed.turns) + _MORE_TURNS <= _MOST_TURNS:
            self._turns.extend([self.challenger, self._favourite] * _MORE_TURNS)

    def _is_far_slower(self, steps: int, seconds: float) -> bool:
        """Judge a call by the favourite's slowest turn: what slows both down is not the plan.

        One call may have met other work on the machine. Only if it was hopeless there is no second.
        """
        favourite = self.speeds[self._favourite]
        slowdown = seconds / steps / max([*favourite.turns] or [favourite.estimate])
        if not self._is_warm:
            return seconds > 0.5 and slowdown > _HOPELESS
        self._slow_calls += seconds > TURN_SECONDS / 2 and slowdown > _FAR_SLOWER
        return self._slow_calls > 1
