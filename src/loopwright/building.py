"""Building: a step is traced once and never run, so that everything it needs exists.

Keras then makes what it makes lazily (unbuilt models, optimizer slots, metrics) at its initial
value, and the guards see the graph.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from loopwright import adaptations, guards, state
from loopwright.gradients import StepScope, build_optimizers, step_scope
from loopwright.step import Step


def build(step: Step, batch_spec: Any) -> Any:
    """Traces `step` for batches of this spec, and returns the tensors that come out of it.

    Raises in words what is wrong with the step.
    """
    with guards.explained(step.title, batch_spec):
        if not step.reports_last:
            return _build_task(step, batch_spec)
        if step.replicas > 1:
            with step.strategy.scope():
                adaptations.build_compiled_model(step.task, batch_spec)
        traced = _traced(step, step.on_all_replicas, batch_spec)
        return traced.structured_outputs


def _build_task(step: Step, batch_spec: Any) -> Any:
    met: list[tuple[Any, list[Any]]] = []
    several = step.replicas > 1

    def on_one(batch: Any) -> Any:
        met.clear()
        scope = StepScope(met=met, updates=not several)
        with step_scope(scope), adaptations.watching_losses() as was_asked:
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
    with step.adapted():
        traced = _traced(step, on_first_of_several if several else on_one, batch_spec)
    if several:
        with step.strategy.scope():
            build_optimizers(met)
    leaves = tf.nest.flatten(batch_spec, expand_composites=True) if step.has_data else []
    guards.check_reads_batch(step.title, traced.graph.inputs[: len(leaves)])
    guards.check_broadcasting(traced.graph, step.title)
    return traced.structured_outputs


def _make_variables(step: Step, batch_spec: Any) -> None:
    """Makes, inside the strategy's scope, what replicas could not make themselves.

    In a stateless scope no variable changes, and those that Keras makes lazily are made when it is
    left. Such a trace may fail where it meets a variable without a value yet, or asks for
    gradients outside a replica: what it met until then exists, and the next one gets further.
    """

    def dry_run(batch: Any) -> Any:
        values = [(variable, variable.value) for variable in state.keras_variables(step.task)]
        with step_scope(StepScope(updates=False)), keras.StatelessScope(values):
            step.call(batch)
        return tf.constant(0)

    known = -1
    with step.strategy.scope(), adaptations.losses_as_for_one_device():
        while known != (known := len(state.keras_variables(step.task))):
            with contextlib.suppress(Exception):
                _traced(step, dry_run, batch_spec)
                return


def _traced(step: Step, function: Callable[[Any], Any], batch_spec: Any) -> Any:
    if step.has_data:
        return tf.function(function, autograph=False).get_concrete_function(batch_spec)
    return tf.function(lambda: function(None), autograph=False).get_concrete_function()
