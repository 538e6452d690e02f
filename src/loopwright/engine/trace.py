"""Trace a step once without running it: its variables exist then, and guards see it.

Keras then creates what it creates lazily (unbuilt models, optimizer slots, metrics), at its
initial value.
"""

import contextlib
import hashlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import keras
import tensorflow as tf

from loopwright import step_warnings
from loopwright.compat import (
    keras_internals,
    keras_optimizers,
    step_errors,
    tensorflow_internals,
)
from loopwright.engine.metrics import Updated, find_updates
from loopwright.engine.step import Step
from loopwright.errors import StepError
from loopwright.guards import calls, constants, labels, updates
from loopwright.guards.constants import Constants
from loopwright.guards.guard import Guard, Observed, StepTrace, examine, observing
from loopwright.guards.resources import Resource, touched
from loopwright.guards.source import check_side_effects
from loopwright.task import variables as state
from loopwright.task.context import StepContext, entered
from loopwright.task.gradients import build_optimizers

GUARDS: list[Guard[StepTrace]] = [*calls.GUARDS, *labels.GUARDS, *updates.GUARDS]
"""The guards of a traced step, in the order in which they look at it."""
TRAIN_GUARDS: list[Guard[StepTrace]] = [
    *calls.TRAIN_GUARDS,
    *updates.TRAIN_GUARDS,
    *constants.TRAIN_GUARDS,
]
"""Those of a train step, after them."""
FAILED_TRACE_GUARDS: list[Guard[StepTrace]] = [calls.swapped_arguments, labels.failed_loss]
"""Those that look at a trace that failed: they know its cause better than the error."""


@dataclass(frozen=True)
class Built:
    """What the trace of a step shows."""

    outputs: Any
    """The specs of its outputs."""
    operations: tuple[str, ...] = ()
    """The types of its operations in order, including those inside its functions."""
    captured: tuple[Any, ...] = field(default=(), compare=False, repr=False)
    """The variables that it reads or changes; of one that it only writes, the bare handle."""
    written: frozenset[int] | None = field(default=None, compare=False, repr=False)
    """The ids of the handles of the variables that it may change; None: unknown."""
    graph: Any = field(default=None, compare=False, repr=False)
    """Its operations as a `GraphDef`."""
    updated: Updated | None = field(default=None, compare=False, repr=False)
    """Which metrics it updates; None for a compiled Keras model."""
    resources: tuple[Resource, ...] = field(default=(), compare=False, repr=False)
    """What it uses other than variables: queues, tables, iterators."""
    batch_spec: Any = field(default=None, compare=False, repr=False)
    """The batches it was traced for."""
    traces: tuple[Constants, ...] = field(default=(), compare=False, repr=False)
    """The constants in it, of each replica."""

    @property
    def has_convolutions(self) -> bool:
        """Return whether it convolves, which is very slow in a loop inside XLA on a CPU."""
        convolutions = ("Conv2D", "Conv3D", "DepthwiseConv")
        return any(kind.startswith(convolutions) for kind in self.operations)

    @property
    def is_repeatable(self) -> bool:
        """Return whether it computes the same again from the same variables, and does no more."""
        has_own_state = any(map(tensorflow_internals.has_own_state, self.operations))
        return not has_own_state and not self.resources

    @property
    def digest(self) -> str:
        """Return a digest that is the same for the same operations, in any process."""
        return hashlib.sha256("\n".join(self.operations).encode()).hexdigest()


def build(step: Step, batch_spec: Any) -> Built:
    """Trace `step` for batches of this spec; warn of mistakes, raise what cannot be trained."""
    with (
        step_errors.trace_explained(step.title, batch_spec),
        step_warnings.silenced(step.silenced),
        constants.recorded() as traces,
    ):
        if step.reports_last:
            built = _build_compiled(step, batch_spec)
        else:
            built = _build_task(step, batch_spec)
        return replace(built, batch_spec=batch_spec, traces=tuple(traces[-step.replicas :]))


