"""Layers and Keras losses: which ones a step calls, and asks for their losses."""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import keras

from loopwright.adaptations.comparisons import (
    Comparison,
    watching_comparisons,
    without_keras_warnings,
)
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
