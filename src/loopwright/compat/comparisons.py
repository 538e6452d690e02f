"""Keras losses and metrics: the labels and predictions that a step passes to them."""

import contextlib
import functools
import inspect
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from loopwright.compat.replacement import replaced


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
