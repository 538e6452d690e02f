"""The only place that touches internals of Keras and TensorFlow.

Each adaptation is scoped, has a test that fails when the internal moves (`test_adaptations.py`),
and says what happens then.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src.losses import loss as keras_loss

from loopwright.errors import StepError, message


def autograph(function: Callable[..., Any]) -> Callable[..., Any]:
    """Lets `if` and `while` on tensors in a person's step become graph operations.

    A nested `tf.function` would do it too, but `merge_call` is refused inside one.
    If this moves: steps would have to be written with `tf.cond`.
    """
    api = tf.__internal__.autograph
    return api.tf_convert(function, api.control_status_ctx(), user_requested=True)


@contextlib.contextmanager
def losses_as_for_one_device() -> Iterator[None]:
    """Stops Keras loss objects from dividing by the number of replicas.

    Gradients are weighted by examples when they are reduced, so that plain functions, Keras
    losses and regularisation all count the same. If this moves: Keras losses weigh too little
    with several replicas, which `tests/test_strategies.py` shows.
    """
    names = ("scale_loss_for_distribution", "unscale_loss_for_distribution")
    with contextlib.ExitStack() as undo:
        for name in names:
            undo.callback(setattr, keras_loss, name, getattr(keras_loss, name))
            setattr(keras_loss, name, lambda value: value)
        yield


@contextlib.contextmanager
def optimizers_reduce_nothing() -> Iterator[Callable[[], contextlib.AbstractContextManager[None]]]:
    """Replaces the sum over replicas inside Keras optimizers while a step is traced.

    Yields a context manager for gradients that are reduced already; outside it a plain
    `optimizer.apply` is refused, because nobody would divide by the number of replicas.
    If this moves: updates are as many times too large as there are replicas (tested).
    """
    name = "_all_reduce_sum_gradients"
    owner = next(cls for cls in keras.optimizers.Optimizer.__mro__ if name in vars(cls))
    original = getattr(owner, name)
    reduced_already = 0

    def pass_on(self: Any, grads_and_vars: Any) -> Any:
        if not reduced_already:
            raise StepError(
                message(
                    f"The step calls {type(self).__name__}.apply itself, with several replicas.",
                    expected="self.minimize(...) or self.apply(...), which average over replicas",
                    received="optimizer.apply or optimizer.apply_gradients",
                    do="write self.apply(gradients, variables, optimizer)",
                )
            )
        return list(grads_and_vars)

    @contextlib.contextmanager
    def reduced() -> Iterator[None]:
        nonlocal reduced_already
        reduced_already += 1
        try:
            yield
        finally:
            reduced_already -= 1

    setattr(owner, name, pass_on)
    try:
        yield reduced
    finally:
        setattr(owner, name, original)


@contextlib.contextmanager
def without_accumulation(optimizer: keras.optimizers.Optimizer) -> Iterator[None]:
    """Makes one `apply` of an accumulating optimizer an ordinary update.

    Keras' own accumulation branches inside a replica, which `tf.distribute` refuses.
    """
    steps = optimizer.gradient_accumulation_steps
    optimizer.gradient_accumulation_steps = None
    try:
        yield
    finally:
        optimizer.gradient_accumulation_steps = steps


def accumulators(optimizer: keras.optimizers.Optimizer, variables: list[Any]) -> list[Any]:
    """The optimizer's own gradient accumulators for `variables`, as `tf.Variable`s."""
    stored = optimizer._accumulated_gradients
    return [stored[optimizer._get_variable_index(variable)].value for variable in variables]


def update_counter(optimizer: keras.optimizers.Optimizer) -> Any:
    """The optimizer's count of calls, which `iterations` divides by the accumulation steps."""
    return optimizer._iterations


@contextlib.contextmanager
def watching_losses() -> Iterator[Callable[[keras.Layer], bool]]:
    """Notes which layers are asked for their `losses`; yields a question about one of them.

    If this moves: the guard against forgotten model losses says nothing.
    """
    original = keras.Layer.losses
    asked: list[keras.Layer] = []

    def losses(self: keras.Layer) -> Any:
        asked.append(self)
        return original.fget(self)  # pyright: ignore[reportOptionalCall]

    def was_asked(layer: keras.Layer) -> bool:
        return any(layer is inner for outer in asked for inner in outer._flatten_layers())

    keras.Layer.losses = property(losses)  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield was_asked
    finally:
        keras.Layer.losses = original


def build_compiled_model(model: keras.Model, batch_spec: Any) -> None:
    """Creates what a compiled model makes lazily, as Keras' own `fit` does before it trains.

    If this moves: with several replicas a compiled model has to arrive built, optimizer included.
    """
    batch = tf.nest.map_structure(lambda s: keras.KerasTensor(s.shape, s.dtype.name), batch_spec)
    model._symbolic_build(data_batch=batch)
