"""Task: models, optimizers and metrics are attributes, the training step is a method.

class Regression(lw.Task):
    def __init__(self, model):
        super().__init__()
        self.model, self.optimizer = model, keras.optimizers.Nadam()

    def train_step(self, batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(y - self.model(x, training=True)))
        self.minimize(loss, self.model, self.optimizer, tape)
        return {"loss": loss}
"""

import inspect
import reprlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import keras
import tensorflow as tf

from loopwright.compat.lines import shape_text
from loopwright.errors import ConfigurationError, MissingStepError, StepError, message
from loopwright.task import gradients
from loopwright.task import variables as state
from loopwright.task.foreign_names import ATTRIBUTES, missing_attribute


@dataclass(frozen=True)
class Mean:
    """A scalar with a weight other than the number of examples: tokens, pixels.

    >>> {"loss": Mean(value=0.7, weight=120)}
    {'loss': Mean(value=0.7, weight=120)}
    """

    value: Any
    weight: Any


Scalars = Mapping[str, Any]
"""Scalars by name; a value may be a `Mean`."""


def totals(outputs: Any, step: str, examples: Any) -> dict[str, tuple[Any, Any]]:
    """Return (weighted sum, weight) by name; raise if `outputs` is not a dict of scalars."""
    if not isinstance(outputs, Mapping):
        raise StepError(
            f"{step} must return a dict of scalars.",
            expected='return {"loss": loss}',
            received="nothing (no return statement?)" if outputs is None else _kind(outputs),
            do="return the numbers to report, by name",
        )
    found: dict[str, tuple[Any, Any]] = {}
    for name, given in outputs.items():
        mean = given if isinstance(given, Mean) else Mean(given, examples)
        value = tf.cast(_scalar(step, f"{name!r}", mean.value), tf.float64)
        weight = tf.cast(_scalar(step, f"the weight of {name!r}", mean.weight), tf.float64)
        # A replica without examples may have computed 0 / 0.
        found[str(name)] = (tf.where(weight > 0, value * weight, tf.zeros_like(value)), weight)
    return found


def _scalar(step: str, what: str, value: Any) -> Any:
    try:
        tensor = tf.convert_to_tensor(value)
    except (TypeError, ValueError):
        tensor = None
    if tensor is None or not _is_number(tensor.dtype):
        is_metric = isinstance(value, keras.metrics.Metric)
        do = (
            "leave it out: the metrics of a task are reported automatically"
            if is_metric
            else f"return a number as {what}, or leave it out"
        )
    elif tensor.shape == (0,):
        # A Keras loss returns this on a replica without examples; its weight is zero.
        return tf.zeros((), tensor.dtype)
    elif tensor.shape.rank != 0:
        do = "reduce it first, for instance with tf.reduce_mean"
    else:
        return tensor
    raise StepError(
        f"{step} returned {what}, which is not a scalar number.",
        expected="one number per name",
        received=_kind(value),
        do=do,
    )


def _is_number(dtype: tf.DType) -> bool:
    return dtype.is_floating or dtype.is_integer or dtype.is_bool


def _kind(value: Any) -> str:
    if isinstance(value, tf.Tensor):
        return f"a tensor: {value.dtype.name} {shape_text(value.shape)}"
    return "None" if value is None else f"{reprlib.repr(value)} ({type(value).__name__})"


