"""Under which names Keras keeps the parts of this package: `loopwright>HuberLoss`."""

from collections.abc import Callable
from typing import Any, TypeVar

import keras

T = TypeVar("T", bound=Callable[..., Any])


def registered(part: T) -> T:
    """Lets Keras save a class or function by name, and find it again where this was imported."""
    return keras.saving.register_keras_serializable(package="loopwright")(part)
