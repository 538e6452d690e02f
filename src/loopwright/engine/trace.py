"""Building: a step is traced once and never run, so that everything it needs exists.

Keras then makes what it makes lazily (unbuilt models, optimizer slots, metrics) at its initial
value, and the guards see the graph.
"""

import contextlib
import hashlib
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import keras
import tensorflow as tf

from loopwright import step_warnings
from loopwright.compat import (
    error_messages,
    keras_internals,
    keras_optimizers,
    tensorflow_internals,
)
from loopwright.engine import mistakes
from loopwright.engine.step import Step
from loopwright.errors import StepError
from loopwright.guards import calls, constants
from loopwright.guards import operations as guards
from loopwright.guards.constants import Trace
from loopwright.guards.resources import Resource, touched
from loopwright.task import metric_updates
from loopwright.task import (
    variables as state,
)
from loopwright.task.gradients import StepScope, build_optimizers, step_scope


@dataclass(frozen=True)
class Built:
    """What a trace told about a step."""

    outputs: Any
    """The specs of what comes out of it."""
    operations: tuple[str, ...] = ()
    """The kinds of its operations, those inside its functions included, in their order."""
    captured: tuple[Any, ...] = field(default=(), compare=False, repr=False)
    """The variables that it reads or changes; a bare handle of one that it only writes."""
    graph: Any = field(default=None, compare=False, repr=False)
    """Its operations as a `GraphDef`, to be looked at."""
    updated: metric_updates.Updated | None = field(default=None, compare=False, repr=False)
    """Which metrics it updates; None where that does not matter."""
    resources: tuple[Resource, ...] = field(default=(), compare=False, repr=False)
    """What it uses beside variables: queues, tables, iterators."""
    batch_spec: Any = field(default=None, compare=False, repr=False)
    """What it was traced for."""
    traces: tuple[Trace, ...] = field(default=(), compare=False, repr=False)
    """The constants in it."""

    @property
    def has_convolutions(self) -> bool:
        """Whether it convolves, which a loop inside XLA does very slowly on a CPU."""
        convolutions = ("Conv2D", "Conv3D", "DepthwiseConv")
        return any(kind.startswith(convolutions) for kind in self.operations)

    @property
    def digest(self) -> str:
        """The same for the same operations, in any process."""
        return hashlib.sha256("\n".join(self.operations).encode()).hexdigest()


