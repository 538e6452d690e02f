"""Legs: each call of `fit` within a run. Which of them are done, and where this one begins.

A script that is started again calls `fit` as often as the first time. Calls that were finished are
skipped, the one that was interrupted goes on where it was saved, the ones after it begin.
"""

from typing import Literal

from loopwright.checkpoints.snapshot import Reached
from loopwright.loop.schedule import Every, Place


def entry(
    leg: int, until: Every, reached: Reached | None
) -> Literal["begin", "go on", "end", "skip"]:
    """What a call of `fit` that is number `leg` of its run has to do.

    "end": nothing is left to train, but the leg has no checkpoint of its end yet.

    >>> two_epochs = Every(epochs=2)
    >>> over = Reached(leg=0, place=Place(step=20, epoch=2, is_over=True), until=two_epochs)
    >>> [entry(leg, two_epochs, over) for leg in (0, 1)], entry(0, Every(epochs=3), over)
    (['skip', 'begin'], 'go on')
    """
    if reached is None or reached.leg < leg:
        return "begin"
    if reached.leg > leg:
        return "skip"
    if reached.place.is_over:
        # A leg that was left early is over as well, unless it is now asked to go further.
        return "go on" if _is_further(until, reached.until) else "skip"
    return "end" if _is_complete(reached.place, until) else "go on"


def excess(place: Place, until: Every) -> str:
    """How far a leg has gone beyond what is asked, for people; empty if it has not.

    >>> excess(Place(step=60, epoch=5, step_in_epoch=10), Every(epochs=3))
    'at epoch 6 of the 3 epochs asked for'
    >>> excess(Place(step=30, epoch=3), Every(epochs=3))
    ''
    """
    begun = place.epoch + (place.step_in_epoch > 0)
    if until.epochs is not None and begun > until.epochs:
        return f"at epoch {begun} of the {until} asked for"
    if until.steps is not None and place.step > until.steps:
        return f"at step {place.step:,} of the {until} asked for"
    return ""


def _is_complete(place: Place, until: Every) -> bool:
    """Whether everything that is asked was done; not if something is due where the leg is."""
    if until.epochs is not None:
        return place.epoch >= until.epochs
    if until.steps is not None:
        return place.step > until.steps or (place.step == until.steps and not place.is_due)
    return place.seconds >= (until.seconds or 0.0) and not place.is_due


def _is_further(until: Every, before: Every) -> bool:
    pairs = [
        (until.epochs, before.epochs),
        (until.steps, before.steps),
        (until.seconds, before.seconds),
    ]
    return any(now is not None and then is not None and now > then for now, then in pairs)
