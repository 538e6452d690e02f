"""Errors of a `tf.data` pipeline: the damaged file, or the line of the user's code."""

import contextlib
import itertools
import time
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from loopwright.compat import messages, step_errors, tensorflow_internals
from loopwright.compat.lines import node_in, place_among, place_of_node
from loopwright.data import stream
from loopwright.data.source import Feed
from loopwright.errors import DataError, message

_MOST_FILES = 10_000
_MOST_SECONDS_OF_LOOKING = 30.0
_MOST_NAMES = 3


@contextlib.contextmanager
def read_errors_explained(feed: Feed | None) -> Iterator[None]:
    """Turn an error of TensorFlow inside a pipeline into a `DataError`."""
    try:
        yield
    except tf.errors.DataLossError as error:
        # The traceback of TensorFlow's internals would come first and bury the message.
        raise DataError(_damaged(str(error), file_names(feed))) from None
    except tf.errors.OpError as error:
        if feed is None or not step_errors.is_of_data(error):
            raise
        text = messages.plain_text(error)
        # The line of a Python function that raised, or where the operation that failed was made.
        parts = tensorflow_internals.pipeline_parts(feed.dataset())
        place = place_among(messages.quoted_frames(text)) or place_of_node(
            node_in(text),
            [graph for part in parts for graph in part.graphs],
            lambda op: place_among([(frame.filename, frame.lineno or 0) for frame in op.traceback]),
        )
        raise DataError(
            f"The tf.data pipeline failed while a batch was read{place}.",
            expected="a pipeline that yields every batch",
            received=messages.reason_in(text),
            do="check the elements and that line; dataset.ignore_errors(log_warning=True) after "
            "it skips the elements that fail",
        ) from step_errors.cause(error)


def file_names(feed: Feed | None) -> list[str]:
    """Return the files whose names are visible in a pipeline."""
    if feed is None:
        return []
    names = dict[str, None]()
    for tensor in stream.held_tensors(feed.dataset()):
        if tensor.dtype == tf.string:
            texts: Any = tf.reshape(tensor, [-1])[:_MOST_FILES].numpy()
            names |= {text.decode(errors="replace"): None for text in texts}

    def is_file(name: str) -> bool:
        with contextlib.suppress(tf.errors.OpError, ValueError):
            return tf.io.gfile.exists(name) and not tf.io.gfile.isdir(name)
        return False

    return list(filter(is_file, names))


def _damaged(text: str, names: list[str]) -> str:
    damage = messages.damaged_record(text)

    def has_damage(name: str) -> bool:
        """Return whether reading a file again fails for the same reason, at the same byte."""
        try:
            tf.data.TFRecordDataset(name).reduce(0, lambda count, _: count)
        except tf.errors.OpError as error:
            return messages.damaged_record(str(error)) == damage
        return False

    reason = damage[0] if damage else messages.reason_in(text)
    until = time.monotonic() + _MOST_SECONDS_OF_LOOKING
    in_time = itertools.takewhile(lambda _: time.monotonic() < until, names)
    damaged = next((name for name in in_time if damage and has_damage(name)), None)
    if damaged is not None:
        received = f"{reason} in {damaged}"
    elif names:
        shown = ", ".join(names[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")
        received = f"{reason} in one of {len(names):,} files: {shown}"
    else:
        received = f"{reason} in a file whose name is not visible in the pipeline"
    return message(
        "A record of the data is damaged.",
        expected="files as they were written",
        received=received,
        do="create the file again, or leave it out. dataset.ignore_errors(log_warning=True) right "
        "after TFRecordDataset skips the rest of the file",
    )


def feed_after(feed: Feed, batches: int) -> Feed | None:
    """Return the feed after one that ran out: None at the end, another if its shape changed."""
    failure = feed.failure()
    if failure is not None:
        raise failure
    wider = feed.reopened()
    if wider is None and batches == 0:
        raise DataError(
            "This data gave no batch.",
            expected="at least one batch",
            received="data that ended at once",
            do="a generator can be read only once: pass arrays, a dataset, or an iterable",
        )
    return None if wider is None else wider[0]
