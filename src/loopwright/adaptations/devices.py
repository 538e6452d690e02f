"""Devices, and the strategies over them: memory, replicas, workers."""

from typing import Any

import tensorflow as tf
from tensorflow.python.client import device_lib


def gpu_memory_bytes() -> int | None:
    """The memory of the smallest GPU; None if there is none.

    If this moves: the memory of the host counts.
    """
    if not tf.config.list_physical_devices("GPU"):
        return None
    limits = [d.memory_limit for d in device_lib.list_local_devices() if d.device_type == "GPU"]
    return min(limits, default=None)


def workers(strategy: tf.distribute.Strategy) -> tuple[int, int]:
    """How many processes train under a strategy, and which of them this is.

    If this moves: each worker would take itself for the only one, and wait for the others (tested).
    """
    extended = strategy.extended
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return 1, 0
    return extended._num_workers, extended._id_in_cluster


def replica_numbers(variable: Any) -> tuple[range, int]:
    """Which replicas of a variable this process holds, and how many there are in all processes."""
    if not isinstance(variable, tf.distribute.DistributedValues):
        return range(1), 1
    strategy = variable.distribute_strategy
    held = len(strategy.experimental_local_results(variable))
    first = workers(strategy)[1] * held
    return range(first, first + held), strategy.num_replicas_in_sync


def mirrored_strategy(devices: list[str] | None = None) -> tf.distribute.Strategy:
    """A `MirroredStrategy` beside any others in this process.

    Each numbers its collectives from the same start, and the second one meets those of the first.
    If this moves: a second strategy in a process fails with a shape mismatch of collectives.
    """
    tf.distribute.MirroredStrategy._collective_key_base += 100_000
    return tf.distribute.MirroredStrategy(devices)
