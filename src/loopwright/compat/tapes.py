"""Gradient tapes: which gradients a step asks for."""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from loopwright.compat.replacement import replaced


@contextlib.contextmanager
def watching_tapes() -> Iterator[list[tuple[Any, Any]]]:
    """Note the targets and sources of each `tape.gradient`, unless it weighs the targets itself.

    If this moves: the guard against a loss that was not reduced says nothing (tested).
    """
    original, seen = tf.GradientTape.gradient, list[tuple[Any, Any]]()

    @functools.wraps(original)
    def gradient(
        self: Any, target: Any, sources: Any, output_gradients: Any = None, **kwargs: Any
    ) -> Any:
        if output_gradients is None:
            seen.append((target, sources))
        return original(self, target, sources, output_gradients, **kwargs)

    with replaced(tf.GradientTape, "gradient", gradient):
        yield seen
