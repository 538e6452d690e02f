"""One name for equal programs: however many trainers run one, XLA compiles it once.

TensorFlow finds a compiled XLA program by the name of its function, and keeps it until the process
ends. Under a name of its own, each fit of a cross-validation would compile its step again, and
leave ten megabytes behind. See decision 0027.
"""

import threading
from collections.abc import Callable
from typing import Any

from loopwright.compat import function_names

_lock = threading.Lock()
_contents: dict[str, list[str | None]] = {}
"""By program, the digest of what was traced under each number; None: not to be shared."""


def traced(program: str, trace: Callable[[], Any], *, is_shared: bool) -> Any:
    """Trace a function under the name of an equal one of this process, or of its own.

    `program` describes it in the same words in every process; whether it equals an earlier one is
    decided by all of its content. `trace` is called again where it does not.
    """
    number = _shared_number(program) if is_shared else None
    if number is not None:
        concrete = _traced_as(program, number, trace)
        if concrete is not None:
            return concrete
    with _lock:
        known = _contents.setdefault(program, [])
        known.append(None)
        number = len(known)
    with function_names.named(program, number):
        concrete = trace()
    if is_shared:
        known[number - 1] = function_names.content(concrete)
    return concrete


def _shared_number(program: str) -> int | None:
    known = _contents.get(program, [])
    return max((n for n, content in enumerate(known, start=1) if content), default=None)


def _traced_as(program: str, number: int, trace: Callable[[], Any]) -> Any:
    """Return a function traced under a known name; None if it is not what has the name."""
    try:
        with function_names.named(program, number):
            concrete = trace()
    except Exception as error:
        if function_names.is_taken(error):
            return None
        raise
    is_equal = function_names.content(concrete) == _contents[program][number - 1]
    return concrete if is_equal else None
