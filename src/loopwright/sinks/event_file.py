"""An event file of TensorBoard, written record by record without an operation for each.

An operation of `tf.summary` costs a third of a millisecond, which is a lot beside an epoch of ten.

    file = EventFile(directory, time.time)
    file.add(scalars({"epoch_loss": 0.21}), step=3)
    file.close()
"""

import functools
import itertools
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final

import tensorflow as tf
from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]
from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]
from tensorboard.plugins.image import metadata
from tensorboard.plugins.scalar.summary_v2 import scalar_pb
from tensorboard.util import tensor_util

PREFIX = "events.out.tfevents."
_VERSION = "brain.Event:2"
_SECONDS_BETWEEN_FLUSHES = 1.0
_counted = itertools.count()


@final
class EventFile:
    """A new event file in a directory; what is added is in the file about a second later."""

    def __init__(self, directory: Path, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._flushed_at = clock()
        # As TensorFlow names them: TensorBoard reads the files of a directory in this order.
        parts = f"{int(self._flushed_at):010d}", socket.gethostname(), os.getpid(), next(_counted)
        name = PREFIX + ".".join(map(str, parts)) + ".v2"
        self._records = tf.io.TFRecordWriter(str(directory / name))
        self._write(Event(file_version=_VERSION))
        self.flush()

    def add(self, summary: Any, step: int) -> None:
        """Append a summary of a step."""
        self._write(Event(step=step, summary=summary))

    def add_graph(self, graph: Any) -> None:
        """Append the definition of a graph."""
        self._write(Event(graph_def=graph.SerializeToString()))

    def flush(self) -> None:
        """Give every record to the operating system."""
        self._records.flush()
        self._flushed_at = self._clock()

    def close(self) -> None:
        """Close the file."""
        self._records.close()

    def _write(self, event: Any) -> None:
        event.wall_time = now = self._clock()
        self._records.write(event.SerializeToString())
        if now - self._flushed_at >= _SECONDS_BETWEEN_FLUSHES:
            self.flush()


def scalars(numbers: Mapping[str, Any]) -> Any:
    """Return the summary of some numbers, by their tags."""
    summary = Summary()
    for tag, number in numbers.items():
        value = summary.value.add()
        value.CopyFrom(_scalar(tag))
        value.tensor.float_val[0] = float(number)
    return summary


@functools.lru_cache(maxsize=1024)
def _scalar(tag: str) -> Any:
    """Return a number to copy: to make one from nothing takes five times as long."""
    return scalar_pb(tag, 0.0).value[0]


def images(tag: str, pixels: Any) -> Any:
    """Return the summary of images of one size: numbers from 0 to 1, or bytes."""
    shown = tf.image.convert_image_dtype(pixels, tf.uint8, saturate=True)
    _, height, width, _ = shown.shape
    encoded = [tf.image.encode_png(image).numpy() for image in shown]
    texts = [str(width).encode(), str(height).encode(), *encoded]
    summary = Summary()
    about = metadata.create_summary_metadata(display_name=None, description=None)
    summary.value.add(tag=tag, tensor=tensor_util.make_tensor_proto(texts), metadata=about)
    return summary