class Task:
    """Your own training: subclass it and write `train_step`."""

    reported: ClassVar[Literal["mean", "last"]] = "mean"
    """How the scalars of many steps are reported: as their mean over the examples of an epoch."""

    def train_step(self, batch: Any) -> Scalars:
        """Train on one batch; return scalars, which the trainer averages and reports."""
        raise _missing(self, "train_step", "fit")

    def test_step(self, batch: Any) -> Scalars:
        """Score one batch, for validation and `evaluate`; return scalars like `train_step`."""
        raise _missing(self, "test_step", "evaluate and validation_data")

    def predict_step(self, batch: Any) -> Any:
        """Return the predictions for one batch."""
        raise _missing(self, "predict_step", "predict")

    @property
    def step(self) -> tf.Tensor:
        """The number of steps done in the run; a tensor inside the step."""
        return self.step_counter.read_value()

    @property
    def step_counter(self) -> tf.Variable:
        """The variable behind `step`; the trainer counts with it."""
        # Created on first use, so that a subclass that forgets super().__init__() works.
        counter = self.__dict__.get("_step_counter")
        if counter is None:
            with tf.init_scope():
                counter = tf.Variable(
                    tf.zeros((), tf.int64),
                    trainable=False,
                    name="step",
                    aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
                )
            self.__dict__["_step_counter"] = counter
        return counter

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        """The metrics that the trainer resets at each epoch and reports by their names."""
        return state.of_kind(keras.metrics.Metric, self)

    def exports(self) -> dict[str, keras.Model]:
        """Return the models that `trainer.export` writes, by the names of their signatures.

        By default `serve` is `self.model`, or the only model there is.
        """
        models = state.of_kind(keras.Model, self)
        named = getattr(self, "model", None)
        chosen = (
            named if isinstance(named, keras.Model) else models[0] if len(models) == 1 else None
        )
        return {} if chosen is None else {"serve": chosen}

    def images(self) -> Mapping[str, Any]:
        """Return images to show in TensorBoard while training, by name.

        Values from 0 to 1, or bytes, as `(count, height, width, channels)`. Called at the ends of
        epochs, at most twice a minute; random numbers drawn here do not affect the training.
        """
        return {}

    minimize = staticmethod(gradients.minimize)
    apply = staticmethod(gradients.apply)

    if not TYPE_CHECKING:  # checkers have to find misspelled attributes

        def __getattr__(self, name: str) -> Any:
            if name in ATTRIBUTES:
                raise AttributeError(missing_attribute(type(self).__name__, name))
            return object.__getattribute__(self, name)  # raises what a property has raised


def owner(task: Task) -> Any:
    """Return the object whose steps run: the task, or the compiled Keras model inside it."""
    return getattr(task, "model", task) if task.reported == "last" else task


def class_name(task: Task) -> str:
    """Return the name of the user's class, for messages: `VAE`, never the task around it."""
    return type(owner(task)).__name__


def has_step(task: Task, name: Literal["train_step", "test_step", "predict_step"]) -> bool:
    """Return whether the task's class, or the task itself, defines this step."""
    return getattr(type(task), name) is not getattr(Task, name) or name in vars(task)


def require_step(
    task: Task, name: Literal["train_step", "test_step", "predict_step"], *, has_batch: bool = True
) -> None:
    """Raise if the task has no such step, or if its step takes different arguments."""
    if not has_step(task, name):
        getattr(task, name)(None)
    step = getattr(owner(task), name)
    try:
        signature = inspect.signature(getattr(step, "python_function", step))
    except (TypeError, ValueError):  # a callable without a signature
        return
    try:
        signature.bind(*([None] if has_batch else []))
    except TypeError:
        raise ConfigurationError(_wrong_arguments(task, name, signature, has_batch)) from None


def _wrong_arguments(task: Task, name: str, signature: inspect.Signature, has_batch: bool) -> str:
    title = f"{class_name(task)}.{name}"
    taken = [str(parameter).partition(":")[0] for parameter in signature.parameters.values()]
    written = f"def {name}({', '.join(['self', *taken])})"
    if not has_batch:
        return message(
            f"{title} takes a batch, but there is no data.",
            expected=f"data for fit, or a step without a batch: def {name}(self)",
            received="fit without x",
            do="pass data, or write the step without its batch argument",
        )
    if not signature.parameters:
        return message(
            f"{title} takes no batch, but it was given data.",
            expected=f"def {name}(self, batch)",
            received=written,
            do="add the argument and take the examples from it: x, y = batch"
            + ('; or call fit(None, until="1000 steps")' if name == "train_step" else ""),
        )
    return message(
        f"{title} must take one argument, the batch.",
        expected=f"def {name}(self, batch)",
        received=written,
        do="take one argument and unpack it in the step: x, y = batch",
    )


def results(task: Task, updated: Collection[keras.metrics.Metric]) -> dict[str, Any]:
    """Return the current results of the updated metrics of a task, by name."""
    found: dict[str, Any] = {}
    for metric in [metric for metric in task.metrics if metric in updated]:
        value = metric.result()
        found |= value if isinstance(value, Mapping) else {metric.name: value}
    return found


def reset(task: Task) -> None:
    """Reset the task's metrics for a new epoch."""
    for metric in task.metrics:
        metric.reset_state()


def _missing(task: Task, name: str, needed_by: str) -> MissingStepError:
    kind = class_name(task)
    returns = "the predictions" if name == "predict_step" else "a dict of scalars"
    return MissingStepError(
        f"{kind} has no {name}, which {needed_by} needs.",
        expected=f"a method `def {name}(self, batch)` that returns {returns}",
        received=f"a {kind} without one",
        do=f"add {name} to {kind}, or use lw.Supervised, which has all three steps",
    )
