"""TensorFlow's profiler: what it recorded, read from its own file without another package."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from loopwright.compat import internals
from loopwright.compat.internals import uses
from loopwright.errors import ConfigurationError

xplane_pb2: Any = internals.module("tensorflow.tsl.profiler.protobuf.xplane_pb2")
_PICOSECONDS = 1e12


@dataclass(frozen=True)
class Recorded:
    """One thing that a thread or a device did."""

    name: str
    """Of an operation its path and its type: `model/dense/MatMul:MatMul`."""
    thread: str
    start: float
    seconds: float


@contextlib.contextmanager
def profiling(directory: Path) -> Iterator[None]:
    """Record what TensorFlow does, into files that TensorBoard shows."""
    options = tf.profiler.experimental.ProfilerOptions(
        host_tracer_level=2, python_tracer_level=0, device_tracer_level=1
    )
    try:
        tf.profiler.experimental.start(str(directory), options)
    except tf.errors.AlreadyExistsError as error:
        raise ConfigurationError(
            "Another profiler runs in this process.",
            expected="one at a time",
            received="a profile that was started and not stopped",
            do="leave out keras.callbacks.TensorBoard(profile_batch=...), or stop the other "
            "one: tf.profiler.experimental.stop()",
        ) from error
    try:
        yield
    finally:
        tf.profiler.experimental.stop()


@uses("tensorflow.tsl.profiler.protobuf.xplane_pb2.XSpace")
def recorded(directory: Path) -> list[Recorded]:
    """Return everything in the newest profile below a directory, in the order of its threads."""
    files = sorted(directory.glob("plugins/profile/*/*.xplane.pb"))
    if not files:
        return []
    space = xplane_pb2.XSpace.FromString(files[-1].read_bytes())
    found = list[Recorded]()
    for plane in space.planes:
        if not plane.name.startswith(("/host:CPU", "/device:")):
            continue
        names = {key: each.name for key, each in plane.event_metadata.items()}
        for number, line in enumerate(plane.lines):
            thread = f"{plane.name} {number} {line.name}"
            for event in line.events:
                start = line.timestamp_ns / 1e9 + event.offset_ps / _PICOSECONDS
                seconds = event.duration_ps / _PICOSECONDS
                found.append(Recorded(names.get(event.metadata_id, ""), thread, start, seconds))
    return found
