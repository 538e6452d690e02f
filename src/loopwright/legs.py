"""Legs: each call of `fit` within a run. Which of them are done, and where this one begins.

A script that is started again calls `fit` as often as the first time. Calls that were finished are
skipped, the one that was interrupted goes on where it was saved, the ones after it begin.
"""

from dataclasses import dataclass
from typing import Literal

from loopwright.schedule import Every, Place


@dataclass(frozen=True)
class Reached:
    """Where the newest checkpoint stands, and how far its leg was asked to go."""

    leg: int
    place: Place
    until: Every


def entry(leg: int, until: Every, reached: Reached | None) -> Literal["begin", "go on", "skip"]:
    """What a call of `fit` that is number `leg` of its run has to do.

    >>> two_epochs = Every(epochs=2)
    >>> over = Reached(leg=0, place=Place(step=20, epoch=2, is_over=True), until=two_epochs)
    >>> [entry(leg, two_epochs, over) for leg in (0, 1)], entry(0, Every(epochs=3), over)
    (['skip', 'begin'], 'go on')
    """
    if reached is None or reached.leg < leg:
        return "begin"
    if reached.leg > leg:
        return "skip"
    # A leg that was left early is over as well, unless it is now asked to go further.
    return "skip" if reached.place.is_over and not _is_further(until, reached.until) else "go on"


def _is_further(until: Every, before: Every) -> bool:
    pairs = [
        (until.epochs, before.epochs),
        (until.steps, before.steps),
        (until.seconds, before.seconds),
    ]
    return any(now is not None and then is not None and now > then for now, then in pairs)
