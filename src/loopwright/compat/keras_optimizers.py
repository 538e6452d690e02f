"""Internals of Keras optimizers, and what Keras does differently with several replicas."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from loopwright.compat import internals
from loopwright.compat.internals import Function, replaced, uses
from loopwright.errors import StepError
from loopwright.loop.signals import blocked

keras_loss = internals.module("keras.src.losses.loss")


@uses("keras.Optimizer.iterations", "keras.Optimizer.gradient_accumulation_steps")
@contextlib.contextmanager
def without_accumulation(optimizer: keras.optimizers.Optimizer) -> Iterator[None]:
    """Make one `apply` of an accumulating optimizer an ordinary update, in this thread.

    Keras' own accumulation branches inside a replica, which `tf.distribute` refuses. Its
    `iterations` must still count updates, not calls: Adam and schedules read it.
    """
    steps = optimizer.gradient_accumulation_steps
    if not steps:
        yield
        return
    counter = update_counter(optimizer)

    def return_instead(value: Callable[[], Any]) -> Callable[[Function], Function]:
        return lambda original: lambda self: value() if self is optimizer else original(self)

    nothing, updates = return_instead(lambda: None), return_instead(lambda: counter // steps)
    with (
        replaced(keras.Optimizer, "gradient_accumulation_steps", nothing, is_field=True),
        replaced(keras.Optimizer, "iterations", updates),
    ):
        yield


@dataclass(frozen=True)
class Applied:
    """One update by an optimizer."""

    optimizer: Any
    variables: list[Any]
    gradients: list[Any]


@uses("keras.Optimizer.apply")
@contextlib.contextmanager
def watching_applies() -> Iterator[list[Applied]]:
    """Record each `apply` and `apply_gradients` of an optimizer, with its arguments.

    An optimizer that is not built yet is built at once, outside of the graph: some create variables
    there that no graph may create, and the graph of a trace would keep the value that
    ScheduleFreeAdamW assigns, but never run it.
    """
    seen = list[Applied]()

    def build_first(original: Function, *, is_recorded: bool = False) -> Function:
        def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
            grads = list(grads)
            if trainable_variables is not None:
                trainable_variables = list(trainable_variables)
                if grads and not self.built:
                    with blocked(), tf.init_scope():
                        self.build(trainable_variables)
            if is_recorded:
                seen.append(Applied(self, trainable_variables or [], grads))
            return original(self, grads, trainable_variables)

        return apply

    record = functools.partial(build_first, is_recorded=True)
    with (
        replaced(keras.Optimizer, "apply", record),
        replaced(keras.optimizers.LossScaleOptimizer, "apply", build_first),
        replaced(keras.optimizers.MultiOptimizer, "apply", build_first),
    ):
        yield seen


@uses("keras.Optimizer._accumulated_gradients", "keras.Optimizer._get_variable_index")
def accumulators(optimizer: keras.optimizers.Optimizer, variables: list[Any]) -> list[Any]:
    """Return the optimizer's own gradient accumulators for `variables`, as `tf.Variable`s."""
    stored, index_of = optimizer._accumulated_gradients, optimizer._get_variable_index
    return [stored[index_of(variable)].value for variable in variables]


@uses("keras.Optimizer._trainable_variables")
def trained_by(optimizer: keras.optimizers.Optimizer) -> list[Any]:
    """Return the variables an optimizer was built for, in its own order."""
    return list(optimizer._trainable_variables)


@uses("keras.Optimizer._learning_rate")
def learning_rate_of(optimizer: keras.optimizers.Optimizer) -> Any:
    """Return the learning rate an optimizer was given: a variable, a schedule or a function."""
    return optimizer._learning_rate


@uses("keras.Optimizer._learning_rate")
@contextlib.contextmanager
def rate_replaced(optimizer: keras.optimizers.Optimizer, rate: Callable[[], Any]) -> Iterator[None]:
    """Make `rate()` the learning rate of an optimizer, whatever it was given, until the end.

    Its variables stay what they are, the learning rate's own included: the setter of Keras would
    drop that one, and refuses to replace a schedule.
    """
    held = vars(optimizer)
    before = held["_learning_rate"]
    held["_learning_rate"] = rate
    try:
        yield
    finally:
        held["_learning_rate"] = before


