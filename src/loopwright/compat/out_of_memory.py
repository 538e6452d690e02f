"""Out of memory, in a step or while a run is saved or restored: what did not fit."""

import contextlib
import math
import re
from collections.abc import Iterable, Iterator
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

    >>> allocation_in("OOM when allocating tensor with shape[512,1024] and type float on CPU:0")
    'a tensor of (512, 1024) float32, 2.0 MB'
    >>> allocation_in("Out of memory allocating 4294967296 bytes.")
    '4.0 GB at once'
    """
    named = re.search(r"OOM when allocating tensor with shape ?\[([\d,]*)\] and type (\w+)", reason)
    if named:
        shape = [int(size) for size in named[1].split(",") if size]
        return f"a tensor of {tensor_in_words(shape, _DTYPES.get(named[2], named[2]))}"
    counted = re.search(r"[Oo]ut of memory .*?allocat\w+ ([\d,]+)(?: bytes)?", reason)
    if counted:
        return f"{_bytes_in_words(int(counted[1].replace(',', '')))} at once"
    return "no memory left" if re.search(r"\bOOM\b|[Oo]ut of memory", reason) else None


def largest_tensor(operations: Iterable[Any], examples: int | None) -> Any:
    """Return the largest tensor that operations make of so many examples; None if none is known."""
    sized = [
        (size, output)
        for operation in operations
        for output in operation.outputs
        if (size := _bytes_of(output, examples)) is not None
    ]
    return max(sized, key=lambda one: one[0], default=(0, None))[1]


def shape_for(tensor: Any, examples: int | None) -> list[int] | None:
    """Return the shape of a tensor whose open sizes are those of a batch; None if unknown."""
    if tensor.shape.rank is None or (examples is None and None in tensor.shape):
        return None
    # A second open size is not the batch size: the length of a sentence, for instance.
    if tensor.shape.as_list().count(None) > 1:
        return None
    return [int(examples or 0) if size is None else int(size) for size in tensor.shape]


def tensor_in_words(shape: list[int], dtype: str) -> str:
    """Return shape, type and size of a tensor.

    >>> tensor_in_words([1024, 256], "float32")
    '(1024, 256) float32, 1.0 MB'
    """
    sizes = f"({shape[0]},)" if len(shape) == 1 else f"({', '.join(map(str, shape))})"
    width = _WIDTHS.get(dtype)
    held = "" if width is None else f", {_bytes_in_words(math.prod(shape) * width)}"
    return f"{sizes} {dtype}{held}"


def _bytes_in_words(count: float) -> str:
    """Return a number of bytes for people.

    >>> _bytes_in_words(300), _bytes_in_words(5 * 2**20), _bytes_in_words(2**50)
    ('300 bytes', '5.0 MB', '1,024.0 TB')
    """
    if count < 1024:
        return f"{count:.0f} bytes"
    power = min(4, int(math.log(count, 1024)))
    return f"{count / 1024**power:,.1f} {('kB', 'MB', 'GB', 'TB')[power - 1]}"


def _bytes_of(tensor: Any, examples: int | None) -> int | None:
    shape = shape_for(tensor, examples)
    if shape is None or tensor.dtype.name in ("resource", "variant", "string"):
        return None
    return math.prod(shape) * tensor.dtype.size


_DTYPES = {"float": "float32", "double": "float64", "half": "float16"}
"""TensorFlow's names of types in messages, where NumPy has others."""
_WIDTHS = {
    **dict.fromkeys(["float64", "int64", "uint64", "complex64"], 8),
    **dict.fromkeys(["float32", "int32", "uint32"], 4),
    **dict.fromkeys(["float16", "bfloat16", "int16", "uint16"], 2),
    **dict.fromkeys(["int8", "uint8", "bool"], 1),
}
