"""Finite or not: steps whose loss is NaN or infinity are found inside the compiled loop.

Looking is nearly free: the first step that was not finite is noted. Skipping such a step has to
leave everything as it was: weights, optimizer, batch norm, seeds, metrics. Where a step can run
again, that costs a check of the state for every step (see `attempts`); elsewhere also a copy.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

import tensorflow as tf

from loopwright.compat import messages
from loopwright.compat.error_messages import place_in
from loopwright.errors import ConfigurationError, message

OnNan = Literal["raise", "rollback", "skip"]

MOST_SKIPPED = 32
"""In a row, or in one call: more of them are no accident."""
_NONE = 2**31 - 1


@final
@dataclass(frozen=True)
class Watch:
    """How a loop treats steps that are not finite."""

    looks: bool
    """Whether it checks at all: for training only."""
    kept: Sequence[Any] = ()
    """The variables to put back after a step that is skipped; none: nothing is skipped."""
    repeats: bool = False
    """Whether a step gives the same when it runs again on the same state and batch."""

    def checked(self, step: Callable[[], Any]) -> tuple[Any, Any]:
        """Return the outputs of a step and whether it was finite, and left a state that is."""
        outputs = step()
        if not self.looks:
            return outputs, True
        now = [variable.read_value() for variable in self.kept]
        state = [value for value in now if value.dtype.is_floating]
        return outputs, _all_finite(watched(outputs) + state)

    def around(self, step: Callable[[], Any]) -> tuple[Any, Any]:
        """Return the outputs of a step and whether it was finite; a skipped one changes nothing."""
        before = [variable.read_value() for variable in self.kept]
        outputs, is_finite = self.checked(step)
        if not self.kept:
            return outputs, is_finite
        for variable, old in zip(self.kept, before, strict=True):
            variable.assign(tf.where(is_finite, variable.read_value(), old))
        return tf.nest.map_structure(
            lambda output: tf.where(is_finite, output, tf.zeros_like(output)), outputs
        ), is_finite

    def no_marks(self) -> Any:
        """Marks before the first step."""
        return tf.zeros([1 + MOST_SKIPPED], tf.int32) if self.kept else tf.constant(_NONE)

    def marked(self, marks: Any, done: Any, is_finite: Any) -> Any:
        """Marks after one more step."""
        if not self.looks:
            return marks
        if not self.kept:
            return tf.minimum(marks, tf.where(is_finite, _NONE, done))
        # By comparison: to XLA on a CPU a scatter is a loop.
        index, place = tf.range(1 + MOST_SKIPPED), 1 + tf.minimum(marks[0], MOST_SKIPPED - 1)
        more = tf.where(index == 0, marks + 1, tf.where(index == place, done, marks))
        return tf.where(is_finite, marks, more)

    def not_finite(self, marks: Any, steps: int) -> list[int]:
        """Return which of `steps` steps were not finite: all that were skipped, or the first."""
        if not self.looks:
            return []
        if not self.kept:
            return [int(marks)] if int(marks) < steps else []
        # At once: each element of a tensor that Python asks for is an operation of its own.
        count, *places = marks.numpy().tolist()
        return places[:count] if count <= MOST_SKIPPED else [*places, steps - 1]


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


def _all_finite(tensors: Sequence[Any]) -> Any:
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
        objection = "There is no such way to deal with NaN."
    elif on_nan == "rollback" and run_dir is None:
        objection = "Going back needs a state to go back to."
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
