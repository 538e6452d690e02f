"""Out of memory, in a step or while a run is saved or restored: what did not fit."""

import contextlib
import math
import re
import sys
from collections.abc import Iterator
from typing import Any

from loopwright.compat.messages import kernel_message
from loopwright.errors import CheckpointError, message


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether Python or TensorFlow could not allocate memory.

    >>> is_out_of_memory(MemoryError()), is_out_of_memory(ValueError())
    (True, False)
    """
    return isinstance(error, MemoryError) or type(error).__name__ == "ResourceExhaustedError"


@contextlib.contextmanager
def out_of_memory_explained(what: str) -> Iterator[None]:
    """Raise a `CheckpointError` that begins with `what` where memory runs out."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        reason = kernel_message(error).splitlines()
        raise CheckpointError(
            message(
                f"{what}: out of memory.",
                expected="enough free memory for the whole state of the run",
                received=reason[0] if reason else "no memory left",
                do="free memory or use a machine with more, then start again; the checkpoints are "
                "untouched",
            )
        ) from error


def allocation_in(reason: str) -> str | None:
    """Return in words what could not be allocated; None if the line is about something else.

    >>> import tensorflow
    >>> allocation_in("OOM when allocating tensor with shape[512,1024] and type float on CPU:0")
    'a tensor of (512, 1024) float32, 2.0 MB'
    >>> allocation_in("Out of memory allocating 4294967296 bytes.")
    '4.0 GB at once'
    """
    named = re.search(r"OOM when allocating tensor with shape ?\[([\d,]*)\] and type (\w+)", reason)
    if named:
        shape = tuple(map(int, filter(None, named[1].split(","))))
        # The library that raised the error; readers of run directories do without it.
        dtype: Any = sys.modules["tensorflow"].as_dtype(named[2])
        size = _bytes_in_words(math.prod(shape) * dtype.size)
        return f"a tensor of {shape} {dtype.name}, {size}"
    counted = re.search(r"[Oo]ut of memory .*?allocat\w+ ([\d,]+)(?: bytes)?", reason)
    if counted:
        return f"{_bytes_in_words(int(counted[1].replace(',', '')))} at once"
    return "no memory left" if re.search(r"\bOOM\b|[Oo]ut of memory", reason) else None


def _bytes_in_words(count: float) -> str:
    """Return a number of bytes for people.

    >>> _bytes_in_words(300), _bytes_in_words(5 * 2**20), _bytes_in_words(2**50)
    ('300 bytes', '5.0 MB', '1,024.0 TB')
    """
    if count < 1024:
        return f"{count:.0f} bytes"
    power = min(4, int(math.log(count, 1024)))
    return f"{count / 1024**power:,.1f} {('kB', 'MB', 'GB', 'TB')[power - 1]}"
