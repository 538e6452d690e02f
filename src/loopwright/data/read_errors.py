"""Errors of a `tf.data` pipeline: the damaged file, or the line of the user's code."""

import contextlib
import tempfile
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from loopwright.compat import messages, runtime_errors, tensorflow_internals
from loopwright.compat.error_messages import place_among
from loopwright.data import stream
from loopwright.data.source import Feed
from loopwright.errors import DataError, message

_MOST_FILES = 10_000
_MOST_RECORDS_LOOKED_AT = 1_000_000
_MOST_NAMES = 3
_LENGTH_BYTES, _CHECKSUM_BYTES = 8, 4
_HEADER_BYTES = _LENGTH_BYTES + _CHECKSUM_BYTES


@contextlib.contextmanager
def damage_explained(feed: Feed | None) -> Iterator[None]:
    """Turn TensorFlow's error about a damaged record into a message that names the file."""
    try:
        yield
    except tf.errors.DataLossError as error:
        # The traceback of TensorFlow's internals would come first and bury the message.
        raise DataError(_damaged(str(error), file_names(feed))) from None


def file_names(feed: Feed | None) -> list[str]:
    """Return the files whose names are visible in a pipeline."""
    if feed is None:
        return []
    names = dict[str, None]()
    for tensor in stream.held_tensors(feed.dataset()):
        if tensor.dtype == tf.string:
            texts: Any = tf.reshape(tensor, [-1])[:_MOST_FILES].numpy()
            names |= {text.decode(errors="replace"): None for text in texts}
    return [name for name in names if _is_file(name)]


def damaged_at(names: list[str], byte: int) -> list[str]:
    """Return the files in which the record at this byte is damaged."""
    budget = iter(range(_MOST_RECORDS_LOOKED_AT))
    return [name for name in names if _is_damaged_at(name, byte, budget)]


def _is_file(name: str) -> bool:
    try:
        return tf.io.gfile.exists(name) and not tf.io.gfile.isdir(name)
    except (tf.errors.OpError, ValueError):
        return False


def _is_damaged_at(name: str, byte: int, budget: Iterator[int]) -> bool:
    with tf.io.gfile.GFile(name, "rb") as file:
        size, begin = file.size(), 0
        while begin <= byte < size and next(budget, None) is not None:
            file.seek(begin)
            header = file.read(_HEADER_BYTES)
            length = int.from_bytes(header[:_LENGTH_BYTES], "little")
            end = begin + _HEADER_BYTES + length + _CHECKSUM_BYTES
            if byte in (begin, begin + _HEADER_BYTES):  # TensorFlow reports one or the other
                return end > size or _is_damaged(header + file.read(length + _CHECKSUM_BYTES))
            begin = end
    return False


def _is_damaged(record: bytes) -> bool:
    """Return whether TensorFlow, which verifies the checksums, refuses to read a record."""
    with tempfile.NamedTemporaryFile(prefix="loopwright-") as copy:
        copy.write(record)
        copy.flush()
        try:
            return not list(tf.data.TFRecordDataset(copy.name))
        except tf.errors.DataLossError:
            return True


def _damaged(text: str, names: list[str]) -> str:
    found = messages.damaged_record(text)
    if found:
        reason, names_found = found[0], damaged_at(names, found[1])
    else:
        reason, names_found = messages.kernel_message(text).rpartition("\n")[2], []
    if names_found:
        received = f"{reason} in {_listed(names_found)}"
    elif names:
        received = f"{reason} in one of {len(names):,} files: {_listed(names)}"
    else:
        received = f"{reason} in a file whose name is not visible in the pipeline"
    return message(
        "A record of the data is damaged.",
        expected="files as they were written",
        received=received,
        do="create the file again, or leave it out. dataset.ignore_errors(log_warning=True) right "
        "after TFRecordDataset skips the rest of the file",
    )


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:_MOST_NAMES])
    return f"{shown}, ..." if len(names) > _MOST_NAMES else shown


@contextlib.contextmanager
def read_errors_explained(feed: Feed | None) -> Iterator[None]:
    """Turn an error of TensorFlow inside a pipeline into a `DataError`."""
    with damage_explained(feed):
        try:
            yield
        except tf.errors.DataLossError:
            raise
        except tf.errors.OpError as error:
            if feed is None or not runtime_errors.is_of_data(error):
                raise
            raise DataError(
                _failed(runtime_errors.plain_text(error), feed)
            ) from runtime_errors.cause(error)


def _failed(text: str, feed: Feed) -> str:
    place = _raised_in(text) or runtime_errors.place_of_node(
        runtime_errors.node_in(text),
        tensorflow_internals.pipeline_graphs(feed.dataset()),
        lambda op: place_among([(frame.filename, frame.lineno or 0) for frame in op.traceback]),
    )
    return message(
        f"The tf.data pipeline failed while a batch was read{place}.",
        expected="a pipeline that yields every batch",
        received=runtime_errors.reason_in(text),
        do="check the elements and that line; dataset.ignore_errors(log_warning=True) after "
        "it skips the elements that fail",
    )


def _raised_in(text: str) -> str:
    """Return the line of a Python function that raised, from the traceback in the message."""
    return place_among(messages.quoted_frames(text))
