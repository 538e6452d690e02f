"""Records of each step of a compiled loop, for callbacks that log every step.

The loop writes one row per step into a table; control does not return to Python between steps.
Nothing is recorded unless a callback asks for it.
"""

import math
from collections.abc import Sequence
from typing import Any, final

import numpy as np
import tensorflow as tf

from loopwright.compat import tensorflow_internals
from loopwright.engine.step import Step
from loopwright.plans.plan import Plan
from loopwright.task.metric_updates import Updates
from loopwright.task.task import results

_ROWS = 1024  # in a loop inside XLA a table has a fixed size


@final
class Recorder:
    """Records what a step gives, what the task's metrics say after it, and some variables.

    `columns` are nests like `(outputs, metrics, variables)`, with one more axis: the steps.
    """

    def __init__(
        self, step: Step, plan: Plan, updates: Updates, variables: Sequence[Any], outputs: Any
    ) -> None:
        self._task, self._updates, self._variables = step.task, updates, variables
        self._is_fused = plan.loop == "fused"
        in_loops = plan.loop != "python" and step.replicas == 1
        self._specs = self._row_specs(outputs) if in_loops else None

    @property
    def most_steps(self) -> int:
        """How many steps one call may run: one, if a loop cannot record them."""
        return 1 if self._specs is None else _ROWS

    # -- in a loop -----------------------------------------------------------------------------

    def no_rows(self, steps: Any) -> Any:
        """Return the empty table of a call, as a loop variable."""
        if self._specs is None:
            return ()
        size = _ROWS if self._is_fused else steps
        # One more, for what is written for no step.
        return tf.TensorArray(tf.float64, size + 1, element_shape=[sum(self._sizes())])

    def written(self, rows: Any, done: Any, outputs: Any) -> Any:
        """Return the table with one more step."""
        if self._specs is None:
            return rows
        leaves = tf.nest.flatten((outputs, *self._read()))
        flat = [tf.reshape(tf.cast(leaf, tf.float64), [-1]) for leaf in leaves]
        return rows.write(done, tf.concat(flat, axis=0))

    def shapes(self) -> Any:
        """Return the shape invariants of the table for `tf.while_loop`."""
        return () if self._specs is None else tf.TensorShape(None)

    # -- after a call --------------------------------------------------------------------------

    def columns(self, table: Any, outputs: Any, steps: int) -> Any:
        """Return the numbers of `steps` steps; `outputs` are those of one, without a table."""
        if self._specs is None:
            one = (outputs, *self._read())
            return tf.nest.map_structure(lambda value: np.asarray(value)[np.newaxis], one)
        ends = np.cumsum(self._sizes())[:-1]
        parts = np.split(table.numpy()[:steps], ends, axis=1)
        pairs = zip(parts, tf.nest.flatten(self._specs), strict=True)
        shaped = [part.reshape([steps, *spec.shape]) for part, spec in pairs]
        return tf.nest.pack_sequence_as(self._specs, shaped)

    def _read(self) -> tuple[Any, Any]:
        seen = self._updates.of("train_step")
        updated = self._task.metrics if seen is None else seen.metrics
        metrics = {} if self._task.reported == "last" else results(self._task, updated)
        return metrics, [tf.convert_to_tensor(variable) for variable in self._variables]

    def _sizes(self) -> list[int]:
        return [math.prod(spec.shape) for spec in tf.nest.flatten(self._specs)]

    def _row_specs(self, outputs: Any) -> Any:
        """Return the specs of a row; None if a loop cannot record it."""
        try:
            # A user's metric may compute its result outside of any graph.
            read = tensorflow_internals.compiled(self._read, xla=self._is_fused)()
            specs = (outputs, *tf.nest.map_structure(tf.TensorSpec.from_tensor, read))
            leaves = tf.nest.flatten(specs)
        except Exception:  # then the steps are run one by one
            return None
        fits = all(spec.shape.is_fully_defined() and _is_number(spec.dtype) for spec in leaves)
        return specs if fits and leaves else None


def joined(parts: Sequence[Any]) -> Any:
    """Concatenate the columns of several calls."""
    return tf.nest.map_structure(lambda *leaves: np.concatenate(leaves), *parts)


def _is_number(dtype: tf.DType) -> bool:
    return dtype.is_floating or dtype.is_bool or dtype.is_integer
