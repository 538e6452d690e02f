"""Attempts: skip steps that are not finite with one copy of the state for many steps.

The steps must be able to run again. The state is copied once for up to 32 of them. A step that is
not finite ends the attempt: the state is restored, the steps before it run again, by the same
compiled code and so with the same bits, and the step itself is passed over. Which steps are skipped
does not depend on where an attempt begins: each step is checked.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

MOST_STEPS = 32
"""In one attempt: a copy of the state costs little beside so many steps."""


def run(
    step: Callable[[Any, Any], tuple[Any, Any]],
    settled: Callable[[Any, Any, Any, Any], Any],
    kept: Sequence[Any],
    steps: Any,
    before: Any,
    shapes: Any,
) -> Any:
    """Run `steps` steps, and return what `step` and `settled` make of `before`.

    `step(done, ran)` runs step number `done`, and returns whether it was finite, and what has run.
    `settled(ran, after, is_finite, skipped)` returns what has run after an attempt, which is undone
    unless it was finite; `skipped` is the number of the step that was passed over then, or -1.
    """
    scalar = tf.TensorShape([])

    def attempt(first: Any, end: Any, passes: Any, ran: Any) -> Any:
        """Run the steps from `first` to `end`, which is then passed over if it `passes`."""
        values = [variable.read_value() for variable in kept]
        done, is_finite, after = tf.while_loop(
            lambda done, is_finite, _: tf.logical_and(is_finite, done < end),
            lambda done, _, ran: (done + 1, *step(done, ran)),
            (first, True, ran),
            shape_invariants=(scalar, scalar, shapes),
            parallel_iterations=1,
        )
        for variable, value in zip(kept, values, strict=True):
            variable.assign(tf.where(is_finite, variable.read_value(), value))
        passes = tf.logical_and(is_finite, passes)
        ran = settled(ran, after, is_finite, tf.where(passes, end, -1))
        following = done + tf.cast(passes, tf.int32)
        next_end = tf.minimum(following + MOST_STEPS, steps)
        return (
            tf.where(is_finite, following, first),
            tf.where(is_finite, next_end, done - 1),
            tf.logical_not(is_finite),
            ran,
        )

    done, _, _, ran = tf.while_loop(
        lambda first, *_: first < steps,
        attempt,
        (0, tf.minimum(MOST_STEPS, steps), False, before),
        shape_invariants=(scalar, scalar, scalar, shapes),
        parallel_iterations=1,
    )
    return done, ran
