"""One strategy of each size for all tests of a process: making one takes its time."""

import functools
from typing import Any

from loopwright import adaptations


@functools.cache
def mirrored(replicas: int = 2) -> Any:
    return adaptations.mirrored_strategy([f"CPU:{index}" for index in range(replicas)])
