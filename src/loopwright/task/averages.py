"""The averaged weights of optimizers with `use_ema`, put in place of the weights."""

import contextlib
from collections.abc import Iterator

import keras

from loopwright.compat import keras_optimizers
from loopwright.task import variables
from loopwright.task.keras_model import CompiledModel
from loopwright.task.task import Task


def finalize_averages(task: Task) -> None:
    """Puts the averaged weights of an optimizer with `use_ema` in place, as Keras does."""
    optimizers = variables.of_kind(keras.optimizers.Optimizer, task)
    if isinstance(task, CompiledModel) and isinstance(
        task.model.optimizer, keras.optimizers.Optimizer
    ):
        optimizers = [task.model.optimizer]
    for optimizer in optimizers:
        if optimizer.built:
            optimizer.finalize_variable_values(keras_optimizers.trained_by(optimizer))


@contextlib.contextmanager
def averages_in_place(task: Task) -> Iterator[None]:
    """The averaged weights of optimizers with `use_ema`, until it is left."""
    weights = [w.value for layer in variables.of_kind(keras.Layer, task) for w in layer.weights]
    before = [weight.read_value() for weight in weights]
    finalize_averages(task)
    try:
        yield
    finally:
        for weight, value in zip(weights, before, strict=True):
            weight.assign(value)
