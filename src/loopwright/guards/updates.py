"""What a step trains: in which mode, how often, by which optimizer, from which loss."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from loopwright.compat import keras_internals, tensorflow_internals
from loopwright.compat.lines import shape_text, variable_name
from loopwright.guards.constants import uses_array
from loopwright.guards.guard import Finding, StepTrace, listed, refusal, warning
from loopwright.task import dataflow, variables
from loopwright.task.optimizers import with_rates
from loopwright.task.task import owner

MOST_UPDATES = 10
"""Fewer updates by one optimizer in a step may be an inner loop; so many are epochs."""

_INFERENCE_MODE = warning("inference-mode", "a model is trained and called without `training=True`")
_UNROLLED_LOOP = warning("unrolled-loop", "a Python loop makes the same update many times")
_SHARED_VARIABLES = warning("shared-variables", "two optimizers update the same variable")
_UNREDUCED_LOSS = warning("unreduced-loss", "`minimize` gets a loss with one value per example")
_CONSTANT_LOSS = warning(
    "constant-loss",
    "the returned loss depends on no variable, or the minimized one not on the batch",
)
_UNSCALED_FLOAT16 = warning(
    "unscaled-float16", "layers that compute in float16 are trained without a loss scale"
)
_IDLE_OPTIMIZER = warning("idle-optimizer", "a train step never uses an optimizer of the task")
IDLE_METRIC = warning(
    "idle-metric", "a step does not update a metric of the task: it is left out of that pass"
)
_NO_UPDATE = warning("no-update", "a train step changes no trainable variable")


def _inference_mode(trace: StepTrace) -> Iterator[Finding]:
    trained_ids = {id(v) for _, updated in trace.observed.all_updates for v in updated}
    called = trace.observed.called.layers
    given = {id(layer) for layer, training in called if training is not None}
    for layer in {id(layer): layer for layer, _ in called}.values():
        is_trained = any(id(v) in trained_ids for v in layer.trainable_variables)
        idle = [inner.name for inner in _with_modes(layer)]
        if is_trained and idle and id(layer) not in given:
            yield _INFERENCE_MODE(
                f"The step calls {layer.name!r} without training=True: dropout and batch norm "
                "are in inference mode while training.",
                received=f"inference mode for {', '.join(idle)}",
                do="write model(x, training=True) in train_step, or False if that is intended",
            )


def _with_modes(layer: keras.Layer) -> list[keras.Layer]:
    """Return the layers in it, and itself, that behave differently while training."""
    rates = ("rate", "stddev", "dropout", "recurrent_dropout")
    return [
        inner
        for inner in keras_internals.layers_in(layer)
        if inner.trainable
        and (
            isinstance(inner, keras.layers.BatchNormalization)
            or any(_is_positive(getattr(inner, rate, 0)) for rate in rates)
        )
    ]


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and value > 0


def _unrolled_loop(trace: StepTrace) -> Iterator[Finding]:
    """A Python loop over updates is unrolled while the step is traced."""
    # The same updates, noted in two places: `minimize`, and the optimizer.
    counts = [
        Counter((id(optimizer), *map(id, updated)) for optimizer, updated in updates)
        for updates in (trace.observed.requested, trace.observed.updates)
    ]
    most = max((n for counted in counts for n in counted.values()), default=0)
    most //= trace.replicas if trace.is_compiled else 1
    if most >= MOST_UPDATES:
        yield _UNROLLED_LOOP(
            f"{trace.title} makes the same update {most} times: a Python loop was unrolled {most} "
            "times at trace time.",
            expected="one update for each batch",
            received=f"{most} updates of the same variables by one optimizer",
            do=f"leave epochs to fit(..., epochs={most}); for several updates on one batch "
            f"write `for _ in tf.range({most}):`",
        )


def _shared_variables(trace: StepTrace) -> Iterator[Finding]:
    owners: dict[int, Any] = {}
    shared: dict[int, tuple[Any, Any, Any]] = {}
    for optimizer, updated in trace.observed.updates or trace.observed.requested:
        for variable in updated:
            first = owners.setdefault(id(variable), optimizer)
            if first is not optimizer:
                shared.setdefault(id(variable), (variable, first, optimizer))
    if shared:
        _, first, second = next(iter(shared.values()))
        names = [variable_name(v) for v, _, _ in shared.values()]
        count = "a variable" if len(names) == 1 else f"{len(names)} variables"
        yield _SHARED_VARIABLES(
            f"{trace.title} updates {count} with two optimizers: {listed(names, 3)}.",
            expected="one optimizer for each variable",
            received=f"{type(first).__name__} and {type(second).__name__}",
            do="give each optimizer the variables of its own model only; for two losses add "
            "them up, and minimize their sum",
        )


def _unreduced_loss(trace: StepTrace) -> Iterator[Finding]:
    """The gradient of a loss with one value for each example is that of their sum."""
    if trace.is_compiled:
        return  # Keras' own examples sum, with weights for each example
    for target, sources in trace.observed.gradients:
        kinds = keras.Variable | tf.Variable
        if not all(isinstance(source, kinds) for source in tf.nest.flatten(sources)):
            continue  # derivatives of a model's output by its input
        for loss in tf.nest.flatten(target):
            shape = tf.TensorShape(getattr(loss, "shape", []))
            if shape.rank and shape.num_elements() != 1:
                yield _UNREDUCED_LOSS(
                    f"{trace.title} minimizes a loss of shape {shape_text(shape)}: its gradient is "
                    "that of the sum, and grows with the batch size.",
                    expected="one number",
                    received=f"a loss of shape {shape_text(shape)}",
                    do="reduce it first: tf.reduce_mean(loss)",
                )
                return


def _constant_loss(trace: StepTrace) -> Iterator[Finding]:
    """A loss stays the same if it is returned from no variable, or trained without the batch."""
    graph, applied = trace.graph, trace.observed.applied
    if trace.replicas > 1 or not applied:
        return
    reported = trace.outputs.get("loss") if isinstance(trace.outputs, Mapping) else None
    tensors = [t for t in tf.nest.flatten(reported) if getattr(t, "graph", None) is graph]
    if tensors:
        reached = dataflow.flow(graph, dataflow.resources(graph))
        if not any(tensor.name in reached for tensor in tensors):
            yield _CONSTANT_LOSS(
                f"{trace.title} returns a 'loss' that does not depend on any variable.",
                expected="the loss from which the gradients were taken",
                received="a tensor computed from the batch and constants only",
                do='return {"loss": loss} with the loss that is minimized',
            )
    gradients = [
        g for update in applied for g in tf.nest.flatten(update.gradients) if g is not None
    ]
    gradients = [g.values if isinstance(g, tf.IndexedSlices) else g for g in gradients]
    if trace.batch and all(getattr(g, "graph", None) is graph for g in gradients):
        every_kind = {op.type for op in graph.get_operations()}
        reached = dataflow.flow(graph, trace.batch, through=every_kind)
        # A loss of weights alone may be intended; examples from outside hardly are.
        is_fixed = not any(gradient.name in reached for gradient in gradients)
        if is_fixed and uses_array(graph):
            yield _CONSTANT_LOSS(
                f"{trace.title} minimizes a loss that does not depend on the batch: every step "
                "makes the same update.",
                expected="a loss computed from the step's `batch` argument",
                received="gradients that do not depend on the batch",
                do="take inputs and labels from `batch`, not from a variable outside the step",
            )


def _unscaled_float16(trace: StepTrace) -> Iterator[Finding]:
    """Small gradients are 0 in float16 without a loss scale; `compile` and `Supervised` add it."""
    updates = trace.observed.all_updates
    parts = [part.value for part in variables.parts(trace.task)]
    held = [*parts, *(getattr(p, "optimizer", None) for p in parts), *(o for o, _ in updates)]
    scaling = [o for o in held if isinstance(o, keras.optimizers.LossScaleOptimizer)]
    scaled = {id(o) for o in (*scaling, *(o.inner_optimizer for o in scaling))}
    unscaled = {
        id(variable): type(optimizer).__name__
        for optimizer, updated in updates
        for variable in updated
        if id(optimizer) not in scaled and optimizer.loss_scale_factor is None
    }
    models = [part for part in parts if isinstance(part, keras.Layer)]
    for layer in (inner for model in models for inner in keras_internals.layers_in(model)):
        if layer.compute_dtype != "float16" or len(keras_internals.layers_in(layer)) > 1:
            continue
        names = [unscaled[id(v)] for v in layer.trainable_variables if id(v) in unscaled]
        if names:
            yield _UNSCALED_FLOAT16(
                f"{trace.title} trains {layer.name!r}, which computes in float16, with {names[0]}, "
                "which does not scale the loss: small gradients become 0.",
                expected="a loss scale, as compile() and lw.Supervised add it",
                received=f"{layer.dtype_policy.name}, and {names[0]} without loss_scale_factor",
                do=f"write keras.optimizers.LossScaleOptimizer({names[0]}(...)); a step that calls "
                "its apply itself takes the gradients of optimizer.scale_loss(loss); or use "
                "mixed_bfloat16, which needs no scale",
            )
            return


def _no_update(trace: StepTrace) -> Iterator[Finding]:
    if trace.observed.requested:
        return
    written = tensorflow_internals.written_handles(trace.graph)
    parts = [part.value for part in variables.parts(trace.task)]
    optimizers = [part for part in parts if isinstance(part, keras.optimizers.Optimizer)]
    optimizers += [part.optimizer for part in parts if getattr(part, "optimizer", None) is not None]
    trainable = [v for part in parts for v in _trainable(part)]
    if written is None or not optimizers or not trainable:
        return
    handles = {id(own.handle) for v in trainable for own in variables.replicas(v)}
    if not handles & written:
        yield _NO_UPDATE(
            f"{trace.title} updates no trainable variable: the loss will stay the same.",
            expected="an update in each step",
            received=f"{len(trainable)} trainable variables and "
            f"{type(optimizers[0]).__name__}, which is not applied",
            do="call self.minimize(loss, model, optimizer, tape); in a Keras model "
            "self.optimizer.apply(gradients, self.trainable_variables)",
        )


def _idle_optimizer(trace: StepTrace) -> Iterator[Finding]:
    """An optimizer that the task holds beside others, and that makes no update in the trace."""
    updates = trace.observed.all_updates
    if not updates:
        return  # without any update, that is the mistake to name
    used = {id(each) for optimizer, _ in updates for each in _with_inner(optimizer)}
    held = {part.path: part.value for part in variables.parts(trace.task)}
    if trace.is_compiled:
        # Keras gives every compiled model an optimizer, also one whose step uses others.
        model = owner(trace.task)
        held = {name: v for name, v in vars(model).items() if v is not model.optimizer}
    for path, optimizer in held.items():
        is_optimizer = isinstance(optimizer, keras.optimizers.Optimizer)
        if is_optimizer and used.isdisjoint(map(id, _with_inner(optimizer))):
            yield _IDLE_OPTIMIZER(
                f"{trace.title} never uses the optimizer {path!r}: it updates nothing.",
                expected="an update by every optimizer that the task holds",
                received="a trace without it, perhaps because a Python `if` left it out",
                do=f"call minimize with {path!r}; for an update in some steps only, pass a "
                "condition on the device: self.minimize(..., when=self.step % 3 == 0)",
            )


def _with_inner(optimizer: Any) -> list[Any]:
    """Return an optimizer and those inside it, which make its updates."""
    return [optimizer, *with_rates(optimizer)]


def _trainable(part: Any) -> list[Any]:
    """Return the trainable `tf.Variable`s of a part of a task."""
    if isinstance(part, keras.Layer):
        return [variable.value for variable in part.trainable_variables]
    if isinstance(part, keras.Variable | tf.Variable) and part.trainable:
        return variables.variables(part)
    return []


def metric_updates(
    metrics: Sequence[keras.metrics.Metric], graph: Any, outputs: Mapping[str, Any]
) -> tuple[set[keras.metrics.Metric], list[keras.metrics.Metric]]:
    """Return the metrics that a trace updates, and those that it only reads to return them.

    An update in a branch counts; where updates cannot be seen, all metrics do.
    """
    written = tensorflow_internals.written_handles(graph)
    if written is None:
        return set(metrics), []
    updated, idle = set[keras.metrics.Metric](), list[keras.metrics.Metric]()
    for metric in metrics:
        handles = {id(own.handle) for v in metric.variables for own in variables.replicas(v.value)}
        if not handles or handles & written:
            updated.add(metric)
        elif metric.name in outputs:
            read = tensorflow_internals.captures_of(graph, handles)
            reached = dataflow.flow_in_sight(graph, read)
            returned = tf.nest.flatten(outputs[metric.name])
            idle += [metric] * any(getattr(value, "name", None) in reached for value in returned)
    return updated, idle


def _idle_metrics(trace: StepTrace) -> Iterator[Finding]:
    """Keras reports what the step returns: of a metric without updates, its initial value."""
    if not trace.is_compiled:
        return  # the metrics of a task are reported by the trainer, which names idle ones
    metrics = trace.task.metrics
    if any(keras_internals.without_values(metric) for metric in metrics):
        yield refusal(
            f"{trace.title} does not update the metrics that the model was compiled with.",
            expected="a step that updates them, or compile() without metrics",
            received="compile(metrics=...), and no call of compute_metrics",
            do="call self.compute_metrics(x, y, y_pred) in the step, or leave metrics out of "
            "compile",
        )
    outputs: Any = trace.outputs if isinstance(trace.outputs, Mapping) else {}
    for metric in metric_updates(metrics, trace.graph, outputs)[1]:
        if not keras_internals.is_loss_tracker(metric, owner(trace.task)):
            yield IDLE_METRIC(
                f"{trace.title} returns the metric {metric.name!r} without an update: its value "
                "stays the same.",
                do=f"call update_state of {metric.name!r} in the step, or leave it out of what "
                "the step returns",
            )


GUARDS = [_idle_metrics]
TRAIN_GUARDS = [
    _inference_mode,
    _unrolled_loop,
    _shared_variables,
    _unreduced_loss,
    _constant_loss,
    _unscaled_float16,
    _no_update,
    _idle_optimizer,
]
