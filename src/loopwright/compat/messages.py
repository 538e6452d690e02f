"""Texts of TensorFlow that Loopwright acts on. Imports no TensorFlow."""

import os
import re
from collections.abc import Iterable

_LOST_WORKER = re.compile(r"Collective|CoordinationService|WorkerService|heartbeat")
_ABORTED_BY = re.compile(r"aborted by: *([^\n]+)")
_WORKER_NOISE = re.compile(
    r"(ring_alg|base_collective_executor|local_rendezvous|coordination_service\w*)\.cc:\d+\]"
    r"|^Additional GRPC error information|^ *:UNKNOWN:Error received from peer"
    r"|^The error could be from a previous operation|\[\[\{\{node Collective"
)
MOST_SHOWN = 300
"""Characters of TensorFlow's own line: it may list every label of a batch."""

_AROUND = re.compile(
    r"Graph execution error:|Detected at node|File \"|<stack traces unavailable>|\[\["
    r"|Stack trace for op|tf2xla conversion failed|Exception encountered when calling"
    r"|Arguments received by|• |\d+ root error"
)
_BEFORE = re.compile(
    r"^(?:\(\d+\) [A-Z_]+: +)?(?:\{\{(?:function_node|node) [^}]*\}\} *)*"
    r"(?:Error in user-defined function passed to .*?: [\w:\[\]]+: )?"
)
_AFTER = re.compile(r"\s*\[(?:Op:|\[\{\{).*$")


def plain_text(error: BaseException) -> str:
    """Return the text of an error without the colours that Keras puts into it."""
    return re.sub(r"\x1b\[\d*m", "", str(error))


def reason_in(text: str) -> str:
    r"""Return the line that an operation or a layer wrote, without what stands around it.

    >>> reason_in("Graph execution error:\n\n 7 is too much\n\t [[{{node x}}]] [Op:f]")
    '7 is too much'
    >>> reason_in("{{function_node f}} {{node RestoreV2}} no such tensor [Op:RestoreV2]")
    'no such tensor'
    """
    lines = (line.strip() for line in text.splitlines())
    own = (_AFTER.sub("", _BEFORE.sub("", line)) for line in lines if not _AROUND.match(line))
    return next(filter(None, own), "an error without a text")


def system_error_number(error: BaseException, candidates: Iterable[int]) -> int | None:
    """Return the error number of the system that TensorFlow quotes in words; None if there is none.

    >>> system_error_number(RuntimeError("/runs/a; No space left on device"), [5, 28])
    28
    """
    return next((number for number in candidates if os.strerror(number) in str(error)), None)


def lost_worker(error: BaseException) -> str | None:
    """Return the reason why another worker cannot be reached; None for any other error.

    >>> lost_worker(RuntimeError("Collective ops is aborted by: peer is gone"))
    'RuntimeError: peer is gone'
    >>> lost_worker(RuntimeError("shapes do not match"))
    """
    text = str(error)
    if not _LOST_WORKER.search(text):
        return None
    reason = _ABORTED_BY.search(text)
    return f"{type(error).__name__}{f': {reason[1][:MOST_SHOWN]}' if reason else ''}"


def is_worker_noise(line: str) -> bool:
    """Return whether TensorFlow prints this line about a lost worker, which workers explain."""
    return _WORKER_NOISE.search(line) is not None


def is_too_late_to_connect(error: BaseException) -> bool:
    """Return whether a strategy was made after TensorFlow was in use."""
    return "program startup" in str(error)


def operation_with_nan(error: BaseException) -> str | None:
    """Return the operation that `tf.debugging.enable_check_numerics` stopped at."""
    found = re.search(r'eagerly-executing op "(\w+)"', str(error))
    return found[1] if found else None


def damaged_record(text: str) -> tuple[str, int] | None:
    """Return what is wrong with a TFRecord file, and at which byte; None for other damage.

    >>> damaged_record("{{node x}} corrupted record at 24 [Op:IteratorGetNext]")
    ('corrupted record at 24', 24)
    """
    found = re.search(r"(?:corrupted|truncated) record at (\d+)", text)
    return (found[0], int(found[1])) if found else None


def quoted_frames(text: str) -> list[tuple[str, int]]:
    """Return the files and lines of a Python traceback that TensorFlow quotes in a message."""
    quoted = text.partition("Traceback (most recent call last):")[2]
    return [
        (name, int(line)) for name, line in re.findall(r'File "(.+?)", line (\d+), in ', quoted)
    ]


def stateful_operation(text: str) -> str:
    """Return the operation of a pipeline that TensorFlow refuses to save; empty if not named."""
    found = re.search(r"(\w+) is stateful", text)
    return found[1] if found else ""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether Python or TensorFlow could not allocate memory.

    >>> is_out_of_memory(MemoryError()), is_out_of_memory(ValueError())
    (True, False)
    """
    return isinstance(error, MemoryError) or type(error).__name__ == "ResourceExhaustedError"
