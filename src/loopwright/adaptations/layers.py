"""Layers and Keras losses: which ones a step calls, and asks for their losses."""

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import keras

from loopwright.adaptations.replacement import replaced


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
    losses: list[tuple[str, Any, Any]] = field(default_factory=list)
    """Keras losses by name, with their two arguments."""


@contextlib.contextmanager
def watching_calls() -> Iterator[Called]:
    """Notes the layers and Keras losses that a step calls.

    If this moves: the guards against inference mode and swapped arguments say nothing.
    """
    called, depth = Called(), threading.local()
    layer_call, loss_call = keras.Layer.__call__, keras.losses.Loss.__call__

    # AutoGraph leaves functions of Keras alone: `wraps` lets these pass as such.
    @functools.wraps(layer_call)
    def of_layer(self: Any, *args: Any, **kwargs: Any) -> Any:
        outer = getattr(depth, "value", 0)
        if not outer:
            called.layers.append((self, kwargs.get("training")))
        depth.value = outer + 1
        try:
            return layer_call(self, *args, **kwargs)
        finally:
            depth.value = outer

    @functools.wraps(loss_call)
    def of_loss(self: Any, y_true: Any, y_pred: Any, *args: Any, **kwargs: Any) -> Any:
        called.losses.append((type(self).__name__, y_true, y_pred))
        return loss_call(self, y_true, y_pred, *args, **kwargs)

    def of_function(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def noted(y_true: Any, y_pred: Any, *args: Any, **kwargs: Any) -> Any:
            called.losses.append((function.__name__, y_true, y_pred))
            return function(y_true, y_pred, *args, **kwargs)

        return noted

    with contextlib.ExitStack() as stack:
        stack.enter_context(replaced(keras.Layer, "__call__", of_layer))
        stack.enter_context(replaced(keras.losses.Loss, "__call__", of_loss))
        for name, function in list(vars(keras.losses).items()):
            if inspect.isfunction(function) and _takes_labels(function):
                stack.enter_context(replaced(keras.losses, name, of_function(function)))
        yield called


def _takes_labels(function: Callable[..., Any]) -> bool:
    return list(inspect.signature(function).parameters)[:2] == ["y_true", "y_pred"]


def layers_in(layer: keras.Layer) -> list[keras.Layer]:
    """The layer itself and all layers inside it, however deep.

    If this moves: no step that trains layers can be built (tested).
    """
    return list(layer._flatten_layers())
