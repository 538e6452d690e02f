"""What a plan costs to compile and what it can save: plain arithmetic on seconds."""

import math
from dataclasses import dataclass

BESIDE_TRAINING = 1.5
"""How much longer a compile takes while training continues, on two cores."""
_TRAINING_BESIDE = 0.6  # of its speed
_COST_OF_COMPILE = BESIDE_TRAINING * (1 - _TRAINING_BESIDE)
_SECONDS_OF_COMPARISON = 0.5
_SURELY = 2.0
"""A plan is tried if it can be expected to save so many times its cost."""
_LATEST_START = 1.5  # times the first call of the first plan


@dataclass(frozen=True)
class Budget:
    """How much one call of `fit` will train, as far as that is known."""

    steps: int | None = None
    seconds: float | None = None

    @property
    def is_known(self) -> bool:
        """Whether the end is known."""
        return bool(self.steps or self.seconds)


@dataclass(frozen=True)
class Pace:
    """How fast a plan runs, and how long it takes to compile while nothing else runs."""

    rate: float
    compile_seconds: float


def comparison_seconds(compile_seconds: float) -> float:
    """Return what training loses by a compile in the background and a comparison."""
    return _COST_OF_COMPILE * compile_seconds + _SECONDS_OF_COMPARISON


def is_worth(left_seconds: float, saving: float, cost_seconds: float) -> bool:
    """Return whether a plan that may save a part of the time left is worth what trying it costs.

    >>> is_worth(60.0, saving=0.5, cost_seconds=4.0), is_worth(60.0, saving=0.02, cost_seconds=4.0)
    (True, False)
    """
    return left_seconds * saving > _SURELY * cost_seconds


def pays_at_once(start: Pace, known: Pace, budget: Budget) -> bool:
    """Return whether to begin by compiling a plan that an earlier run has found to be faster.

    Compiled at once, it runs every step, and nothing runs meanwhile. In the background, training
    continues with its first plan, and both are slower. A short run ends before either pays.

    >>> start, known = Pace(16, compile_seconds=1.5), Pace(37, compile_seconds=5.5)
    >>> [pays_at_once(start, known, Budget(steps=steps)) for steps in (2_000, 20)]
    [True, False]
    """
    steps = budget.steps
    if budget.seconds is not None:
        fitting = math.ceil(max(0.0, budget.seconds - known.compile_seconds) * known.rate)
        steps = fitting if steps is None else min(steps, fitting)
    if steps is None:
        # Without a known end, training must not begin much later than it would by the first plan.
        return known.compile_seconds <= _LATEST_START * start.compile_seconds
    compiling = BESIDE_TRAINING * known.compile_seconds
    slow_rate = _TRAINING_BESIDE * start.rate
    done_beside = min(steps, slow_rate * compiling)
    at_once = known.compile_seconds + steps / known.rate
    beside = done_beside / slow_rate + (steps - done_beside) / known.rate
    return at_once < start.compile_seconds + min(beside, steps / start.rate)
