"""One step: the train or test step of a task, on one global batch, on all replicas."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import tensorflow as tf

from loopwright.compat import keras_optimizers, tensorflow_internals
from loopwright.data import batches
from loopwright.distribute import replicas as runtime
from loopwright.guards import constants
from loopwright.task import context, scheduled, variables
from loopwright.task import task as scalars
from loopwright.task.context import GradientWatch, StepContext
from loopwright.task.keras_model import as_keras_merges
from loopwright.task.state import apply, capture
from loopwright.task.task import Task, class_name, owner

StepName = Literal["train_step", "test_step"]


@dataclass(frozen=True)
class Step:
    """A task's step, bound to the strategy it runs under."""

    task: Task
    name: StepName
    strategy: tf.distribute.Strategy
    has_data: bool
    converts: bool
    """Whether `if` and `while` on tensors become graph operations; not while debugging eagerly."""
    is_share: bool = False
    """Whether batches are those of this worker, and others have the rest."""
    watch: GradientWatch | None = None
    """Records each variable's gradient; the norm is also reported."""
    silenced: frozenset[str] = frozenset()
    """The ids of warnings that are not given."""

    @property
    def title(self) -> str:
        """The step's name in messages: `GAN.train_step`."""
        return f"{class_name(self.task)}.{self.name}"

    @property
    def source(self) -> Any:
        """The user's function; of a compiled Keras model, the model's."""
        step = getattr(owner(self.task), self.name)
        # A step under @tf.function would hide its operations from guards, plans and replicas.
        return getattr(step, "python_function", step)

    @property
    def reports_last(self) -> bool:
        """Whether the last step's outputs are reported, as Keras does, not their mean."""
        return self.task.reported == "last"

    @property
    def replicas(self) -> int:
        """How many replicas share each batch."""
        return self.strategy.num_replicas_in_sync

    def on_all_replicas(self, batch: Any, examples: Any = None) -> Any:
        """Run the step once; return (weighted sum, weight) of each scalar, or the plain outputs.

        `examples` is the number of all workers' examples, if the batch is the part of this one.
        """
        shares, examples, some_replica_is_idle = self._shared_out(batch, examples)

        def on_replica(share: Any) -> Any:
            own = runtime.count_examples(share) if self.has_data else tf.constant(1)
            fraction = own / examples if self.replicas > 1 else None
            with context.entered(StepContext(fraction=fraction, reduced=reduced)):
                return self.folded(self.call(share), own)

        with self.adapted() as reduced, self._statistics_kept(some_replica_is_idle):
            outputs = self.strategy.run(on_replica, args=(shares,))
        return self._reduced(outputs)

    def _shared_out(self, batch: Any, examples: Any) -> tuple[Any, Any, Any]:
        """Return the part of each replica, the number of all examples, and whether one has none."""
        if not self.has_data:
            return None, tf.constant(self.replicas), tf.constant(False)
        if not self.reports_last:  # Keras passes a pipeline's floats to a compiled model unchanged
            batch = batches.to_floatx(batch)
        if examples is not None:
            here = runtime.split(batch, self.strategy, here=True)
            return here, examples, examples < self.replicas
        if not self.is_share:
            examples = runtime.count_examples(batch)
            return runtime.split(batch, self.strategy), examples, examples < self.replicas
        shares = runtime.split(batch, self.strategy, here=True)
        counted = self.strategy.run(_counted, args=(shares,))
        examples, idle = runtime.sums_over_replicas(self.strategy, counted)
        return shares, tf.cast(examples, tf.int32), idle > 0

    def call(self, batch: Any) -> Any:
        """Call the user's code."""
        step = getattr(self.task, self.name) if self.reports_last else self.source
        if self.converts and not self.reports_last:
            step = tensorflow_internals.autograph(step)
        inside = replace(
            context.current(), counter=self.task.step_counter, watch=self.watch, norms={}
        )
        with context.entered(inside):
            with constants.noted(batch):
                outputs = step(batch) if self.has_data else step()
            if self.name == "train_step" and not self.reports_last:
                outputs = scheduled.reported(self.task, outputs)
        if not inside.norms:
            return outputs
        norms = context.named(self.task, inside.norms)  # by path: model.layers[0].kernel
        return {**outputs, **{f"gradient_norm/{path}": norm for path, norm in norms.items()}}

    def folded(self, outputs: Any, examples: Any) -> Any:
        """Return outputs in the form that is summed up; raise if they are not a dict of scalars."""
        if self.reports_last:
            return tf.nest.map_structure(tf.convert_to_tensor, as_keras_merges(outputs))
        return scalars.totals(outputs, self.title, examples)

    @contextlib.contextmanager
    def adapted(self) -> Iterator[Any]:
        """Stop Keras from dividing losses and summing gradients, except in a compiled model."""
        with contextlib.ExitStack() as stack:
            reduced = None
            if self.replicas == 1 or not self.reports_last:
                stack.enter_context(keras_optimizers.optimizers_reduce_nothing(self.replicas))
            if self.replicas > 1 and not self.reports_last:
                stack.enter_context(keras_optimizers.losses_as_for_one_device())
                apart = keras_optimizers.replicas_draw_apart(self.replicas, context.draws_alike)
                stack.enter_context(apart)
                reduced = stack.enter_context(keras_optimizers.plain_apply_refused())
            yield reduced

    def _reduced(self, outputs: Any) -> Any:
        if self.replicas == 1:
            return outputs
        if not self.reports_last:
            return runtime.sums_over_replicas(self.strategy, outputs)
        return tf.nest.map_structure(
            lambda value: runtime.mean_over_replicas(self.strategy, value), outputs
        )

    @contextlib.contextmanager
    def _statistics_kept(self, some_replica_is_idle: Any) -> Iterator[None]:
        """Restore batch-norm statistics after a batch that left a replica without examples.

        Such a replica would add 0 / 0 to their mean, which then stays NaN.
        """
        kept = variables.statistics(self.task) if self.replicas > 1 else []
        before = capture(kept)
        yield
        if kept:
            apply(before, unless=tf.logical_not(some_replica_is_idle))


def _counted(share: Any) -> tuple[Any, Any]:
    """Return how many examples a replica has, and whether none; GPUs sum only floats."""
    examples = runtime.count_examples(share)
    return tf.cast(examples, tf.float32), tf.cast(examples == 0, tf.float32)
