"""One strategy of two replicas for all tests of a process: making one takes its time."""

import functools
from typing import Any

from loopwright import adaptations


@functools.cache
def mirrored() -> Any:
    return adaptations.mirrored_strategy(["CPU:0", "CPU:1"])
