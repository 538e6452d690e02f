"""Duel: two processes take turns with the same steps; the spread of the turns is the noise."""

from dataclasses import dataclass, field
from statistics import median
from typing import Literal, final

ROUND_SECONDS = 1.0
_FEWEST_ROUNDS = 3
_MOST_ROUNDS = 6
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
        """Whether the challenger has won: each of its turns beat each turn of the other."""
        rounds = min(len(self.own), len(self.challenger))
        if not rounds:
            return "open"
        if max(self.challenger) < _HOPELESS * max(self.own):
            return "lost"
        if rounds < _FEWEST_ROUNDS:
            return "open"
        if min(self.challenger) > _MUST_BE_FASTER * max(self.own):
            return "won"
        if rounds == _MOST_ROUNDS or median(self.challenger) <= median(self.own):
            # Few turns of a noisy machine may overlap; their medians then decide if they can.
            is_clear = median(self.challenger) > _MUST_BE_FASTER * max(self.own)
            return "won" if is_clear else "lost"
        return "open"


def is_worth(seconds_left: float, start_seconds: float) -> bool:
    """Return whether the rest of a run pays for a trial of other settings, and for a restart.

    The child starts beside the run, which slows both down; the run starts once more if it wins.
    `start_seconds` is how long this process took to its first step.

    >>> is_worth(60.0, start_seconds=10.0), is_worth(600.0, start_seconds=10.0)
    (False, True)
    """
    cost_seconds = 2 * start_seconds + 2 * _FEWEST_ROUNDS * ROUND_SECONDS
    return 0.2 * seconds_left > cost_seconds
