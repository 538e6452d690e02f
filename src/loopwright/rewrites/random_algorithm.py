"""Random numbers under XLA on a CPU: by an algorithm chosen while the step is traced.

Keras asks for `auto_select`, which gives the numbers of Philox under XLA on a CPU and takes about
thirty times as long. Threefry gives other numbers, faster still; it has no kernel outside XLA.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Literal

import tensorflow as tf

from loopwright.compat import internals
from loopwright.compat.internals import replaced, uses

random_ops_util = internals.module("tensorflow.python.ops.random_ops_util")


def is_available() -> bool:
    """Return whether there is a function in which the algorithm can be chosen."""
    return hasattr(random_ops_util, "get_key_counter_alg")


@uses("tensorflow.python.ops.random_ops_util.get_key_counter_alg", if_moved="slower")
@contextlib.contextmanager
def drawing_by(
    algorithm: Literal["philox", "threefry"], is_free: Callable[[], bool]
) -> Iterator[None]:
    """Draw random numbers by an algorithm where the step leaves it open, and `is_free` allows it.

    Elsewhere they are drawn by Philox.
    """
    util: Any = random_ops_util

    def by_name(original: Callable[..., Any]) -> Callable[..., Any]:
        def choose(seed: Any, alg: Any) -> Any:
            if alg not in (None, "auto_select", util.Algorithm.AUTO_SELECT):
                return original(seed, alg)
            seed = tf.convert_to_tensor(seed)
            return original(seed, algorithm if is_free() and _fits_threefry(seed) else "philox")

        return choose

    with replaced(util, "get_key_counter_alg", by_name):
        yield


def _fits_threefry(seed: Any) -> bool:
    """Return whether a seed keeps its meaning: Threefry takes the lower 32 bits of each number.

    What is drawn by a constant seed is computed once, by kernels that only Philox has.
    """
    return seed.dtype.size == 4 and tf.get_static_value(seed) is None
