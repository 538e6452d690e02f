"""What a layer does to its weights: how they begin, what they cost, where they may go."""

import math
import random
from collections.abc import Sequence
from typing import Any, final

import keras

from loopwright.components.registration import registered


@final
@registered
class GlorotNormal(keras.initializers.Initializer):
    """Normal numbers whose spread keeps signals the same size on their way in and back.

    The standard deviation is sqrt(2 / (fan_in + fan_out)), after Glorot and Bengio, 2010. As with
    Keras' own, a seed gives the same numbers at every call.

    >>> layer = keras.layers.Dense(30, kernel_initializer=GlorotNormal(seed=1))
    """

    def __init__(self, seed: int | None = None) -> None:
        self.seed = seed
        # From Python's generator, so that keras.utils.set_random_seed decides it.
        self._drawn = random.randint(1, 10**9) if seed is None else seed

    def __call__(self, shape: Sequence[int], dtype: Any = None) -> Any:
        """New numbers for weights of this shape."""
        fan_in, fan_out = _fans(shape)
        stddev = math.sqrt(2.0 / max(fan_in + fan_out, 1))
        return keras.random.normal(shape, stddev=stddev, dtype=dtype, seed=self._drawn)

    def get_config(self) -> dict[str, Any]:
        """What `from_config` needs."""
        return {"seed": self.seed}


@final
@registered
class L1(keras.regularizers.Regularizer):
    """Costs `factor` times the sum of the weights' sizes, which drives many of them to zero.

    >>> float(L1(0.01)(keras.ops.array([[1.0, -3.0]])))
    0.03999999910593033
    """

    def __init__(self, factor: float = 0.01) -> None:
        self.factor = float(factor)

    def __call__(self, x: Any) -> Any:
        """What these weights cost."""
        return self.factor * keras.ops.sum(keras.ops.abs(x))

    def get_config(self) -> dict[str, Any]:
        """What `from_config` needs."""
        return {"factor": self.factor}


@final
@registered
class NonNegative(keras.constraints.Constraint):
    """Puts weights below zero back to zero after each update.

    >>> NonNegative()(keras.ops.array([1.0, -3.0])).numpy().tolist()
    [1.0, 0.0]
    """

    def __call__(self, w: Any) -> Any:
        """The weights as they may be."""
        return keras.ops.maximum(w, 0)


def _fans(shape: Sequence[int]) -> tuple[int, int]:
    """How many numbers flow into one output, and out of one input; kernels of convolutions too.

    >>> _fans((3, 3, 8, 16)), _fans((5,))
    ((72, 144), (5, 5))
    """
    if len(shape) < 2:
        size = math.prod(shape)
        return size, size
    field = math.prod(shape[:-2])
    return field * shape[-2], field * shape[-1]
