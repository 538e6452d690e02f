"""Attempts: look for NaN in the state, and skip steps, with one copy of it for many steps.

The steps must be able to run again. The state is copied and looked at once for up to 64 of them. If
one of them was not finite, the state is restored, and they run again one by one, by the same
compiled code and so with the same bits, until the first bad one is found. Which steps are found
does not depend on where an attempt begins.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from loopwright.engine.nan import FINITE, STATE

MOST_STEPS = 64
"""In one attempt: a copy of the state costs little beside so many steps."""


def run(
    step: Callable[[Any, Any], tuple[Any, Any]],
    has_finite_state: Callable[[], Any],
    settled: Callable[[Any, Any, Any, Any, Any], Any],
    kept: Sequence[Any],
    steps: Any,
    before: Any,
    shapes: Any,
    *,
    skips: bool,
) -> Any:
    """Run `steps` steps, and return what `step` and `settled` make of `before`.

    `step(done, ran)` runs step number `done`, and returns the verdict on it, and what has run.
    `settled(ran, after, is_undone, place, verdict)` returns what has run after an attempt; `place`
    is the number of the bad step that was found, and `verdict` is FINITE if none was. A bad step is
    undone if it `skips`; else it is the last one.
    """
    scalar = tf.TensorShape([])

    def attempt(first: Any, length: Any, _: Any, ran: Any) -> Any:
        values = [variable.read_value() for variable in kept]
        end = tf.minimum(first + length, steps)
        done, verdict, after = tf.while_loop(
            lambda done, verdict, _: tf.logical_and(verdict == FINITE, done < end),
            lambda done, _, ran: (done + 1, *step(done, ran)),
            (first, FINITE, ran),
            shape_invariants=(scalar, scalar, shapes),
            parallel_iterations=1,
        )
        verdict = tf.where(verdict != FINITE, verdict, tf.where(has_finite_state(), FINITE, STATE))
        is_good = verdict == FINITE
        is_bad = tf.logical_and(tf.logical_not(is_good), length == 1)
        is_undone = tf.logical_not(is_good if skips else tf.logical_or(is_good, is_bad))
        for variable, value in zip(kept, values, strict=True):
            variable.assign(tf.where(is_undone, value, variable.read_value()))
        ran = settled(ran, after, is_undone, first, tf.where(is_bad, verdict, FINITE))
        following = tf.where(is_good, done, first + tf.cast(is_bad, tf.int32))
        length = tf.where(is_bad, MOST_STEPS, tf.where(is_good, length, 1))
        return following, length, is_bad, ran

    def continues(first: Any, _: Any, is_bad: Any, __: Any) -> Any:
        is_left = first < steps
        return is_left if skips else tf.logical_and(is_left, tf.logical_not(is_bad))

    done, _, _, ran = tf.while_loop(
        continues,
        attempt,
        (0, MOST_STEPS, False, before),
        shape_invariants=(scalar, scalar, scalar, shapes),
        parallel_iterations=1,
    )
    return done, ran
