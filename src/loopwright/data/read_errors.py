"""Errors of a `tf.data` pipeline while it is read, with the person's line that raised them."""

import contextlib
import functools
import struct
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
_HEADER_BYTES, _CHECKSUM_BYTES = 12, 4


@contextlib.contextmanager
def damage_explained(feed: Feed | None) -> Iterator[None]:
    """Turns TensorFlow's complaint about a damaged file into a sentence that names the file."""
    try:
        yield
    except tf.errors.DataLossError as error:
        # The stack of TensorFlow's internals would come first and bury the sentence.
        raise DataError(_damaged(str(error), file_names(feed))) from None


def file_names(feed: Feed | None) -> list[str]:
    """The files that a pipeline was given by name, as far as they can be seen in it."""
    if feed is None:
        return []
    names = dict[str, None]()
    for tensor in stream.held_tensors(feed.open()):
        if tensor.dtype == tf.string:
            texts: Any = tf.reshape(tensor, [-1])[:_MOST_FILES].numpy()
            names |= {text.decode(errors="replace"): None for text in texts}
    return [name for name in names if _is_file(name)]


def damaged_at(names: list[str], byte: int) -> list[str]:
    """Those files that have a record at that byte which is damaged."""
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
            length, checksum, header = _header(file, begin)
            end = begin + _HEADER_BYTES + length + _CHECKSUM_BYTES
            if byte in (begin, begin + _HEADER_BYTES):  # TensorFlow names one or the other
                return _checksum(header) != checksum or end > size or not _is_whole(file, length)
            begin = end
    return False


def _header(file: Any, begin: int) -> tuple[int, int, bytes]:
    """The length of a record, its checksum, and the bytes that this is the checksum of."""
    file.seek(begin)
    read = file.read(_HEADER_BYTES).ljust(_HEADER_BYTES, b"\0")
    return *struct.unpack("<QI", read), read[:8]


def _is_whole(file: Any, length: int) -> bool:
    content = file.read(length)
    return struct.unpack("<I", file.read(_CHECKSUM_BYTES))[0] == _checksum(content)


def _checksum(content: bytes) -> int:
    """The masked CRC-32C that TensorFlow writes behind lengths and records."""
    table, crc = _crc_table(), 0xFFFFFFFF
    for byte in content:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


@functools.cache
def _crc_table() -> list[int]:
    def shifted(value: int, times: int) -> int:
        for _ in range(times):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        return value

    return [shifted(value, 8) for value in range(256)]


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
        received = f"{reason} in a file that the pipeline does not name"
    return message(
        "A record of the data is damaged.",
        expected="files as they were written",
        received=received,
        do="make the file anew, or leave it out. dataset.ignore_errors(log_warning=True) right "
        "after TFRecordDataset goes on without the rest of the file",
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
        tensorflow_internals.pipeline_graphs(feed.open()),
        lambda op: place_among([(frame.filename, frame.lineno or 0) for frame in op.traceback]),
    )
    return message(
        f"The tf.data pipeline failed while a batch was read{place}.",
        expected="a pipeline that can make every batch",
        received=runtime_errors.reason_in(text),
        do="look at the elements and at that line; dataset.ignore_errors(log_warning=True) after "
        "it skips the elements that fail",
    )


def _raised_in(text: str) -> str:
    """The line of a Python function that raised, from the traceback that TensorFlow quotes."""
    return place_among(messages.quoted_frames(text))
