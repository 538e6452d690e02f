"""Out of memory while a run is saved or restored: one message for Python and TensorFlow."""

import contextlib
from collections.abc import Iterator

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
