"""The model that callbacks see, and the optimizer they look for in it."""

from collections.abc import Callable
from typing import Any, final

import keras

from loopwright import adaptations, state
from loopwright.compiled import CompiledModel
from loopwright.errors import ConfigurationError, message
from loopwright.task import Task


def callback_model(task: Task) -> Any:
    """The model that callbacks see: the one the task names or has, else all of them in one."""
    named = getattr(task, "callback_model", None) or getattr(task, "model", None)
    if isinstance(named, keras.Model):
        return named
    models = state.of_kind(keras.Layer, task)
    if len(models) == 1 and isinstance(models[0], keras.Model):
        return models[0]
    return _AllModels(models)


@final
class _AllModels(keras.Model):
    """Every model of a task in one, for callbacks that save or restore weights."""

    def __init__(self, models: list[keras.Layer]) -> None:
        super().__init__(name="all_models")
        self.models = models
        self.built = True

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Refused: nobody could load it."""
        raise ConfigurationError(
            message(
                "A callback saves the model, but this task has several.",
                expected="one model to save, or weights only",
                received=f"{len(self.models)} models",
                do="name it in the task: self.callback_model = self.generator; or save the "
                "weights of all: ModelCheckpoint(..., save_weights_only=True)",
            )
        )

    def call(self, inputs: Any) -> Any:
        raise ConfigurationError(
            message(
                "A callback called the model, but this task has several.",
                expected="one model to call",
                received=f"{len(self.models)} models",
                do="name it in the task: self.callback_model = self.generator",
            )
        )


@final
class _Several:
    """Several optimizers where callbacks look for one, in the shape of Keras' MultiOptimizer."""

    def __init__(self, optimizers: list[keras.optimizers.Optimizer], iterations: Any) -> None:
        self.optimizers, self.iterations, self.built = optimizers, iterations, True


def lend_optimizer(model: Any, task: Task) -> Callable[[], None]:
    """Gives the model the task's optimizer while it trains: callbacks look for it there."""
    if isinstance(task, CompiledModel):
        return lambda: None
    had, before = hasattr(model, "optimizer"), getattr(model, "optimizer", None)
    model.optimizer = getattr(task, "optimizer", None) or before or _optimizer_of(model, task)

    def undo() -> None:
        model.optimizer = before
        if not had:
            del model.optimizer

    return undo


def _optimizer_of(model: Any, task: Task) -> Any:
    """The optimizer that trains the model; several in one if there are several, None if none."""
    optimizers = state.of_kind(keras.optimizers.Optimizer, task)
    weights = {id(weight) for weight in model.trainable_weights}
    found = [o for o in optimizers if weights & {id(v) for v in adaptations.trained_by(o)}]
    found = found or optimizers
    return _Several(found, task.step_counter) if len(found) > 1 else next(iter(found), None)
