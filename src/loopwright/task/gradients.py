"""From gradients to updates: scale, weigh, reduce, transform, accumulate, clip, apply."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import keras
import tensorflow as tf

from loopwright.compat import keras_optimizers, tensorflow_internals
from loopwright.compat.lines import variable_name
from loopwright.errors import ConfigurationError, StepError, message
from loopwright.loop.signals import blocked
from loopwright.step_warnings import declare, warn
from loopwright.task import context

_NO_GRADIENT = declare("no-gradient", "a variable given to `minimize` has no gradient")

Transform = Callable[[list[Any], list[Any]], Sequence[Any]]
"""(gradients, variables) -> gradients, after the reduction over replicas.

None in place of a gradient leaves its variable unchanged.
"""
_Function = TypeVar("_Function", bound=Callable[..., Any])
Transforms = Transform | Sequence[Transform] | None
"""One, several in the order they are applied, or none."""


def transformed(
    transforms: Transforms, gradients: list[Any], variables: list[Any]
) -> tuple[list[Any], list[Any]]:
    """Return the gradients after all transforms, and their variables.

    >>> transformed(lambda gradients, variables: [None, 2.0], [1.0, 1.0], ["a", "b"])
    ([2.0], ['b'])
    """
    for transform in as_list(transforms):
        result = transform(list(gradients), list(variables))
        if not isinstance(result, list | tuple) or len(result) != len(gradients):
            raise StepError(
                "A gradient transform must return as many gradients as it was given.",
                expected=f"a list of {len(gradients)} gradients",
                received=f"{type(result).__name__}"
                + (f" of {len(result)}" if isinstance(result, list | tuple) else ""),
                do="write it as `def transform(gradients, variables): return [...]`",
            )
        kept = [(g, v) for g, v in zip(result, variables, strict=True) if g is not None]
        gradients, variables = [g for g, _ in kept], [v for _, v in kept]
        if not gradients:
            raise StepError(
                "The gradient transforms leave nothing to train.",
                expected="a gradient for at least one variable",
                received=f"None for all {len(result)}",
                do="freeze fewer variables, or leave this minimize out",
            )
    return gradients, variables


def as_list(transforms: Transforms) -> list[Transform]:
    """Return the transforms as a list."""
    if transforms is None:
        return []
    return [transforms] if callable(transforms) else list(transforms)


def _as_written(function: _Function) -> _Function:
    """AutoGraph has nothing to convert in it, and would take a second to find out."""
    return tf.autograph.experimental.do_not_convert(function)


@_as_written
def minimize(
    loss: Any,
    model_or_variables: Any,
    optimizer: keras.optimizers.Optimizer,
    tape: tf.GradientTape,
    *,
    when: Any = True,
    transform: Transforms = None,
) -> Any:
    """Update a model, or a list of variables, to lower `loss`; return the gradient norm.

    `when` is a condition on the device: `when=self.step % 5 == 0`. `transform(gradients,
    variables)`, or a list of such functions, changes the gradients, after they were averaged
    over replicas; `loopwright.components.gradients` has some.
    """
    variables = trainable(model_or_variables)
    if _is_dry_run(optimizer, variables):
        return tf.zeros(())
    _build(optimizer, variables)
    scale = _loss_scale(optimizer)
    loss = tf.convert_to_tensor(loss)
    # Scaling the loss after the tape was left would give no gradient at all.
    outer = None if scale is None else tf.cast(scale, loss.dtype)
    gradients = tape.gradient(loss, variables, output_gradients=outer)
    gradients, variables = present(gradients, variables)
    return _update(gradients, variables, optimizer, scale, when, transform)


@_as_written
def apply(
    gradients: Sequence[Any],
    variables: Sequence[Any],
    optimizer: keras.optimizers.Optimizer,
    *,
    when: Any = True,
    transform: Transforms = None,
) -> Any:
    """Update variables like `minimize`, from gradients that you computed; return their norm."""
    gradients, variables = list(gradients), list(variables)
    if len(gradients) != len(variables):
        raise StepError(
            "apply needs one gradient per variable.",
            expected=f"{len(variables)} gradients, one for each variable",
            received=f"{len(gradients)} gradients",
            do="pass both lists in the same order",
        )
    if _is_dry_run(optimizer, variables):
        return tf.zeros(())
    _build(optimizer, variables)
    gradients, variables = present(gradients, variables)
    scale = _loss_scale(optimizer)
    if scale is not None:
        # A LossScaleOptimizer divides by its scale; these gradients are not scaled yet.
        gradients = [times(gradient, scale) for gradient in gradients]
    return _update(gradients, variables, optimizer, scale, when, transform)


def build_optimizers(requested: list[context.Update]) -> None:
    """Build every optimizer of a dry run, for all variables it was given."""
    by_optimizer: dict[int, tuple[Any, dict[int, Any]]] = {}
    for optimizer, variables in requested:
        _, known = by_optimizer.setdefault(id(optimizer), (optimizer, {}))
        known |= {id(variable): variable for variable in variables}
    for optimizer, known in by_optimizer.values():
        if not optimizer.built:
            _build(optimizer, list(known.values()))


def _is_dry_run(optimizer: Any, variables: list[Any]) -> bool:
    step = context.current()
    if step.requested is not None:
        step.requested.append((optimizer, variables))
    if not step.updates:
        step.record(variables, [tf.zeros(()) for _ in variables])
    return not step.updates


def _build(optimizer: keras.optimizers.Optimizer, variables: list[Any]) -> None:
    if not optimizer.built:
        # Keras calls an optimizer built before it is: cut in two, it stays without its slots.
        with tf.init_scope(), blocked():
            optimizer.build(variables)


def _loss_scale(optimizer: keras.optimizers.Optimizer) -> Any:
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return tf.convert_to_tensor(optimizer.dynamic_scale)
    return optimizer.loss_scale_factor


def _update(
    gradients: list[Any],
    variables: list[Any],
    optimizer: keras.optimizers.Optimizer,
    scale: Any,
    when: Any,
    transform: Transforms,
) -> Any:
    step = context.current()
    if step.fraction is not None:
        gradients = _reduce(gradients, step.fraction)
    unscaled = gradients if scale is None else [times(g, 1.0 / scale) for g in gradients]
    rows = [_rows_once(gradient) for gradient in unscaled]
    norm = tf.linalg.global_norm(rows)
    if step.watch is not None:
        norms = [tf.norm(tf.cast(each, norm.dtype)) for each in rows]
        step.record(variables, norms, unscaled)
    if transforms := as_list(transform):
        if not tf.executing_eagerly():  # `if` on a tensor becomes an operation, as in the step
            transforms = [tensorflow_internals.autograph(function) for function in transforms]
        with _replicas_draw_alike():
            gradients, variables = transformed(transforms, unscaled, variables)
        if scale is not None:
            gradients = [times(gradient, scale) for gradient in gradients]

    if step.reduced is not None:
        _apply_on_replicas(gradients, variables, optimizer, when, step.reduced)
    else:
        _run_if(when, lambda: optimizer.apply(gradients, variables))
    return norm


def _run_if(when: Any, run: Callable[[], Any]) -> None:
    """Call `run` on a condition: a bool, or a tensor on the device."""
    if isinstance(when, bool):
        if when:
            run()
    else:
        tf.cond(tf.cast(when, tf.bool), lambda: _nothing(run()), lambda: _nothing(None))


def _replicas_draw_alike() -> contextlib.AbstractContextManager[Any]:
    """Return a context in which what is done to reduced gradients is the same on all replicas."""
    return context.entered(replace(context.current(), draws_alike=True))


def _reduce(gradients: list[Any], fraction: Any) -> list[Any]:
    """Return the mean over all examples of all replicas; a replica without any adds nothing."""

    def weighted(values: Any) -> Any:
        weight = tf.cast(fraction, values.dtype)
        return tf.where(weight > 0, values * weight, tf.zeros_like(values))

    shares = [_map_values(weighted, gradient) for gradient in gradients]
    replica = tf.distribute.get_replica_context()
    return list(replica.all_reduce(tf.distribute.ReduceOp.SUM, shares))


def _apply_on_replicas(
    gradients: list[Any],
    variables: list[Any],
    optimizer: keras.optimizers.Optimizer,
    when: Any,
    reduced: Callable[[], contextlib.AbstractContextManager[None]],
) -> None:
    """Apply gradients that are equal on all replicas.

    Every branch is taken across replicas: `tf.distribute` refuses a `tf.cond` inside a replica
    whose branch updates mirrored variables.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    _require_settings_for_replicas(optimizer, inner)
    steps = inner.gradient_accumulation_steps

    def apply_each(strategy: Any, per_replica: Any) -> None:
        def apply_one(values: Any) -> None:
            accumulated = keras_optimizers.without_accumulation(inner)
            with reduced(), accumulated, _replicas_draw_alike():
                optimizer.apply(values, variables)

        strategy.extended.call_for_each_replica(apply_one, args=(per_replica,))

    def accumulate_or_apply(strategy: Any, per_replica: Any) -> None:
        sums = keras_optimizers.accumulators(inner, variables)
        counter = keras_optimizers.update_counter(inner)

        def add() -> Any:
            for total, gradient in zip(sums, per_replica, strict=True):
                strategy.extended.update(
                    total, lambda v, g: v.assign_add(tf.convert_to_tensor(g)), args=(gradient,)
                )
            return _nothing(counter.assign_add(1))

        def apply_mean() -> Any:
            def mean(values: Any) -> Any:
                return [(v + total) / steps for v, total in zip(values, sums, strict=True)]

            apply_each(strategy, strategy.extended.call_for_each_replica(mean, (per_replica,)))
            for total in sums:
                strategy.extended.update(total, lambda v: v.assign(tf.zeros_like(v)))
            return _nothing(None)

        tf.cond((counter + 1) % steps == 0, apply_mean, add)

    def across(strategy: Any, per_replica: Any, condition: Any) -> None:
        run = accumulate_or_apply if steps else apply_each
        if not isinstance(condition, bool):
            condition = strategy.experimental_local_results(condition)[0]
        _run_if(condition, lambda: run(strategy, per_replica))

    replica = tf.distribute.get_replica_context()
    if not isinstance(when, bool) and tensorflow_internals.workers(replica.strategy)[0] > 1:
        # The first of all replicas decides, for those on other machines too.
        asked = tf.cast(tf.cast(when, tf.bool), tf.float32)
        first = tf.cast(replica.replica_id_in_sync_group, tf.int32) == 0
        when = replica.all_reduce(tf.distribute.ReduceOp.SUM, tf.where(first, asked, 0.0))
    replica.merge_call(across, args=(gradients, when))


