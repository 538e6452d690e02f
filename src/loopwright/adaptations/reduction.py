"""What Keras divides, sums and draws on replicas by itself, and should not."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src.losses import loss as keras_loss

from loopwright.adaptations.optimizers import defining_class
from loopwright.adaptations.replacement import replaced
from loopwright.errors import StepError, message

_drawing = threading.local()
_FAR_APART = 0x61C88647
"""Between the seeds of two replicas: people take small numbers, one after the other."""


@contextlib.contextmanager
def losses_as_for_one_device() -> Iterator[None]:
    """Stops Keras loss objects from dividing by the number of replicas.

    Gradients are weighted by examples when they are reduced, so that plain functions, Keras
    losses and regularisation all count the same. If this moves: Keras losses weigh too little
    with several replicas, which `tests/test_strategies.py` shows.
    """
    with (
        replaced(keras_loss, "scale_loss_for_distribution", lambda value: value),
        replaced(keras_loss, "unscale_loss_for_distribution", lambda value: value),
    ):
        yield


@contextlib.contextmanager
def replicas_draw_apart(count: int) -> Iterator[None]:
    """Has each of `count` replicas draw random numbers of its own from a `SeedGenerator`.

    Keras gives every replica a copy of one seed: all would drop the same units, and a GAN would
    see as many times less noise. The copies stay equal, so that they mean the same to any number
    of replicas; the first one draws what one device draws. If this moves: replicas draw the same
    numbers again (tested).
    """
    if count == 1:
        yield
        return
    owner = keras.random.SeedGenerator
    drawn = owner.next

    def apart(self: Any, *args: Any, **kwargs: Any) -> Any:
        seed, context = drawn(self, *args, **kwargs), tf.distribute.get_replica_context()
        if context is None or getattr(_drawing, "is_alike", False):
            return seed
        number = tf.cast(context.replica_id_in_sync_group, seed.dtype) % count
        return seed + tf.stack([number * _FAR_APART, tf.zeros_like(number)])

    with replaced(owner, "next", apart):
        yield


@contextlib.contextmanager
def replicas_draw_alike() -> Iterator[None]:
    """All replicas draw the same numbers inside: what is done to reduced gradients is one for all.

    For this thread: replicas are traced in threads of their own.
    """
    before = getattr(_drawing, "is_alike", False)
    _drawing.is_alike = True
    try:
        yield
    finally:
        _drawing.is_alike = before


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
