"""Duel: two processes take turns with the same steps; the spread of the turns is the noise."""

from dataclasses import dataclass, field
from statistics import median
from typing import Literal, final

ROUND_SECONDS = 1.0
_FEWEST_ROUNDS = 3
_MOST_ROUNDS = 8
_MOST_LOST_ROUNDS = 1  # of eight: two equal processes come that far in 3.5 % of all duels
_MUST_BE_FASTER = 1.03  # a restart costs time, and other settings change bits
_HOPELESS = 0.7


@final
@dataclass
class Duel:
    """Compares the rates of a challenger with those of the process in force.

    >>> duel = Duel()
    >>> for own, challenger in [(48.0, 70.0), (47.0, 66.0), (50.0, 71.0)]:
    ...     duel.own.append(own), duel.challenger.append(challenger)
    (None, None)
    (None, None)
    (None, None)
    >>> duel.outcome
    'won'
    """

    own: list[float] = field(default_factory=list[float])
    """Steps per second in each turn."""
    challenger: list[float] = field(default_factory=list[float])

    @property
    def outcome(self) -> Literal["open", "won", "lost"]:
        """Whether the challenger has won: beyond the spread, or in nearly every round.

        Both turns of a round follow each other, so what slows the machine down for seconds slows
        both: rounds are compared one by one where the rates of all rounds overlap.
        """
        rounds = list(zip(self.own, self.challenger, strict=False))
        if not rounds:
            return "open"
        if max(self.challenger) < _HOPELESS * max(self.own):
            return "lost"
        if len(rounds) < _FEWEST_ROUNDS:
            return "open"
        if min(self.challenger) > _MUST_BE_FASTER * max(self.own):
            return "won"
        gains = [challenger / own for own, challenger in rounds]
        if sum(gain <= 1 for gain in gains) > _MOST_LOST_ROUNDS:
            return "lost"
        if len(rounds) < _MOST_ROUNDS:
            return "open"
        return "won" if median(gains) > _MUST_BE_FASTER else "lost"


def is_worth(seconds_left: float, start_seconds: float) -> bool:
    """Return whether the rest of a run pays for a trial of other settings, and for a restart.

    The child runs at the same time, which slows both down; the run restarts if the child wins.
    `start_seconds` is how long this process took to its first step.

    >>> is_worth(60.0, start_seconds=10.0), is_worth(600.0, start_seconds=10.0)
    (False, True)
    """
    cost_seconds = 2 * start_seconds + 2 * _FEWEST_ROUNDS * ROUND_SECONDS
    return 0.2 * seconds_left > cost_seconds
