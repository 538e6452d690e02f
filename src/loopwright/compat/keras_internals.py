"""Internals of Keras: calls of layers, losses and metrics; models; counters of callbacks."""

import contextlib
import functools
import inspect
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf

from loopwright.compat import internals
from loopwright.compat.internals import Function, observed, replaced, shared, uses


@dataclass(frozen=True)
class LossCall:
    """One call of a Keras loss or metric."""

    name: str
    """As in the program: `BinaryCrossentropy`."""
    function: str
    """The function of Keras behind it: `binary_crossentropy`; empty for a function of the user."""
    labels: Any
    predictions: Any
    settings: dict[str, Any]
    """The other arguments of the function."""
    operations: list[Any]
    """An operation that the call made, for its line; empty if the call failed."""


def _note_comparison(
    into: list[LossCall], describe: Callable[..., LossCall], original: Function
) -> Function:
    """Replace a function by one that notes a comparison, and the last operation that it made."""

    def call(*args: Any, **kwargs: Any) -> Any:
        comparison = describe(*args, **kwargs)
        into.append(comparison)
        with without_keras_warnings():
            result = original(*args, **kwargs)
        graph = tf.compat.v1.get_default_graph()
        comparison.operations.extend(graph.get_operations()[-1:])
        return result

    return call


@uses("keras.losses.Loss.__call__", "keras.metrics.MeanMetricWrapper._fn")
def _by_object(caller: Any, y_true: Any, y_pred: Any, *_: Any, **__: Any) -> LossCall:
    kind = type(caller).__name__
    function: Any = getattr(caller, "fn" if isinstance(caller, keras.Loss) else "_fn", None)
    is_wrapper = kind in ("LossFunctionWrapper", "MeanMetricWrapper")
    name = getattr(function, "__name__", kind) if is_wrapper else kind
    is_of_keras = (getattr(function, "__module__", None) or "").startswith("keras.")
    of_keras = function.__name__ if is_of_keras else ""
    return LossCall(name, of_keras, y_true, y_pred, loss_arguments(caller), [])


def _by_function(function: Function, *args: Any, **kwargs: Any) -> LossCall:
    settings = dict(inspect.signature(function).bind(*args, **kwargs).arguments)
    name, labels, predictions = function.__name__, settings["y_true"], settings["y_pred"]
    return LossCall(name, name, labels, predictions, settings, [])


_SAID_BY_US = (
    r".*received `from_logits=True`|.*expected y_pred.shape to be|You are using a softmax over axis"
)


def without_keras_warnings() -> contextlib.AbstractContextManager[None]:
    """Leave out the warnings of Keras about logits: the guards give them once, not at each trace.

    The filters of Python belong to the whole process, so threads share the scope.
    """

    @contextlib.contextmanager
    def ignore() -> Iterator[None]:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", _SAID_BY_US)
            yield

    return shared(without_keras_warnings, ignore)


@uses("keras.Layer.losses")
@contextlib.contextmanager
def watching_losses() -> Iterator[Callable[[keras.Layer], bool]]:
    """Record which layers are asked for their `losses`; yield a question about one of them."""
    asked: list[keras.Layer] = []

    def was_asked(layer: keras.Layer) -> bool:
        return any(layer is inner for outer in asked for inner in layers_in(outer))

    with observed(keras.Layer, "losses", lambda _, layer: asked.append(layer)):
        yield was_asked


@dataclass(frozen=True)
class Called:
    """What a step called while it was traced."""

    layers: list[tuple[keras.Layer, Any]] = field(default_factory=list)
    """Layers and models, not those inside others, with their `training` argument."""
    outputs: list[Any] = field(default_factory=list)
    """What these layers returned."""
    losses: list[LossCall] = field(default_factory=list)
    metrics: list[LossCall] = field(default_factory=list)


