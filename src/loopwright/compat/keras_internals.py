"""Layers and Keras losses: which ones a step calls, and asks for their losses."""

import contextlib
import functools
import inspect
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import keras
import tensorflow as tf

from loopwright.compat.tensorflow_internals import replaced


@dataclass(frozen=True)
class Comparison:
    """One call of a Keras loss or metric."""

    name: str
    """As the person knows it: `BinaryCrossentropy`."""
    function: str
    """The function of Keras behind it: `binary_crossentropy`; empty for a person's own."""
    labels: Any
    predictions: Any
    settings: dict[str, Any]
    """What the function is called with beside labels and predictions."""
    operations: list[Any]
    """An operation that the call made, for its line; empty if the call failed."""


@contextlib.contextmanager
def watching_comparisons(losses: list[Comparison], metrics: list[Comparison]) -> Iterator[None]:
    """Note each call of a Keras loss, and each update of a metric that wraps a function.

    If this moves: the guards that look at labels and predictions say nothing (tested).
    """
    loss_call, update = keras.losses.Loss.__call__, keras.metrics.MeanMetricWrapper.update_state

    # AutoGraph leaves functions of Keras alone: `wraps` lets these pass as such.
    @functools.wraps(loss_call)
    def of_loss(self: Any, y_true: Any, y_pred: Any, *args: Any, **kwargs: Any) -> Any:
        function = getattr(self, "fn", None)
        settings = dict(getattr(self, "_fn_kwargs", None) or {})
        kind = type(self).__name__
        name = getattr(function, "__name__", kind) if kind in _WRAPPERS else kind
        noted = Comparison(name, _of_keras(function), y_true, y_pred, settings, [])
        losses.append(noted)
        with without_keras_warnings(), _placed(noted):
            return loss_call(self, y_true, y_pred, *args, **kwargs)

    @functools.wraps(update)
    def of_metric(self: Any, y_true: Any, y_pred: Any, *args: Any, **kwargs: Any) -> Any:
        function, kind = self._fn, type(self).__name__
        name = getattr(function, "__name__", kind) if kind in _WRAPPERS else kind
        noted = Comparison(name, _of_keras(function), y_true, y_pred, dict(self._fn_kwargs), [])
        metrics.append(noted)
        with _placed(noted):
            return update(self, y_true, y_pred, *args, **kwargs)

    def of_function(function: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def noted(y_true: Any, y_pred: Any, *args: Any, **kwargs: Any) -> Any:
            settings = dict(signature.bind(y_true, y_pred, *args, **kwargs).arguments)
            name = function.__name__
            comparison = Comparison(name, name, y_true, y_pred, settings, [])
            losses.append(comparison)
            with without_keras_warnings(), _placed(comparison):
                return function(y_true, y_pred, *args, **kwargs)

        return noted

    with contextlib.ExitStack() as stack:
        stack.enter_context(replaced(keras.losses.Loss, "__call__", of_loss))
        stack.enter_context(replaced(keras.metrics.MeanMetricWrapper, "update_state", of_metric))
        for name, function in list(vars(keras.losses).items()):
            if inspect.isfunction(function) and _takes_labels(function):
                stack.enter_context(replaced(keras.losses, name, of_function(function)))
        yield


_WRAPPERS = ("LossFunctionWrapper", "MeanMetricWrapper")


_SAID_BY_US = (
    r".*received `from_logits=True`",
    r".*expected y_pred.shape to be",
    r"You are using a softmax over axis",
)


@contextlib.contextmanager
def without_keras_warnings() -> Iterator[None]:
    """Leave out what Keras says about logits at each trace, and the guards say once."""
    with warnings.catch_warnings():
        for text in _SAID_BY_US:
            warnings.filterwarnings("ignore", text)
        yield


@contextlib.contextmanager
def _placed(comparison: Comparison) -> Iterator[None]:
    yield
    graph = tf.compat.v1.get_default_graph()
    comparison.operations.extend(graph.get_operations()[-1:])


def _of_keras(function: Any) -> str:
    is_of_keras = (getattr(function, "__module__", None) or "").startswith("keras.")
    return function.__name__ if is_of_keras else ""


def _takes_labels(function: Callable[..., Any]) -> bool:
    return list(inspect.signature(function).parameters)[:2] == ["y_true", "y_pred"]


@contextlib.contextmanager
def watching_losses() -> Iterator[Callable[[keras.Layer], bool]]:
    """Notes which layers are asked for their `losses`; yields a question about one of them.

    If this moves: the guard against forgotten model losses says nothing.
    """
    original = keras.Layer.losses
    asked: list[keras.Layer] = []

    def losses(self: keras.Layer) -> Any:
        asked.append(self)
        return original.fget(self)

    def was_asked(layer: keras.Layer) -> bool:
        return any(layer is inner for outer in asked for inner in layers_in(outer))

    with replaced(keras.Layer, "losses", property(losses)):
        yield was_asked


@dataclass(frozen=True)
class Called:
    """What a step called while it was traced."""

    layers: list[tuple[keras.Layer, Any]] = field(default_factory=list)
    """Layers and models, not those inside others, with their `training` argument."""
    outputs: list[Any] = field(default_factory=list)
    """What these layers returned."""
    losses: list[Comparison] = field(default_factory=list)
    metrics: list[Comparison] = field(default_factory=list)


@contextlib.contextmanager
def watching_calls() -> Iterator[Called]:
    """Notes the layers, Keras losses and metrics that a step calls.

    If this moves: the guards against inference mode and swapped arguments say nothing.
    """
    called, depth = Called(), threading.local()
    layer_call = keras.Layer.__call__

    # AutoGraph leaves functions of Keras alone: `wraps` lets these pass as such.
    @functools.wraps(layer_call)
    def of_layer(self: Any, *args: Any, **kwargs: Any) -> Any:
        outer = getattr(depth, "value", 0)
        if not outer:
            called.layers.append((self, kwargs.get("training")))
        depth.value = outer + 1
        try:
            if outer:
                return layer_call(self, *args, **kwargs)
            with without_keras_warnings():
                output = layer_call(self, *args, **kwargs)
        finally:
            depth.value = outer
        called.outputs.append(output)
        return output

    with (
        replaced(keras.Layer, "__call__", of_layer),
        watching_comparisons(called.losses, called.metrics),
        _refusing_whole_trainings(),
    ):
        yield called


@contextlib.contextmanager
def _refusing_whole_trainings() -> Iterator[None]:
    """Raise where a step calls `model.fit`, `predict` or the like, which cannot be traced.

    If this moves: such a call ends in a cryptic error of Keras (tested).
    """
    with contextlib.ExitStack() as stack:
        for name in _WHOLE_TRAININGS:
            owner = next(kind for kind in keras.Model.__mro__ if name in vars(kind))
            stack.enter_context(replaced(owner, name, _refused(name, vars(owner)[name])))
        yield


_WHOLE_TRAININGS = (
    *("fit", "evaluate", "predict"),
    *("train_on_batch", "test_on_batch", "predict_on_batch"),
)


def _refused(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(f"the step calls model.{name}")

    return method


def layers_in(layer: keras.Layer) -> list[keras.Layer]:
    """The layer itself and all layers inside it, however deep.

    If this moves: no step that trains layers can be built (tested).
    """
    return list(layer._flatten_layers())


def build_compiled_model(task: Any, batch_spec: Any) -> None:
    """Creates what a compiled model makes lazily, as Keras' own `fit` does before it trains.

    If this moves: with several replicas a compiled model has to arrive built, optimizer included.
    """
    batch = tf.nest.map_structure(lambda s: keras.KerasTensor(s.shape, s.dtype.name), batch_spec)
    task.model._symbolic_build(data_batch=batch)


def better(metric: keras.metrics.Metric) -> str | None:
    """`"max"` or `"min"`, where the metric says which is better.

    If this moves: `EarlyStopping("val_accuracy")` asks for a mode.
    """
    return {"up": "max", "down": "min"}.get(getattr(metric, "_direction", None) or "")


def loss_arguments(loss: keras.losses.Loss) -> dict[str, Any]:
    """What a loss passes to its function; the config of Huber does not have its delta.

    If this moves: an edited argument of a loss goes unnoticed (tested).
    """
    return dict(getattr(loss, "_fn_kwargs", None) or {})


def without_values(metric: keras.metrics.Metric) -> bool:
    """Whether these are the metrics of `compile(metrics=...)`, and no step has updated them yet.

    If this moves: a step that forgets them fails at the end of the epoch, as in Keras (tested).
    """
    return type(metric).__name__ == "CompileMetrics" and not getattr(metric, "built", True)


def is_loss_tracker(metric: keras.metrics.Metric, model: keras.Model) -> bool:
    """Whether a metric is Keras' own mean of the loss, which a step of one's own need not update.

    If this moves: a right step of a Keras model is warned of an idle metric (tested).
    """
    return metric is getattr(model, "_loss_tracker", None)


@contextlib.contextmanager
def watching_updates(metrics: Sequence[keras.metrics.Metric]) -> Iterator[set[Any]]:
    """The metrics whose `update_state` is called while it lasts, also by calling the metric.

    If this moves: in eager steps only a metric whose values have changed counts as updated.
    """
    updated = set[Any]()

    def watching(metric: keras.metrics.Metric) -> Any:
        update = metric.update_state

        def update_state(*args: Any, **kwargs: Any) -> Any:
            updated.add(metric)
            return update(*args, **kwargs)

        return update_state

    before = [vars(metric).get("update_state") for metric in metrics]
    for metric in metrics:
        object.__setattr__(metric, "update_state", watching(metric))  # Keras would track it
    try:
        yield updated
    finally:
        for metric, own in zip(metrics, before, strict=True):
            if own is None:
                object.__delattr__(metric, "update_state")
            else:
                object.__setattr__(metric, "update_state", own)


def take_initial_epoch(model: keras.Model) -> int:
    """The epoch with which `BackupAndRestore` asks Keras' own `fit` to go on; 0 if it did not.

    If this moves: nobody is told that epochs count from zero here.
    """
    epoch = getattr(model, "_initial_epoch", None) or 0
    if epoch:
        model._initial_epoch = None
    return epoch


def is_bookkeeping(attribute: str) -> bool:
    """Whether Keras keeps lists in this attribute, of what its objects hold in others as well.

    If this moves: the names of some variables change, and checkpoints from before are refused.
    """
    return attribute in _BOOKKEEPING or attribute.startswith("_self_")


_BOOKKEEPING = frozenset(
    [
        "_layers",
        "_metrics",
        "_variables",
        "_trainable_variables",
        "_non_trainable_variables",
        "_seed_generators",
        "_functional",
        "_operations",
        "_loss_tracker",
        "_compile_metrics",
        "_compile_loss",
    ]
)


def steps_to_save(callback: Any) -> int | None:
    """Return the steps until a callback with `save_freq` saves; None if it saves by epoch.

    If this moves: every step is a stop while such a callback runs.
    """
    if callback.save_freq == "epoch":
        return None
    seen = getattr(callback, "_batches_seen_since_last_saving", None)
    return 1 if seen is None else max(1, callback.save_freq - seen)


def steps_to_profile(callback: Any) -> int | None:
    """Return the steps until `TensorBoard(profile_batch=...)` starts or stops its profile.

    If this moves: every step is a stop while such a callback runs.
    """
    if not profiles(callback):
        return None
    seen = getattr(callback, "_global_train_batch", None)
    if seen is None:
        return 1
    edges = (callback._start_batch - 1, callback._stop_batch)
    return min((edge - seen for edge in edges if edge > seen), default=None)


def profiles(callback: Any) -> bool:
    """Return whether a `TensorBoard` callback profiles some batches.

    If this moves: profiles have to be taken with `needs_every_step = True`.
    """
    return bool(getattr(callback, "_should_trace", False))


def writes_batch(callback: Any) -> bool:
    """Return whether `TensorBoard` writes the values of the batch that has begun.

    If this moves: it gets the values of all batches, and decides by itself, which takes longer.
    """
    batch = getattr(callback, "_global_train_batch", 0)
    return callback.update_freq != "epoch" and batch % callback.update_freq == 0


def count_batch(callback: Any) -> bool:
    """Begin a batch of which `TensorBoard` writes nothing; return False if it writes something.

    Its own hook sets a writer for every batch, which takes longer than a step of a small model.
    If this moves: its own hook is called for every batch.
    """
    batch = getattr(callback, "_global_train_batch", -1) + 1
    if batch == 0 or batch % callback.update_freq == 0:
        return False
    callback._global_train_batch = batch
    return True


T = TypeVar("T", bound=Callable[..., Any])


def registered(part: T) -> T:
    """Lets Keras save a class or function by name, and find it again where this was imported."""
    return keras.saving.register_keras_serializable(package="loopwright")(part)