def build(step: Step, batch_spec: Any) -> Built:
    """Traces `step` for batches of this spec. Raises in words what is wrong with it."""
    with (
        error_messages.explained(step.title, batch_spec),
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
    elif step.name == "train_step" and _makes_variables_of_tensors(step.task):
        keras_internals.build_compiled_model(step.task, batch_spec)
    with tensorflow_internals.scratch_graph() as graph:
        batch = _placeholders(batch_spec)
        tensors = tf.nest.flatten(batch, expand_composites=True)
        with mistakes.watching(graph, tensors) as watched:
            outputs = step.on_all_replicas(batch)
    mistakes.check(step, watched, graph, outputs, tensors)
    metric_updates.check_compiled(step.title, step.task, graph, outputs)
    return _built(outputs, graph)


def require_unchanging(
    step: Step,
    built: Built,
    traces: Sequence[Trace] | None = None,
    *,
    for_xla: bool = False,
) -> None:
    """Raises if Python computes other values each time the step is traced."""
    text = changing_values(step, built, traces, for_xla=for_xla)
    if text is not None:
        raise StepError(text)


def changing_values(
    step: Step,
    built: Built,
    traces: Sequence[Trace] | None = None,
    *,
    for_xla: bool = False,
    is_eager: bool = False,
) -> str | None:
    """Return the message about values that differ each time the step is traced; None: none does.

    `traces` are those of the loop that is about to run, so that a right step is not traced more
    often; without them it is traced once more. Only where they may differ from what was built is
    it traced twice under the same conditions, and these two decide.
    """
    if traces is None:
        traces = _traced_again(step, built.batch_spec)
    if not constants.may_differ(built.traces, traces, step.source, for_xla=for_xla):
        return None
    first, second = _traced_again(step, built.batch_spec), _traced_again(step, built.batch_spec)
    return constants.changing(step.title, first, second, step.source, is_eager=is_eager)


def _traced_again(step: Step, batch_spec: Any) -> list[Trace]:
    """The constants of one more trace; what it had to say was said when the step was built."""
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
            scope = StepScope(updates=step.replicas == 1)

            def on_one(batch: Any) -> None:
                with step_scope(scope):
                    step.call(batch)

            step.strategy.run(on_one, args=(_placeholders(batch_spec),))
    return traces


def _makes_variables_of_tensors(task: Any) -> bool:
    """Whether its optimizer is one that cannot be built inside a trace."""
    optimizer: Any = getattr(task.model, "optimizer", None)
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    return isinstance(optimizer, keras.optimizers.Nadam) and not optimizer.built


def _built(outputs: Any, graph: Any, more_captured: Iterable[Any] = ()) -> Built:
    definition = graph.as_graph_def()
    functions = [function.node_def for function in definition.library.function]
    # Names of functions count up in a process: neither they nor their order may matter.
    bodies = sorted([_kind(node) for node in nodes] for nodes in functions)
    kinds = [_kind(node) for node in definition.node] + [kind for body in bodies for kind in body]
    # The variables, not the graph: what is kept here outlives it.
    captured = (*tensorflow_internals.captured_variables(graph), *more_captured)
    specs = tf.nest.map_structure(tf.TensorSpec.from_tensor, outputs)
    return Built(specs, tuple(kinds), captured, definition, resources=touched(graph))


def _kind(node: Any) -> str:
    return "function" if tensorflow_internals.is_function(node.op) else node.op


def _build_task(step: Step, batch_spec: Any) -> Built:
    met: list[tuple[Any, list[Any]]] = []
    several = step.replicas > 1

    def on_one(batch: Any) -> Any:
        met.clear()
        scope = StepScope(met=met, updates=not several)
        with step_scope(scope), keras_internals.watching_losses() as was_asked:
            outputs = step.call(batch)
            if step.name == "train_step":
                trained = [v for _, variables in met for v in variables]
                models = state.of_kind(keras.Layer, step.task)
                guards.check_model_losses(models, trained, was_asked)
        return step.folded(outputs, tf.constant(1))

    def on_first_of_several(batch: Any) -> Any:
        def first(value: Any) -> Any:
            return step.strategy.experimental_local_results(value)[0]

        return tf.nest.map_structure(first, step.strategy.run(on_one, args=(batch,)))

    if several:
        _make_variables(step, batch_spec)
    with tensorflow_internals.scratch_graph() as graph, step.adapted():
        batch = _placeholders(batch_spec)
        tensors = tf.nest.flatten(batch, expand_composites=True) if step.has_data else []
        with mistakes.watching(graph, tensors) as watched:
            outputs = on_first_of_several(batch) if several else on_one(batch)
    if several:
        with step.strategy.scope():
            build_optimizers(met)
    if step.name == "train_step":
        # A mirrored count has no single place in the graph.
        optimizers = [] if several else state.of_kind(keras.optimizers.Optimizer, step.task)
        calls.check_reported(step.title, outputs, graph, tensors, optimizers)
        calls.check_configs(state.of_kind(keras.Layer, step.task))
    mistakes.check(step, watched, graph, outputs, tensors, met=met)
    if step.name == "train_step" and not step.has_data:
        constants.check_arrays(step.title, graph)
    # With several replicas this trace has no updates in it.
    owned = [v for optimizer, _ in met for v in state.variables(optimizer)] if several else []
    built = _built(outputs, graph, owned)
    built = replace(built, updated=metric_updates.traced(step.task, graph, outputs))
    if step.watch is None:
        return built
    own = tuple(v for v in built.captured if not step.watch.holds(v))
    return replace(built, captured=own)


def _make_variables(step: Step, batch_spec: Any) -> None:
    """Makes, inside the strategy's scope, what replicas could not make themselves.

    In a stateless scope no variable changes, and those that Keras makes lazily are made when it is
    left. Such a trace may fail where it meets a variable without a value yet, or asks for
    gradients outside a replica: what it met until then exists, and the next one gets further.
    """
    known = -1
    with step.strategy.scope(), keras_optimizers.losses_as_for_one_device():
        while known != (known := len(state.keras_variables(step.task))):
            values = [(variable, variable.value) for variable in state.keras_variables(step.task)]
            dry = step_scope(StepScope(updates=False))
            with contextlib.suppress(Exception), tensorflow_internals.scratch_graph(), dry:
                with keras.StatelessScope(values):
                    step.call(_placeholders(batch_spec))
                return


def _placeholders(batch_spec: Any) -> Any:
    """A symbolic batch; None for a step without data."""

    def placeholder(spec: Any) -> Any:
        if isinstance(spec, tf.SparseTensorSpec):
            return tf.compat.v1.sparse_placeholder(spec.dtype, spec.shape)
        if isinstance(spec, tf.RaggedTensorSpec):
            inner = spec.shape[spec.ragged_rank + 1 :]
            return tf.compat.v1.ragged.placeholder(spec.dtype, spec.ragged_rank, inner)
        return tf.compat.v1.placeholder(spec.dtype, spec.shape)

    return None if batch_spec is None else tf.nest.map_structure(placeholder, batch_spec)
