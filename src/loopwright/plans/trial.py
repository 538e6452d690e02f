"""A trial: two plans take turns over real steps, and each is as fast as in its best round."""

from collections import deque
from dataclasses import dataclass
from typing import final

from loopwright.plans.plan import Plan

_ROUND_SECONDS = 0.1
_ROUNDS = 3
_FAR_SLOWER = 3.0
_MOST_GROWTH = 16


@final
@dataclass
class Speed:
    """How fast a plan runs: the best of rounds of a tenth of a second, over as many calls.

    >>> speed = Speed()
    >>> [speed.add(steps=10, seconds=0.06) for _ in range(2)], speed.seconds_per_step
    ([False, True], 0.006)
    """

    seconds_per_step: float = float("inf")
    steps: int = 0
    seconds: float = 0.0

    def add(self, steps: int, seconds: float) -> bool:
        """Adds a call to the round; true when that ends it."""
        self.steps, self.seconds = self.steps + steps, self.seconds + seconds
        if not self.steps or self.seconds < _ROUND_SECONDS:
            return False
        self.seconds_per_step = min(self.seconds_per_step, self.seconds / self.steps)
        self.steps, self.seconds = 0, 0.0
        return True

    def steps_to_end_of_round(self) -> int:
        """About how many steps this round still takes."""
        this_round = self.seconds / self.steps if self.steps else float("inf")
        seconds_per_step = max(min(self.seconds_per_step, this_round), 1e-9)
        return int((_ROUND_SECONDS - self.seconds) / seconds_per_step) + 1


@final
class Trial:
    """Challenger against favourite, of which the speed is known already."""

    def __init__(self, challenger: Plan, favourite: Plan, speed: Speed) -> None:
        self.challenger, self._favourite = challenger, favourite
        self.speeds = {challenger: Speed(), favourite: Speed(speed.seconds_per_step)}
        self._turns = deque([challenger, favourite] * _ROUNDS)
        self._calls_of_challenger = 0
        self._steps_of_last_call = 1

    @property
    def is_over(self) -> bool:
        """Whether all rounds were run, or the challenger has shown that it is hopeless."""
        return not self._turns

    def next(self, steps: int) -> tuple[Plan, int]:
        """Whose turn it is, and for how many of the next `steps`."""
        plan = self._turns[0]
        if plan == self.challenger and not self._calls_of_challenger:
            return plan, 1  # nobody knows yet how slow it is
        fitting = self.speeds[plan].steps_to_end_of_round()
        return plan, max(1, min(steps, fitting, _MOST_GROWTH * self._steps_of_last_call))

    def ran(self, plan: Plan, steps: int, seconds: float) -> float:
        """Learns from a call; returns how many seconds the favourite would have saved."""
        self._steps_of_last_call = steps
        speed, favourite = self.speeds[plan], self.speeds[self._favourite].seconds_per_step
        if speed.add(steps, seconds):
            self._turns.popleft()
        if plan != self.challenger:
            return 0.0
        self._calls_of_challenger += 1
        # The first call of a program has more to do than the others.
        is_telling = self._calls_of_challenger > 1 and seconds > _ROUND_SECONDS / 2
        if (is_telling or seconds > 0.5) and seconds / steps > _FAR_SLOWER * favourite:
            speed.seconds_per_step = min(speed.seconds_per_step, seconds / steps)
            self._turns.clear()
        return max(0.0, seconds - steps * favourite)