def _build_compiled(step: Step, batch_spec: Any) -> Built:
    if step.replicas > 1:
        with step.strategy.scope():
            keras_internals.build_compiled_model(step.task, batch_spec)
    with tensorflow_internals.scratch_graph() as graph:
        batch = _placeholders(batch_spec)
        losses = keras_internals.watching_losses()
        with _observed(step, graph, batch) as trace, losses as was_asked:
            outputs = step.on_all_replicas(batch)
            if step.replicas == 1:
                _note_unused_losses(step, trace.observed, was_asked)
    _examine(replace(trace, outputs=outputs))
    return _built(outputs, graph)


def _examine(trace: StepTrace) -> None:
    examine([*GUARDS, *(TRAIN_GUARDS if trace.is_train else ())], trace)


@contextlib.contextmanager
def _observed(step: Step, graph: Any, batch: Any) -> Iterator[StepTrace]:
    """Observe a step while it is traced; if the trace fails, guards may name the cause."""
    with observing() as observed:
        trace = StepTrace(
            step.title,
            step.task,
            is_train=step.name == "train_step",
            is_compiled=step.reports_last,
            replicas=step.replicas,
            graph=graph,
            batch=tf.nest.flatten(batch, expand_composites=True) if step.has_data else [],
            observed=observed,
        )
        try:
            yield trace
        except Exception as error:
            examine(FAILED_TRACE_GUARDS, replace(trace, error=error))
            raise


def check_source(step: Step, built: Built) -> None:
    """Warn of statements in the source of a compiled step that run only while it is traced."""

    def is_written(holder: Any, name: str) -> bool:
        before = vars(holder)[name]
        _traced_again(step, built.batch_spec)
        return vars(holder).get(name) != before

    with step_warnings.silenced(step.silenced):
        check_side_effects(step.title, step.task, step.source, is_written)


def require_unchanging(
    step: Step,
    built: Built,
    traces: Sequence[Constants] | None = None,
    *,
    for_xla: bool = False,
) -> None:
    """Raise if Python computes different values each time the step is traced."""
    text = changing_values(step, built, traces, for_xla=for_xla)
    if text is not None:
        raise StepError(text)


def changing_values(
    step: Step,
    built: Built,
    traces: Sequence[Constants] | None = None,
    *,
    for_xla: bool = False,
    is_eager: bool = False,
) -> str | None:
    """Return the message about values that differ each time the step is traced, or None.

    `traces` are those of the loop that is about to run, so that a correct step is not traced more
    often; without them it is traced once more. Only if they may differ from what was built, or if
    Python may draw in it, the step is traced twice under the same conditions: these two decide.
    """
    if traces is None:
        traces = _traced_again(step, built.batch_spec)
    possible = constants.possible_draws(step.source, step.task)
    if not possible and not constants.may_differ(built.traces, traces, for_xla=for_xla):
        return None
    with constants.made(possible) as drawn:
        first = _traced_again(step, built.batch_spec)
    second = _traced_again(step, built.batch_spec)
    return constants.changing(step.title, first, second, drawn, is_eager=is_eager)


def _traced_again(step: Step, batch_spec: Any) -> list[Constants]:
    """Return the constants of one more trace; its warnings were given when the step was built."""
    with (
        warnings.catch_warnings(),
        constants.recorded(lines=True) as traces,
        tensorflow_internals.scratch_graph(),
        step.adapted() if not step.reports_last else contextlib.nullcontext(),
    ):
        warnings.simplefilter("ignore")
        if step.reports_last:
            step.on_all_replicas(_placeholders(batch_spec))
        else:

            def on_one(batch: Any) -> None:
                with entered(StepContext(updates=step.replicas == 1)):
                    step.call(batch)

            step.strategy.run(on_one, args=(_placeholders(batch_spec),))
    return traces


def _built(outputs: Any, graph: Any, more_captured: Iterable[Any] = ()) -> Built:
    definition = graph.as_graph_def()
    functions = [function.node_def for function in definition.library.function]
    # Names of functions count up in a process: neither they nor their order may count.
    bodies = sorted([_kind(node) for node in nodes] for nodes in functions)
    kinds = [_kind(node) for node in definition.node] + [kind for body in bodies for kind in body]
    # The variables, not the graph: this value outlives the graph.
    captured = (*tensorflow_internals.captured_variables(graph), *more_captured)
    specs = tf.nest.map_structure(tf.TensorSpec.from_tensor, outputs)
    handles = tensorflow_internals.written_handles(graph)
    written = None if handles is None else frozenset(handles)
    return Built(specs, tuple(kinds), captured, written, definition, resources=touched(graph))


