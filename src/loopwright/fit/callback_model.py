"""The model that callbacks see, with the task's optimizer, `evaluate` and `predict`."""

from collections.abc import Callable, Sequence
from typing import Any, final

import keras
import tensorflow as tf

from loopwright.compat import keras_optimizers
from loopwright.engine.engine import Engine
from loopwright.errors import ConfigurationError
from loopwright.task import variables
from loopwright.task.keras_model import CompiledModel
from loopwright.task.task import Task, has_step


def callback_model(task: Task, engine: Engine | None = None) -> Any:
    """Return the model that callbacks see: `callback_model`, `model`, or all models in one."""
    named = getattr(task, "callback_model", None) or getattr(task, "model", None)
    if isinstance(named, keras.Model):
        return named
    models = variables.of_kind(keras.Layer, task)
    if len(models) == 1 and isinstance(models[0], keras.Model):
        return models[0]
    return _AllModels(models, task, engine)


@final
class _AllModels(keras.Model):
    """All models of a task in one, for callbacks that save or restore weights."""

    def __init__(self, models: list[keras.Layer], task: Task, engine: Engine | None) -> None:
        super().__init__(name="all_models")
        self.models = models
        self.built = True
        self._predicts = engine is not None and has_step(task, "predict_step")
        self._engine = engine

    def predict(self, x: Any, batch_size: Any = None, steps: Any = None, **_: Any) -> Any:
        """Predict with the task's `predict_step`; raise if there is none."""
        if self._engine is None or not self._predicts:
            raise self._refusal("called model.predict", "or add predict_step to the task")
        return self._engine.predict(x, batch_size=batch_size, steps=steps)

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Raise: the saved model could not be loaded."""
        weights = "or save the weights of all: ModelCheckpoint(..., save_weights_only=True)"
        raise self._refusal("saves the model", weights)

    def call(self, inputs: Any) -> Any:
        raise self._refusal("called the model")

    def _refusal(self, what: str, otherwise: str = "") -> ConfigurationError:
        named = "name the one that callbacks see in the task: self.callback_model = self.generator"
        return ConfigurationError(
            f"A callback {what}, but this task has several models.",
            expected="one model",
            received=f"{len(self.models)} models",
            do="; ".join(filter(None, [named, otherwise])),
        )


@final
class _Several:
    """Several optimizers as one attribute, like Keras' MultiOptimizer."""

    def __init__(self, optimizers: list[keras.optimizers.Optimizer], iterations: Any) -> None:
        self.optimizers, self.iterations, self.built = optimizers, iterations, True


def lend(model: Any, task: Task, engine: Engine) -> Callable[[], None]:
    """Give the model the task's optimizer and `evaluate`; return a function that undoes it.

    A compiled model keeps its own.
    """
    if isinstance(task, CompiledModel):
        return lambda: None
    had, before = hasattr(model, "optimizer"), getattr(model, "optimizer", None)
    model.optimizer = optimizer_for(model, task)
    model.evaluate = _as_keras_evaluates(engine)

    def undo() -> None:
        model.optimizer = before
        if not had:
            del model.optimizer
        vars(model).pop("evaluate", None)

    return undo


def optimizer_for(model: Any, task: Task) -> Any:
    """Return the optimizer that callbacks find in the model."""
    if isinstance(task, CompiledModel):
        return model.optimizer
    before = getattr(model, "optimizer", None)
    return getattr(task, "optimizer", None) or before or _optimizer_of(model, task)


def optimizer_scalars(optimizer: Any) -> Sequence[Any]:
    """Return the scalar variables of an optimizer, such as iterations and learning rate."""
    parts = [*getattr(optimizer, "optimizers", [optimizer])]
    found = [v for part in parts if part is not None for v in variables.variables(part)]
    counter = getattr(optimizer, "iterations", None) if len(parts) > 1 else None
    found += [counter] if isinstance(counter, tf.Variable) else []
    return [variable for variable in found if variable.shape.rank == 0]


def _as_keras_evaluates(engine: Engine) -> Callable[..., Any]:
    """Return `evaluate` with the arguments and results of Keras, run by the trainer."""

    def evaluate(
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        verbose: Any = "auto",
        sample_weight: Any = None,
        steps: int | None = None,
        *,
        return_dict: bool = False,
    ) -> Any:
        scores = engine.evaluate(x, y, sample_weight, batch_size=batch_size, steps=steps)
        values = [scores[name] for name in sorted(scores, key=lambda name: name != "loss")]
        return scores if return_dict else values[0] if len(values) == 1 else values

    return evaluate


def _optimizer_of(model: Any, task: Task) -> Any:
    """Return the optimizer that trains the model; several as one, None if there is none."""
    optimizers = variables.of_kind(keras.optimizers.Optimizer, task)
    weights = {id(weight) for weight in model.trainable_weights}
    found = [o for o in optimizers if weights & {id(v) for v in keras_optimizers.trained_by(o)}]
    found = found or optimizers
    return _Several(found, task.step_counter) if len(found) > 1 else next(iter(found), None)
