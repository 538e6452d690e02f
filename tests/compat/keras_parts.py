"""A variable with its optimizer."""

from typing import Any

import keras


def one_variable(optimizer: Any) -> keras.Variable:
    """A variable in reach of the optimizer, which is built for it."""
    w = keras.Variable(0.0)
    optimizer.build([w])
    return w
