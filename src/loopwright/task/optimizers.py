"""The optimizers of a task: hyper-parameters, learning rates and averaged weights."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf

from loopwright.compat import keras_optimizers
from loopwright.task import variables
from loopwright.task.keras_model import CompiledModel
from loopwright.task.state import preserved
from loopwright.task.task import Task

Plain = bool | int | float | str


def hyperparameters(task: Task) -> dict[str, Plain]:
    """Return the precision, and the hyper-parameters of each optimizer.

    A scheduled hyper-parameter appears by the name of its schedule.
    """
    found: dict[str, Plain] = {"precision": keras.config.dtype_policy().name}
    held = optimizers(task)
    for path, optimizer in held.items():
        prefix = "" if len(held) == 1 else f"{path}."
        config: dict[str, Any] = optimizer.get_config()
        found[f"{prefix}optimizer"] = type(optimizer).__name__
        for name, part in config.items():
            value = part.get("class_name") if isinstance(part, dict) else part
            if isinstance(value, bool | int | float | str) and name != "name":
                found[f"{prefix}{name}"] = value
    return found


def optimizers(task: Task) -> dict[str, keras.optimizers.Optimizer]:
    """Return the optimizers of a task by their paths."""
    held = {part.path: part.value for part in variables.parts(task)}
    if isinstance(task, CompiledModel):
        held = {"optimizer": task.model.optimizer}
    return {
        path: value for path, value in held.items() if isinstance(value, keras.optimizers.Optimizer)
    }


def learning_rates(held: Mapping[str, keras.optimizers.Optimizer]) -> dict[str, float]:
    """Return the current rates: `learning_rate`, or `NAME_learning_rate` of each optimizer."""
    rates = {
        # Under a strategy it is a variable that float() does not accept.
        path: float(tf.convert_to_tensor(optimizer.learning_rate))
        for path, optimizer in held.items()
        if optimizer.built
    }
    if len(rates) == 1:
        return {"learning_rate": next(iter(rates.values()))}
    return {f"{path}_learning_rate": rate for path, rate in rates.items()}


def finalize_averages(task: Task) -> None:
    """Assign the averaged weights of optimizers with `use_ema`, as Keras does."""
    for optimizer in optimizers(task).values():
        if optimizer.built:
            optimizer.finalize_variable_values(keras_optimizers.trained_by(optimizer))


def with_rates(optimizer: keras.optimizers.Optimizer) -> list[keras.optimizers.Optimizer]:
    """Return the optimizers that hold the learning rates of this one: itself, or those inside."""
    inside = getattr(optimizer, "inner_optimizer", None)
    several = getattr(optimizer, "optimizers", None)  # of a MultiOptimizer
    if inside is None and several is None:
        return [optimizer]
    return [own for one in several or [inside] for own in with_rates(one)]


def uses_averages(task: Task) -> bool:
    """Return whether an optimizer of the task averages weights."""
    held = [own for o in optimizers(task).values() for own in with_rates(o)]
    return any(getattr(optimizer, "use_ema", False) for optimizer in held)


@contextlib.contextmanager
def averages_in_place(task: Task) -> Iterator[None]:
    """Use the averaged weights of optimizers with `use_ema` inside; restore the others after."""
    held = [optimizer for optimizer in optimizers(task).values() if optimizer.built]
    weights = [v for optimizer in held for v in keras_optimizers.trained_by(optimizer)]
    with preserved(weights):
        finalize_averages(task)
        yield