@uses("keras.Optimizer._iterations")
def update_counter(optimizer: keras.optimizers.Optimizer) -> Any:
    """Return the optimizer's count of calls; `iterations` divides it by the accumulation steps."""
    return optimizer._iterations


_FAR_APART = 0x61C88647
"""Between the seeds of two replicas: users choose small numbers, one after the other."""


@uses(
    "keras.src.losses.loss.scale_loss_for_distribution",
    "keras.src.losses.loss.unscale_loss_for_distribution",
    if_moved="training with several replicas is refused, since losses would be too small",
)
@contextlib.contextmanager
def losses_as_for_one_device() -> Iterator[None]:
    """Stop Keras loss objects from dividing by the number of replicas.

    Gradients are weighted by examples when they are reduced, so that plain functions, Keras
    losses and regularization all count the same.
    """
    with (
        replaced(keras_loss, "scale_loss_for_distribution", lambda _: lambda value: value),
        replaced(keras_loss, "unscale_loss_for_distribution", lambda _: lambda value: value),
    ):
        yield


@uses(
    "keras.random.SeedGenerator.next",
    if_moved="training with several replicas is refused, since all would drop the same units",
)
def replicas_draw_apart(
    count: int, alike: Callable[[], bool] = lambda: False
) -> contextlib.AbstractContextManager[None]:
    """Have each of `count` replicas draw random numbers of its own from a `SeedGenerator`.

    Keras gives every replica a copy of one seed: all would drop the same units, and a GAN would
    see as many times less noise. The copies stay equal, so that they mean the same to any number
    of replicas; the first one draws what one device draws. Where `alike()` holds, in the thread
    of a replica, all draw what the first one draws.
    """

    def apart(original: Function) -> Function:
        def next_seed(self: Any, *args: Any, **kwargs: Any) -> Any:
            seed, context = original(self, *args, **kwargs), tf.distribute.get_replica_context()
            if context is None or alike():
                return seed
            number = tf.cast(context.replica_id_in_sync_group, seed.dtype) % count
            return seed + tf.stack([number * _FAR_APART, tf.zeros_like(number)])

        return next_seed

    if count == 1:
        return contextlib.nullcontext()
    return replaced(keras.random.SeedGenerator, "next", apart)


@uses(
    "keras.Optimizer._all_reduce_sum_gradients",
    if_moved="with one replica memory grows with each trainer; with several training is "
    "refused, since updates would be too large",
)
def optimizers_reduce_nothing(replicas: int = 1) -> contextlib.AbstractContextManager[None]:
    """Take the sum over replicas out of Keras optimizers while a step is traced.

    With one replica there is nothing to sum, but TensorFlow registers a gradient for the sum that
    it keeps for ever, and with it the whole graph. With several, `minimize` has summed already.
    """
    name = "_all_reduce_sum_gradients"
    if replicas == 1 and not hasattr(keras.Optimizer, name):
        return contextlib.nullcontext()
    return replaced(keras.Optimizer, name, lambda _: lambda self, pairs: list(pairs))


@uses("keras.Optimizer.apply", "keras.optimizers.LossScaleOptimizer.apply")
@contextlib.contextmanager
def plain_apply_refused() -> Iterator[Callable[[], contextlib.AbstractContextManager[None]]]:
    """Refuse `optimizer.apply` in a step, which does not divide by the number of replicas.

    Yields a context manager inside which it is allowed: for gradients that are reduced.
    """
    allowed = 0

    def refusing(original: Function) -> Function:
        def apply(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not allowed:
                raise StepError(
                    f"The step calls {type(self).__name__}.apply itself, with several replicas.",
                    expected="self.minimize(...) or self.apply(...), which average over replicas",
                    received="optimizer.apply or optimizer.apply_gradients",
                    do="write self.apply(gradients, variables, optimizer)",
                )
            return original(self, *args, **kwargs)

        return apply

    @contextlib.contextmanager
    def reduced() -> Iterator[None]:
        nonlocal allowed
        allowed += 1
        try:
            yield
        finally:
            allowed -= 1

    with (
        replaced(keras.Optimizer, "apply", refusing),
        replaced(keras.optimizers.LossScaleOptimizer, "apply", refusing),
    ):
        yield reduced
