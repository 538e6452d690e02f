"""A compiled Keras model as a task that reports the same numbers as Keras' own `fit`."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, final

import keras
import tensorflow as tf

from loopwright.errors import ConfigurationError
from loopwright.task import variables
from loopwright.task.foreign_names import warn_of_hooks
from loopwright.task.task import Task, class_name


@final
class CompiledModel(Task):
    """A task that runs a model's `train_step`, `test_step` and `predict_step` unchanged."""

    reported: ClassVar[Literal["mean", "last"]] = "last"

    def __init__(self, model: keras.Model) -> None:
        if not getattr(model, "compiled", False):
            raise ConfigurationError(
                f"The model {model.name!r} is not compiled.",
                expected="a compiled model, or a task",
                received=f"a {type(model).__name__} without compile()",
                do="call model.compile(...), or use lw.Supervised(model, loss, optimizer)",
            )
        self.model = model

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        """The model's metrics, which its class may override."""
        return list(self.model.metrics)

    def train_step(self, batch: Any) -> Any:
        """Call the model's `train_step`."""
        return self.model.train_step(batch)

    def test_step(self, batch: Any) -> Any:
        """Call the model's `test_step`."""
        return self.model.test_step(batch)

    def predict_step(self, batch: Any) -> Any:
        """Call the model's `predict_step`."""
        return self.model.predict_step(batch)


def as_task(given: Any, strategy: tf.distribute.Strategy) -> Task:
    """Return the argument of `Trainer` as a task whose variables belong to the strategy."""
    if isinstance(given, Task | keras.Model):
        task = given if isinstance(given, Task) else CompiledModel(given)
        held = [v for part in variables.parts(task) for v in variables.variables(part.value)]
        is_made_in_scope = strategy.extended.variable_created_in_scope
        if strategy.num_replicas_in_sync > 1 and not all(map(is_made_in_scope, held)):
            raise ConfigurationError(
                f"This {class_name(task)} was built outside the strategy's scope.",
                expected="models, optimizers and metrics created inside strategy.scope()",
                received="a task that was built before the scope",
                do="pass a function that builds it: Trainer(make_task, strategy=strategy)",
            )
    elif callable(given):
        with strategy.scope():
            task = as_task(given(), tf.distribute.get_strategy())
    else:
        raise ConfigurationError(
            "Trainer needs something to train.",
            expected="a Task, a compiled Keras model, or a function that makes one",
            received=f"{given!r} ({type(given).__name__})",
            do="pass lw.Supervised(model, loss, optimizer), or your own Task",
        )
    kinds = type(task).__mro__
    warn_of_hooks(kinds[: kinds.index(Task)])
    with strategy.scope():
        _ = task.step_counter
    return task


def plan_for(task: Task, plan: Any) -> Any:
    """Return the plan; with `"auto"`, a model compiled to run eagerly does so."""
    asks = isinstance(task, CompiledModel) and task.model.run_eagerly
    return "eager" if plan == "auto" and asks else plan


def as_keras_merges(logs: Any) -> Any:
    """Merge nested results into one dict, as Keras' `fit` does: sorted, the last value wins.

    The compiled metrics of a model are one metric, whose result is a dict.

    >>> as_keras_merges({"loss": 1.0, "compile_metrics": {"mae": 2.0}})
    {'mae': 2.0, 'loss': 1.0}
    """
    if not isinstance(logs, Mapping):
        return logs
    merged: dict[str, Any] = {}
    for name, value in sorted(logs.items()):
        merged |= as_keras_merges(value) if isinstance(value, Mapping) else {name: value}
    return merged


def as_keras_reports(model: keras.Model, last_logs: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `fit` shows: the metrics if the step returned only them, else the last values."""
    metrics = model.get_metrics_result()
    return dict(metrics if set(metrics) == set(last_logs) else last_logs)
