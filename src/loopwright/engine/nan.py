"""Finite or not: find the steps whose loss, or what they wrote, is NaN or infinite.

The loss alone does not show it: oneDNN's fused product, bias and relu turn NaN into 0, so that a
bad example gives a finite loss, gradients of NaN, and weights of NaN. So variables are checked as
well, inside the compiled loop. NaN in a weight or an optimizer's slot stays there: where steps can
run again, it is enough to look for it after some steps (`Watch.run_attempts`). Skipping a step has
to leave everything as it was: weights, optimizer, batch norm, seeds, metrics.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

import tensorflow as tf

from loopwright.compat import messages
from loopwright.compat.error_messages import place_in
from loopwright.errors import ConfigurationError, message

OnNan = Literal["raise", "rollback", "skip"]

IgnoredNan = Literal["", "losses", "all"]
"""What does not end a run: nothing, losses that a callback looks at, or anything."""

MOST_STEPS = 64
"""In one attempt: a copy of the state costs little beside so many steps."""
MOST_SKIPPED = 32
"""In a row, or in one call: more of them are no accident."""
_NONE = 2**31 - 1
FINITE, LOSS, STATE = 0, 1, 2
"""The verdict on a step: finite, a loss that is not, or only what it wrote."""


@final
@dataclass(frozen=True)
class BadStep:
    """A step that was not finite."""

    place: int
    """Which step of a call, counted from 0."""
    has_finite_loss: bool = False
    """Whether only what it wrote was NaN or infinite."""


@final
@dataclass(frozen=True)
class Watch:
    """How a loop treats steps that are not finite."""

    looks: bool
    """Whether it checks at all: for training only."""
    overwritten: Sequence[Any] = ()
    """The variables to check after each step: the next one may hide what it finds in them."""
    lasting: Sequence[Any] = ()
    """Weights and what optimizers keep for them, in which NaN stays."""
    kept: Sequence[Any] = ()
    """The variables to restore before steps run again, or after a step that is skipped."""
    skips: bool = False
    """Whether steps that are not finite change nothing; else the first of them is the last."""
    repeats: bool = False
    """Whether a step gives the same when it runs again on the same state and batch."""

    def checked(self, step: Callable[[], Any]) -> tuple[Any, Any]:
        """Return the outputs of a step and the verdict on it, but for lasting variables."""
        return self._checked(step, self.overwritten)

    def around(self, step: Callable[[], Any]) -> tuple[Any, Any]:
        """Return the outputs of a step and the verdict on it; a skipped one changes nothing."""
        if not self.skips:
            return self._checked(step, [*self.overwritten, *self.lasting])
        before = [variable.read_value() for variable in self.kept]
        outputs, verdict = self._checked(step, [*self.overwritten, *self.lasting])
        for variable, old in zip(self.kept, before, strict=True):
            variable.assign(tf.where(verdict == FINITE, variable.read_value(), old))
        return tf.nest.map_structure(
            lambda output: tf.where(verdict == FINITE, output, tf.zeros_like(output)), outputs
        ), verdict

    def _checked(self, step: Callable[[], Any], written: Sequence[Any]) -> tuple[Any, Any]:
        outputs = step()
        if not self.looks:
            return outputs, tf.constant(FINITE)
        has_finite_loss = all_finite(watched(outputs))
        has_finite_state = all_finite([variable.read_value() for variable in written])
        return outputs, tf.where(has_finite_loss, tf.where(has_finite_state, FINITE, STATE), LOSS)

    def run_attempts(
        self,
        step: Callable[[Any, Any], tuple[Any, Any]],
        settle: Callable[[Any, Any, Any, Any, Any], Any],
        counter: Any,
        steps: Any,
        before: Any,
        shapes: Any,
    ) -> Any:
        """Run `steps` steps with one copy of the state, and one look at it, for up to 64 of them.

        If one of them was not finite, the state and the `counter` of steps are restored, and they
        run again one by one, by the same compiled code and so with the same bits, until the first
        bad one is found. Which steps are found does not depend on where an attempt begins.

        `step(done, ran)` runs step number `done`, and returns the verdict on it, and what has run.
        `settle(ran, after, is_undone, place, verdict)` returns what has run after an attempt;
        `place` is the number of the bad step that was found, and `verdict` is FINITE if none was. A
        bad step is undone if it is skipped; else it is the last one.
        """
        scalar, kept = tf.TensorShape([]), [*self.kept, counter]

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
            is_finite = all_finite([variable.read_value() for variable in self.lasting])
            verdict = tf.where(verdict != FINITE, verdict, tf.where(is_finite, FINITE, STATE))
            is_good = verdict == FINITE
            is_bad = tf.logical_and(tf.logical_not(is_good), length == 1)
            is_undone = tf.logical_not(is_good if self.skips else tf.logical_or(is_good, is_bad))
            for variable, value in zip(kept, values, strict=True):
                variable.assign(tf.where(is_undone, value, variable.read_value()))
            ran = settle(ran, after, is_undone, first, tf.where(is_bad, verdict, FINITE))
            following = tf.where(is_good, done, first + tf.cast(is_bad, tf.int32))
            length = tf.where(is_bad, MOST_STEPS, tf.where(is_good, length, 1))
            return following, length, is_bad, ran

        def continues(first: Any, _: Any, is_bad: Any, __: Any) -> Any:
            is_left = first < steps
            return is_left if self.skips else tf.logical_and(is_left, tf.logical_not(is_bad))

        done, _, _, ran = tf.while_loop(
            continues,
            attempt,
            (0, MOST_STEPS, False, before),
            shape_invariants=(scalar, scalar, scalar, shapes),
            parallel_iterations=1,
        )
        return done, ran

    def no_marks(self) -> Any:
        """Marks before the first step."""
        return tf.zeros([1 + MOST_SKIPPED], tf.int32) if self.skips else tf.constant(_NONE)

    def marked(self, marks: Any, done: Any, verdict: Any) -> Any:
        """Marks after one more step."""
        if not self.looks:
            return marks
        if not self.skips:
            mark = 2 * done + tf.cast(verdict == STATE, tf.int32)
            return tf.minimum(marks, tf.where(verdict == FINITE, _NONE, mark))
        # By comparison: to XLA on a CPU a scatter is a loop.
        index, place = tf.range(1 + MOST_SKIPPED), 1 + tf.minimum(marks[0], MOST_SKIPPED - 1)
        more = tf.where(index == 0, marks + 1, tf.where(index == place, done, marks))
        return tf.where(verdict == FINITE, marks, more)

    def not_finite(self, marks: Any, steps: int) -> list[BadStep]:
        """Return which of `steps` steps were not finite: all that were skipped, or the first."""
        if not self.looks:
            return []
        if not self.skips:
            place, kind = divmod(int(marks), 2)
            return [BadStep(place, has_finite_loss=bool(kind))] if int(marks) < _NONE else []
        # At once: each element of a tensor that Python asks for is an operation of its own.
        count, *places = marks.numpy().tolist()
        return [
            BadStep(place)
            for place in (places[:count] if count <= MOST_SKIPPED else [*places, steps - 1])
        ]


def watched(outputs: Any) -> list[Any]:
    """Return the numbers that must be finite: the losses, or all if none is named so.

    Another number may well be NaN: the accuracy over the positives of a batch without any.
    """
    named = outputs if isinstance(outputs, Mapping) else {"": outputs}
    losses = [value for name, value in named.items() if "loss" in str(name).lower()]
    leaves = tf.nest.flatten(losses or named)
    return [leaf for leaf in leaves if leaf.dtype.is_floating]


def first_operation(
    step: Callable[[], Any], variables: Sequence[Any], before: Sequence[Any]
) -> str:
    """Name the operation of an eager step that gave the first NaN or infinity.

    The step runs once more on the values before it; then everything is put back as it is now.
    """
    now = [variable.read_value() for variable in variables]
    _assign(variables, before)
    tf.debugging.enable_check_numerics()
    try:
        step()
    except tf.errors.InvalidArgumentError as error:
        found = messages.operation_with_nan(error)
        return f"first in {found}{place_in(error)}" if found else ""
    finally:
        tf.debugging.disable_check_numerics()
        _assign(variables, now)
    return ""


def _assign(variables: Sequence[Any], values: Sequence[Any]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def all_finite(tensors: Sequence[Any]) -> Any:
    """Return whether all numbers are finite, with one reduction for tensors of the same shape.

    A weight and its slots in an optimizer have one shape. To XLA on a CPU a reduction is three
    kernels, which take longer than the numbers of a small model.
    """
    alike: dict[Any, Any] = {}
    for number, tensor in enumerate(tensors):
        shape = tensor.shape
        key = tuple(shape) if shape.is_fully_defined() else number
        found = tf.math.is_finite(tensor)
        alike[key] = alike[key] & found if key in alike else found
    found = [tf.reduce_all(each) for each in alike.values()]
    return tf.reduce_all(tf.stack(found)) if len(found) > 1 else found[0] if found else True


def require_policy(on_nan: Any, run_dir: Any, replicas: int) -> None:
    """Raises if this cannot be done about steps that are not finite."""
    objection = ""
    if on_nan not in ("raise", "rollback", "skip"):
        objection = "Unknown on_nan policy."
    elif on_nan == "rollback" and run_dir is None:
        objection = 'on_nan="rollback" requires run_dir.'
    elif on_nan == "skip" and replicas > 1:
        objection = "With several replicas steps cannot be skipped one by one."
    if objection:
        raise ConfigurationError(
            message(
                objection,
                expected='on_nan="raise"; "rollback" with a run_dir; "skip" on one device',
                received=f"on_nan={on_nan!r}, run_dir={run_dir!r}, {replicas} replica(s)",
                do="choose one of these",
            )
        )
