"""Roll a session back: find the step that spoiled it by running again, and pass it over."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from loopwright.checkpoints.snapshot import Snapshot
from loopwright.errors import NotFiniteError
from loopwright.events import BatchSkipped

if TYPE_CHECKING:
    from loopwright.fit.session import Session

MOST_ROLLBACKS = 10
"""In one call of `fit`: a run that needs more of them needs a look."""


def first_bad_step(goes_wrong: Callable[[int], bool], seen_step: int) -> int:
    """Return the first step that goes wrong, counted from 1, given one that did: `seen_step`.

    `goes_wrong(n)` runs the first n steps again and says whether something is wrong then. Mostly
    it is the step itself, or the one before, whose update spoiled the weights.

    >>> tried = []
    >>> first_bad_step(lambda n: tried.append(n) or n >= 70, seen_step=71)
    70
    >>> tried
    [70, 69]
    """
    good, bad = 0, seen_step
    near = [seen_step - 1, seen_step - 2]
    while bad - good > 1:
        guess = near.pop(0) if near else (good + bad) // 2
        if not good < guess < bad:
            continue
        if goes_wrong(guess):
            bad = guess
        else:
            good = guess
    return bad


def roll_back(session: "Session", saved: Snapshot, error: NotFiniteError) -> BatchSkipped:
    """Go back to the last good state, and skip the batch that made a step not finite."""

    def goes_wrong(steps: int) -> bool:
        session.go_back(saved)
        is_finite = True
        try:
            for _ in session.run_quietly(steps):
                pass
        except NotFiniteError:
            is_finite = False
        session.require_not_interrupted()
        return not is_finite or session.checkpoints.is_spoiled(session)

    first = first_bad_step(goes_wrong, error.step - saved.step)
    session.stepper.pass_over(saved.step + first)
    session.go_back(saved)
    batch = session.stepper.batch_in_words(saved.position.read.batches + first - 1)
    return BatchSkipped(saved.step + first, batch, saved.step)