@uses("keras.Layer.__call__")
@contextlib.contextmanager
def watching_calls() -> Iterator[Called]:
    """Record the layers, losses and metrics of Keras that a step calls.

    Of the metrics, those that wrap a function.
    """
    called, depth = Called(), threading.local()
    note_loss = functools.partial(_note_comparison, called.losses)
    note_metric = functools.partial(_note_comparison, called.metrics, _by_object)

    def record_layer(original: Function) -> Function:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            outer = getattr(depth, "value", 0)
            if not outer:
                called.layers.append((self, kwargs.get("training")))
            depth.value = outer + 1
            try:
                if outer:
                    return original(self, *args, **kwargs)
                with without_keras_warnings():
                    output = original(self, *args, **kwargs)
            finally:
                depth.value = outer
            called.outputs.append(output)
            return output

        return call

    with contextlib.ExitStack() as stack:
        stack.enter_context(replaced(keras.Layer, "__call__", record_layer))
        by_object = functools.partial(note_loss, _by_object)
        stack.enter_context(replaced(keras.losses.Loss, "__call__", by_object))
        stack.enter_context(replaced(keras.metrics.MeanMetricWrapper, "update_state", note_metric))
        for name, function in list(vars(keras.losses).items()):
            if inspect.isfunction(function) and "y_true" in inspect.signature(function).parameters:
                by_function = functools.partial(
                    note_loss, functools.partial(_by_function, function)
                )
                stack.enter_context(replaced(keras.losses, name, by_function))
        _refuse_whole_trainings(stack)
        yield called


@uses("keras.Layer.__call__")
def watching_outputs(
    seen: Callable[[keras.Layer, Any], None],
) -> contextlib.AbstractContextManager[None]:
    """Call `seen` with every layer that returns, inner layers first, and with its outputs."""
    return observed(keras.Layer, "__call__", lambda out, layer, *_, **__: seen(layer, out))


@uses("keras.Model.fit", if_moved="model.fit in a step ends in an error of Keras")
def _refuse_whole_trainings(stack: contextlib.ExitStack) -> None:
    """Raise where a step calls `model.fit`, `predict` or the like, which cannot be traced."""

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(f"the step calls model.{name}")

    of_batches = ("train_on_batch", "test_on_batch", "predict_on_batch")
    for name in ("fit", "evaluate", "predict", *of_batches):
        if hasattr(keras.Model, name):
            method = functools.partial(refuse, name)
            stack.enter_context(replaced(keras.Model, name, lambda _, method=method: method))


def undisplayed() -> contextlib.AbstractContextManager[Any]:
    """Keep a summary that Keras returns as text out of the cell of a notebook."""
    if "IPython" not in sys.modules:
        return contextlib.nullcontext()
    from IPython.utils.capture import capture_output

    return capture_output(stdout=False, stderr=False, display=True)


@uses(
    "keras.Layer._flatten_layers",
    if_moved="guards do not see layers inside layers that are not models",
)
def layers_in(layer: keras.Layer) -> list[keras.Layer]:
    """Return the layer and all layers inside it, at any depth."""
    flatten = getattr(layer, "_flatten_layers", None)
    return [layer, *getattr(layer, "layers", ())] if flatten is None else list(flatten())


@uses(
    "keras.Model._symbolic_build",
    if_moved="with several replicas, build a compiled model and its optimizer before training",
)
def build_compiled_model(task: Any, batch_spec: Any) -> None:
    """Create what a compiled model creates lazily, as Keras' own `fit` does before it trains."""
    batch = tf.nest.map_structure(lambda s: keras.KerasTensor(s.shape, s.dtype.name), batch_spec)
    if hasattr(task.model, "_symbolic_build"):
        task.model._symbolic_build(data_batch=batch)


@uses("keras.metrics.Accuracy._direction", if_moved="KeepBest needs an explicit mode")
def better(metric: keras.metrics.Metric) -> str | None:
    """Return `"max"` or `"min"`, whichever is better for a metric; None if the metric is silent."""
    return {"up": "max", "down": "min"}.get(getattr(metric, "_direction", None) or "")


@uses("keras.losses.MeanSquaredError._fn_kwargs", if_moved="an edit of them is not noticed")
def loss_arguments(loss: Any) -> dict[str, Any]:
    """Return what a loss or metric passes to its function; Huber's config lacks its delta."""
    return dict(getattr(loss, "_fn_kwargs", None) or {})


@uses("keras.src.trainers.compile_utils.CompileMetrics", if_moved="Keras' own error")
def without_values(metric: keras.metrics.Metric) -> bool:
    """Return whether these are metrics of `compile(metrics=...)` that no step has updated yet."""
    return type(metric).__name__ == "CompileMetrics" and not getattr(metric, "built", True)


@uses("keras.Model._loss_tracker", if_moved="a correct step is warned of an idle metric")
def is_loss_tracker(metric: keras.metrics.Metric, model: keras.Model) -> bool:
    """Return whether a metric is Keras' own mean of the loss; custom steps need not update it."""
    return metric is getattr(model, "_loss_tracker", None)


@uses("keras.src.backend.tensorflow.nn.softmax._keras_logits", if_moved="no warning")
def has_logits(tensor: Any) -> bool:
    """Return whether Keras has noted the logits that a tensor of probabilities was made from."""
    return hasattr(tensor, "_keras_logits")


