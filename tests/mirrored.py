"""One strategy of each size for all tests of a process: making one takes its time."""

import functools
from typing import Any

from loopwright.compat import tensorflow_internals


@functools.cache
def mirrored(replicas: int = 2) -> Any:
    return tensorflow_internals.mirrored_strategy([f"CPU:{index}" for index in range(replicas)])
