"""Finite or not: find the steps whose loss, or what they wrote, is NaN or infinite.

The loss alone does not show it: oneDNN's fused product, bias and relu turn NaN into 0, so that a
bad example gives a finite loss, gradients of NaN, and weights of NaN. So variables are checked as
well, inside the compiled loop. NaN in a weight or an optimizer's slot stays there: where steps can
run again, it is enough to look for it after some steps (`LoopGraph`). Skipping a step has to
leave everything as it was: weights, optimizer, batch norm, seeds, metrics.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

import tensorflow as tf

from loopwright.compat import messages
from loopwright.compat.lines import place_in
from loopwright.errors import ConfigurationError
from loopwright.task.state import State, apply, capture, preserved

OnNan = Literal["raise", "rollback", "skip"]

IgnoredNan = Literal["", "losses", "all"]
"""What does not end a run: nothing, losses that a callback looks at, or anything."""

MOST_STEPS = 64
"""In one attempt: a copy of the state costs little beside so many steps."""
MOST_SKIPPED = 32
"""In a row: more of them are no accident."""
FINITE, STATE, LOSS, BROKEN = 0, 1, 2, 3
"""The verdict on a step, from good to bad: finite; only what it wrote is not; its loss is not; it
broke a bound (see `bounds`)."""


@final
@dataclass(frozen=True)
class FiniteCheck:
    """How a loop treats steps that are not finite: the first of them is its last."""

    looks: bool
    """Whether it checks at all: for training only."""
    overwritten: Sequence[Any] = ()
    """The variables to check after each step: the next one may hide what it finds in them."""
    lasting: Sequence[Any] = ()
    """Weights and what optimizers keep for them, in which NaN stays."""
    kept: Sequence[Any] = ()
    """The variables to restore before steps run again, or after a step that is skipped."""
    skips: bool = False
    """Whether steps that are not finite change nothing, and training continues after them."""
    repeats: bool = False
    """Whether a step gives the same when it runs again on the same state and batch."""
    passes_losses: bool = False
    """Whether a loss that is not finite is left to a callback, and ends nothing."""

    def checked(self, step: Callable[[], Any], *, in_attempt: bool) -> tuple[Any, Any]:
        """Return the outputs of a step and the verdict on it; a skipped one changes nothing.

        In an attempt of several steps, lasting variables are checked, and steps undone, after it.
        """
        if not self.looks:
            return step(), tf.constant(FINITE)
        is_undone_here = self.skips and not in_attempt
        before = capture(self.kept if is_undone_here else [])
        outputs = step()
        written = self.overwritten if in_attempt else [*self.overwritten, *self.lasting]
        has_finite_loss = all_finite(watched(outputs))
        has_finite_state = all_finite([variable.read_value() for variable in written])
        verdict = tf.where(has_finite_loss, tf.where(has_finite_state, FINITE, STATE), LOSS)
        if is_undone_here:
            apply(before, unless=verdict == FINITE)
            outputs = tf.nest.map_structure(
                lambda output: tf.where(verdict == FINITE, output, tf.zeros_like(output)), outputs
            )
        return outputs, verdict


def watched(outputs: Any) -> list[Any]:
    """Return the numbers that must be finite: the losses, or all if none is named so.

    Another number may well be NaN: the accuracy over the positives of a batch without any.
    """
    named = outputs if isinstance(outputs, Mapping) else {"": outputs}
    losses = [value for name, value in named.items() if "loss" in str(name).lower()]
    leaves = tf.nest.flatten(losses or named)
    return [leaf for leaf in leaves if leaf.dtype.is_floating]


def first_operation(step: Callable[[], Any], before: State) -> str:
    """Name the operation of an eager step that gave the first NaN or infinity.

    The step runs once more on the values before it; then everything is put back as it is now.
    """
    with preserved(variable for variable, _ in before.pairs):
        apply(before)
        tf.debugging.enable_check_numerics()
        try:
            step()
        except tf.errors.InvalidArgumentError as error:
            found = messages.operation_with_nan(error)
            return f"first in {found}{place_in(error)}" if found else ""
        finally:
            tf.debugging.disable_check_numerics()
    return ""


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
            objection,
            expected='on_nan="raise"; "rollback" with a run_dir; "skip" on one device',
            received=f"on_nan={on_nan!r}, run_dir={run_dir!r}, {replicas} replica(s)",
            do="choose one of these",
        )
