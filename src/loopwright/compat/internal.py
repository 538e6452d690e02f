"""One use of an internal of Keras or TensorFlow, and what follows if it moves."""

from dataclasses import dataclass
from typing import Literal

Outcome = Literal["degrades", "refuses", "fails"]


@dataclass(frozen=True)
class Internal:
    """What one function of `compat/` depends on."""

    used_by: str
    """Module and function: `keras_optimizers.trained_by`."""
    why: str
    if_moved: str
    names: tuple[str, ...] = ()
    """Where the internals are; empty for texts of messages, which only tests can check."""
    outcome: Outcome = "degrades"
    """`refuses`: a clear error where numbers would be wrong. `fails`: there is no fallback."""
