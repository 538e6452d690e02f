"""Components are known to Keras by name: it saves them, and loads them again."""

from collections.abc import Callable
from typing import Any, TypeVar

import keras

T = TypeVar("T", bound=Callable[..., Any])


def registered(part: T) -> T:
    """Register a class or function, so that Keras can save it by name and load it again."""
    return keras.saving.register_keras_serializable(package="loopwright")(part)
