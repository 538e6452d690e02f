"""What optimizers of Keras keep to themselves: accumulators, counters, variables."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf
from keras.src.losses import loss as keras_loss

from loopwright.compat.tensorflow_internals import replaced
from loopwright.errors import StepError, message


@contextlib.contextmanager
def without_accumulation(optimizer: keras.optimizers.Optimizer) -> Iterator[None]:
    """Makes one `apply` of an accumulating optimizer an ordinary update.

    Keras' own accumulation branches inside a replica, which `tf.distribute` refuses. Its
    `iterations` must go on counting updates, not calls: Adam and schedules read it.
    If this moves: accumulation differs between one and several replicas (tested).
    """
    steps = optimizer.gradient_accumulation_steps
    if not steps:
        yield
        return
    owner = defining_class("iterations")
    original = owner.iterations

    def iterations(self: Any) -> Any:
        return self._iterations // steps if self is optimizer else original.fget(self)

    with (
        replaced(optimizer, "gradient_accumulation_steps", None),
        replaced(owner, "iterations", property(iterations)),
    ):
        yield


@dataclass(frozen=True)
class Applied:
    """One update by an optimizer."""

    optimizer: Any
    variables: list[Any]
    gradients: list[Any]


@contextlib.contextmanager
def watching_applies() -> Iterator[list[Applied]]:
    """Note each `apply` and `apply_gradients` of an optimizer, with what it was given.

    If this moves: the guards against unrolled loops and against two optimizers for one variable
    miss updates that a step makes by itself.
    """
    owner = defining_class("apply")
    original, seen = owner.apply, list[Applied]()

    # AutoGraph leaves functions of Keras alone: `wraps` lets this pass as such.
    @functools.wraps(original)
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
        grads = list(grads)
        seen.append(Applied(self, trainable_variables or [], grads))
        return original(self, grads, trainable_variables)

    with replaced(owner, "apply", apply):
        yield seen


def accumulators(optimizer: keras.optimizers.Optimizer, variables: list[Any]) -> list[Any]:
    """The optimizer's own gradient accumulators for `variables`, as `tf.Variable`s.

    If this moves: an accumulating optimizer fails with several replicas (tested).
    """
    stored = optimizer._accumulated_gradients
    return [stored[optimizer._get_variable_index(variable)].value for variable in variables]


def trained_by(optimizer: keras.optimizers.Optimizer) -> list[Any]:
    """The variables an optimizer was built for, in its own order.

    If this moves: every `fit` fails (tested).
    """
    return list(optimizer._trainable_variables)


def learning_rate_of(optimizer: keras.optimizers.Optimizer) -> Any:
    """What an optimizer was given as its learning rate: a variable, a schedule or a function.

    If this moves: every `fit` fails (tested).
    """
    return optimizer._learning_rate


def update_counter(optimizer: keras.optimizers.Optimizer) -> Any:
    """The optimizer's count of calls, which `iterations` divides by the accumulation steps.

    If this moves: no step with an optimizer can be built (tested).
    """
    return optimizer._iterations


def counter_in(graph: Any, optimizer: keras.optimizers.Optimizer) -> Any:
    """The optimizer's count of calls as a graph has captured it; None if it has not.

    If this moves: the guard against a count returned as a loss says nothing (tested).
    """
    handle = update_counter(optimizer).value.handle
    return next((inner for outer, inner in graph.captures if outer is handle), None)


def defining_class(attribute: str) -> Any:
    """The class that gives Keras optimizers this attribute, where it can be replaced for all."""
    return next(cls for cls in keras.optimizers.Optimizer.__mro__ if attribute in vars(cls))


_FAR_APART = 0x61C88647
"""Between the seeds of two replicas: people take small numbers, one after the other."""


@contextlib.contextmanager
def losses_as_for_one_device() -> Iterator[None]:
    """Stops Keras loss objects from dividing by the number of replicas.

    Gradients are weighted by examples when they are reduced, so that plain functions, Keras
    losses and regularisation all count the same. If this moves: Keras losses weigh too little
    with several replicas, which `tests/distribute/test_strategies.py` shows.
    """
    with (
        replaced(keras_loss, "scale_loss_for_distribution", lambda value: value),
        replaced(keras_loss, "unscale_loss_for_distribution", lambda value: value),
    ):
        yield


@contextlib.contextmanager
def replicas_draw_apart(count: int, alike: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Has each of `count` replicas draw random numbers of its own from a `SeedGenerator`.

    Keras gives every replica a copy of one seed: all would drop the same units, and a GAN would
    see as many times less noise. The copies stay equal, so that they mean the same to any number
    of replicas; the first one draws what one device draws. Where `alike()` holds, in the thread
    of a replica, all draw what the first one draws. If this moves: replicas draw the same numbers
    again (tested).
    """
    if count == 1:
        yield
        return
    owner = keras.random.SeedGenerator
    drawn = owner.next

    def apart(self: Any, *args: Any, **kwargs: Any) -> Any:
        seed, context = drawn(self, *args, **kwargs), tf.distribute.get_replica_context()
        if context is None or alike():
            return seed
        number = tf.cast(context.replica_id_in_sync_group, seed.dtype) % count
        return seed + tf.stack([number * _FAR_APART, tf.zeros_like(number)])

    with replaced(owner, "next", apart):
        yield


@contextlib.contextmanager
def optimizers_reduce_nothing() -> Iterator[None]:
    """Takes the sum over replicas out of Keras optimizers while a step is traced.

    With one replica there is nothing to sum, but TensorFlow registers a gradient for the sum that
    it keeps for ever, and with it the whole graph. With several, `minimize` has summed already.
    If this moves: memory grows with each trainer, and updates are as many times too large as
    there are replicas (both tested).
    """
    name = "_all_reduce_sum_gradients"
    with replaced(defining_class(name), name, lambda self, pairs: list(pairs)):
        yield


@contextlib.contextmanager
def plain_apply_refused() -> Iterator[Callable[[], contextlib.AbstractContextManager[None]]]:
    """Refuses `optimizer.apply` in a step, because nobody would divide by the number of replicas.

    Yields a context manager inside which it is allowed: for gradients that are reduced.
    If this moves: it is refused no longer, and such updates are too large (tested).
    """
    allowed = 0

    def refusing(apply: Callable[..., Any]) -> Callable[..., Any]:
        def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not allowed:
                raise StepError(_own_apply(type(self).__name__))
            return apply(self, *args, **kwargs)

        return checked

    @contextlib.contextmanager
    def reduced() -> Iterator[None]:
        nonlocal allowed
        allowed += 1
        try:
            yield
        finally:
            allowed -= 1

    owners = {defining_class("apply"), keras.optimizers.LossScaleOptimizer}
    with contextlib.ExitStack() as stack:
        for owner in owners:
            stack.enter_context(replaced(owner, "apply", refusing(vars(owner)["apply"])))
        yield reduced


def _own_apply(optimizer: str) -> str:
    return message(
        f"The step calls {optimizer}.apply itself, with several replicas.",
        expected="self.minimize(...) or self.apply(...), which average over replicas",
        received="optimizer.apply or optimizer.apply_gradients",
        do="write self.apply(gradients, variables, optimizer)",
    )