def _kind(node: Any) -> str:
    return "function" if tensorflow_internals.is_function(node.op) else node.op


def _build_task(step: Step, batch_spec: Any) -> Built:
    several = step.replicas > 1
    if several:
        _make_variables(step, batch_spec)
    with tensorflow_internals.scratch_graph() as graph, step.adapted():
        batch = _placeholders(batch_spec)
        with _observed(step, graph, batch) as trace:
            observed = trace.observed
            on_one = _on_first_of_several if several else _on_one
            outputs = on_one(step, observed, batch)
    requested = observed.requested
    if several:
        with step.strategy.scope():
            build_optimizers(requested)
    _examine(replace(trace, outputs=outputs))
    # With several replicas this trace has no updates in it.
    owned = [v for optimizer, _ in requested for v in state.variables(optimizer)] if several else []
    built = _built(outputs, graph, owned)
    built = replace(built, updated=find_updates(step.task, graph, outputs))
    if step.watch is None:
        return built
    own = tuple(v for v in built.captured if not step.watch.holds(v))
    return replace(built, captured=own)


def _on_one(step: Step, observed: Observed, batch: Any) -> Any:
    """Call the step; with several replicas the last one leaves what was observed."""
    requested, several = observed.requested, step.replicas > 1
    requested.clear()
    context = StepContext(requested=requested, updates=not several)
    with entered(context), keras_internals.watching_losses() as was_asked:
        outputs = step.call(batch)
        _note_unused_losses(step, observed, was_asked)
    return step.folded(outputs, tf.constant(1))


def _note_unused_losses(
    step: Step, observed: Observed, was_asked: Callable[[keras.Layer], bool]
) -> None:
    if step.name == "train_step":
        trained = [v for _, variables in observed.all_updates for v in variables]
        models = state.of_kind(keras.Layer, step.task)
        observed.unused_losses[:] = calls.count_unused_losses(models, trained, was_asked)


def _on_first_of_several(step: Step, observed: Observed, batch: Any) -> Any:
    """Call the step on all replicas; return the outputs of the first."""

    def on_replica(share: Any) -> Any:
        return _on_one(step, observed, share)

    def first(value: Any) -> Any:
        return step.strategy.experimental_local_results(value)[0]

    return tf.nest.map_structure(first, step.strategy.run(on_replica, args=(batch,)))


def _make_variables(step: Step, batch_spec: Any) -> None:
    """Create, inside the strategy's scope, the variables that replicas cannot create themselves.

    In a stateless scope no variable changes, and those that Keras creates lazily are created when
    the scope is left. Such a trace may fail where it reads a variable without a value yet, or asks
    for gradients outside a replica: what it reached until then exists, so the next one gets
    further.
    """
    known = -1
    with step.strategy.scope(), keras_optimizers.losses_as_for_one_device():
        while known != (known := len(state.keras_variables(step.task))):
            values = [(variable, variable.value) for variable in state.keras_variables(step.task)]
            dry = entered(StepContext(updates=False))
            with contextlib.suppress(Exception), tensorflow_internals.scratch_graph(), dry:
                with keras.StatelessScope(values):
                    step.call(_placeholders(batch_spec))
                return


def _placeholders(batch_spec: Any) -> Any:
    """Return a symbolic batch; None for a step without data."""

    def placeholder(spec: Any) -> Any:
        if isinstance(spec, tf.SparseTensorSpec):
            return tf.compat.v1.sparse_placeholder(spec.dtype, spec.shape)
        if isinstance(spec, tf.RaggedTensorSpec):
            inner = spec.shape[spec.ragged_rank + 1 :]
            return tf.compat.v1.ragged.placeholder(spec.dtype, spec.ragged_rank, inner)
        return tf.compat.v1.placeholder(spec.dtype, spec.shape)

    return None if batch_spec is None else tf.nest.map_structure(placeholder, batch_spec)
