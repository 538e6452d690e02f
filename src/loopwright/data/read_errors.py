"""Errors of a `tf.data` pipeline while it is read, with the person's line that raised them."""

import contextlib
import re
from collections.abc import Iterator

import tensorflow as tf

from loopwright.compat import failures, tensorflow_internals
from loopwright.compat.error_messages import place_among
from loopwright.data.source import Feed
from loopwright.data.tfrecord import damage_explained
from loopwright.errors import DataError, message


@contextlib.contextmanager
def read_errors_explained(feed: Feed | None) -> Iterator[None]:
    """Turn an error of TensorFlow inside a pipeline into a `DataError`."""
    with damage_explained(feed):
        try:
            yield
        except tf.errors.DataLossError:
            raise
        except tf.errors.OpError as error:
            if feed is None or not failures.is_of_data(error):
                raise
            raise DataError(_failed(failures.plain_text(error), feed)) from failures.cause(error)


def _failed(text: str, feed: Feed) -> str:
    place = _raised_in(text) or failures.place_of_node(
        failures.node_in(text),
        tensorflow_internals.pipeline_graphs(feed.open()),
        lambda op: place_among([(frame.filename, frame.lineno or 0) for frame in op.traceback]),
    )
    return message(
        f"The tf.data pipeline failed while a batch was read{place}.",
        expected="a pipeline that can make every batch",
        received=failures.reason_in(text),
        do="look at the elements and at that line; dataset.ignore_errors(log_warning=True) after "
        "it skips the elements that fail",
    )


def _raised_in(text: str) -> str:
    """The line of a Python function that raised, from the traceback that TensorFlow quotes."""
    quoted = text.partition("Traceback (most recent call last):")[2]
    frames = re.findall(r'File "(.+?)", line (\d+), in ', quoted)
    return place_among([(name, int(line)) for name, line in frames])
