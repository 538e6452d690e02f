"""The time of a call, measured alike for models and exports. Imports no TensorFlow."""

import statistics
import time
from collections.abc import Callable

_SECONDS = 0.2
_MOST_CALLS = 50
_LEAST_CALLS = 3


def median_seconds(call: Callable[[], object]) -> float:
    """Return the median seconds of a call, after one that warms up.

    >>> 0 <= median_seconds(lambda: None) < 0.1
    True
    """
    call()
    taken, began = list[float](), time.perf_counter()
    while len(taken) < _LEAST_CALLS or (
        len(taken) < _MOST_CALLS and time.perf_counter() - began < _SECONDS
    ):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)
