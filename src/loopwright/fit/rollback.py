"""Which step spoiled a run: found by running steps again."""

from collections.abc import Callable

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
