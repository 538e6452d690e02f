"""What TensorFlow's profiler recorded, read from its own file without another package."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loopwright.compat import internals
from loopwright.compat.internals import uses

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