@uses("keras.metrics.Metric.update_state")
@contextlib.contextmanager
def watching_updates(metrics: Sequence[keras.metrics.Metric]) -> Iterator[set[Any]]:
    """Record the metrics whose `update_state` is called, also by calling the metric."""
    updated = set[Any]()

    def note(_: Any, metric: keras.metrics.Metric, *args: Any, **kwargs: Any) -> None:
        if any(metric is known for known in metrics):
            updated.add(metric)

    kinds = {kind for metric in metrics for kind in type(metric).__mro__}
    with contextlib.ExitStack() as stack:
        for kind in kinds:
            if "update_state" in vars(kind):
                stack.enter_context(observed(kind, "update_state", note))
        yield updated


@uses("keras.Model._initial_epoch", if_moved="the note that epochs count from zero is missing")
def take_initial_epoch(model: keras.Model) -> int:
    """Return the epoch at which `BackupAndRestore` asks Keras' own `fit` to resume; 0 if none."""
    epoch = getattr(model, "_initial_epoch", None) or 0
    if epoch:
        model._initial_epoch = None
    return epoch


@uses(
    "keras.Model._layers",
    "keras.Model._metrics",
    "keras.Model._seed_generators",
    if_moved="checkpoints from before are refused",
)
def is_bookkeeping(attribute: str) -> bool:
    """Return whether Keras keeps lists in this attribute, of what other attributes hold as well."""
    return attribute in _BOOKKEEPING or is_tracking(attribute)


def is_tracking(attribute: str) -> bool:
    """Return whether `tf.Module` keeps notes about an object in this attribute."""
    return attribute.startswith("_self_")


_BOOKKEEPING = {
    *("_layers", "_metrics", "_operations", "_seed_generators", "_functional"),
    *("_variables", "_trainable_variables", "_non_trainable_variables"),
    *("_loss_tracker", "_compile_metrics", "_compile_loss"),
}


@uses("keras.callbacks.ModelCheckpoint._batches_seen_since_last_saving", if_moved="slower")
def steps_to_save(callback: Any) -> int | None:
    """Return the steps until a callback with `save_freq` saves; None if it saves by epoch."""
    if callback.save_freq == "epoch":
        return None
    seen = getattr(callback, "_batches_seen_since_last_saving", None)
    return 1 if seen is None else max(1, callback.save_freq - seen)


@uses("keras.callbacks.TensorBoard._start_batch", if_moved="every step is a stop")
def steps_to_profile(callback: Any) -> int | None:
    """Return the steps until `TensorBoard(profile_batch=...)` starts or stops its profile."""
    if not profiles(callback):
        return None
    names = ("_global_train_batch", "_start_batch", "_stop_batch")
    seen, start, stop = (getattr(callback, name, None) for name in names)
    if seen is None or start is None or stop is None:
        return 1
    return min((edge - seen for edge in (start - 1, stop) if edge > seen), default=None)


@uses("keras.callbacks.TensorBoard._should_trace", if_moved="it takes no profile")
def profiles(callback: Any) -> bool:
    """Return whether a `TensorBoard` callback profiles some batches."""
    return bool(getattr(callback, "_should_trace", False))


@uses("keras.callbacks.TensorBoard._global_train_batch", if_moved="slower")
def writes_batch(callback: Any) -> bool:
    """Return whether `TensorBoard` writes the values of the batch that has begun."""
    batch = getattr(callback, "_global_train_batch", 0)
    return callback.update_freq != "epoch" and batch % callback.update_freq == 0


@uses("keras.callbacks.TensorBoard._global_train_batch", if_moved="slower")
def count_batch(callback: Any) -> bool:
    """Begin a batch that `TensorBoard` does not write; return False if it writes the batch.

    Its own hook sets a writer for every batch, which takes longer than a step of a small model.
    """
    batch = getattr(callback, "_global_train_batch", -1) + 1
    if batch == 0 or batch % callback.update_freq == 0:
        return False
    callback._global_train_batch = batch
    return True


@uses(
    "keras.src.backend.common.global_state.get_global_attribute",
    if_moved="a rehearsal consumes numbers of keras.random without a seed",
)
def global_seed() -> tf.Variable | None:
    """Return the state from which `keras.random` without a seed draws; None if there is none yet.

    >>> draw = keras.random.uniform(())
    >>> global_seed().shape
    TensorShape([2])
    """
    get = internals.find("keras.src.backend.common.global_state.get_global_attribute")
    generator = get and get("global_seed_generator")
    return None if generator is None else generator.state.value