def _require_settings_for_replicas(optimizer: Any, inner: Any) -> None:
    refused = {
        "ema_overwrite_frequency": inner.use_ema and inner.ema_overwrite_frequency,
        "gradient_accumulation_steps inside a LossScaleOptimizer": (
            inner is not optimizer and inner.gradient_accumulation_steps
        ),
    }
    for setting, is_used in refused.items():
        if is_used:
            raise ConfigurationError(
                f"{type(inner).__name__} uses {setting}, which cannot run on several replicas.",
                expected="an optimizer without it, or one replica",
                received=f"{tf.distribute.get_strategy().num_replicas_in_sync} replicas",
                do=f"leave {setting.split()[0]} out, or train without a strategy",
            )


def _map_values(function: Callable[[Any], Any], gradient: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(function(gradient.values), gradient.indices, gradient.dense_shape)
    return function(gradient)


def _rows_once(gradient: Any) -> Any:
    """Return the rows of an embedding's gradient, with those of the same index added up."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    rows, position = tf.unique(gradient.indices)
    return tf.math.unsorted_segment_sum(gradient.values, position, tf.shape(rows)[0])


def times(gradient: Any, factor: Any) -> Any:
    """Return a gradient, dense or of some rows, multiplied by a number."""
    return _map_values(lambda values: values * tf.cast(factor, values.dtype), gradient)


def _nothing(_: Any) -> Any:
    return tf.constant(0)


def trainable(model_or_variables: Any) -> list[Any]:
    """Return the variables to update: those of a layer or of several, or the given ones."""
    if isinstance(model_or_variables, keras.Layer):
        variables = list(model_or_variables.trainable_variables)
        name = f"The model {model_or_variables.name!r}"
    else:
        given = list(model_or_variables)
        layers = all(isinstance(item, keras.Layer) for item in given)
        variables = [v for m in given for v in m.trainable_variables] if layers else given
        name = "The list of variables given to minimize"
    if not variables:
        raise StepError(
            f"{name} has nothing to train.",
            expected="at least one trainable variable",
            received="none: no weights, not built, or trainable=False everywhere",
            do="call the model inside the tape before minimize, or set .trainable = True",
        )
    return variables


def present(gradients: Sequence[Any], variables: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Return the pairs that have a gradient; warn of the variables that have none."""
    missing = [v for g, v in zip(gradients, variables, strict=True) if g is None]
    names = ", ".join(map(variable_name, missing))
    if len(missing) == len(gradients):
        raise StepError(
            "No variable has a gradient: the loss does not depend on any of them.",
            expected="a loss computed from these variables, inside the GradientTape",
            received=f"None for every one of: {names}",
            do="compute predictions and loss inside `with tf.GradientTape() as tape:`, with "
            "TensorFlow functions (no .numpy(), argmax or rounding in between)",
        )
    if missing:
        warn(
            _NO_GRADIENT,
            message(
                f"{len(missing)} of {len(gradients)} variables have no gradient, and are not "
                f"updated: {names}.",
                do="leave them out of minimize if that is intended; otherwise check that the loss "
                "uses what they compute",
            ),
        )
    pairs = [(g, v) for g, v in zip(gradients, variables, strict=True) if g is not None]
    return [g for g, _ in pairs], [v for _, v in pairs]
