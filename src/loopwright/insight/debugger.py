"""The debugger at a step: it stops at the step's first line, and at the first NaN after it."""

import bdb
import contextlib
import pdb
import types
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from loopwright.compat.error_messages import is_own
from loopwright.task.task import Task, owner

_HELP = """\
The step runs eagerly, on the state before it: `n` runs a line, `p batch` prints, `c` runs on.
`c` stops again at the first operation that gives NaN or infinity. `q` leaves."""


def debugged(task: Task, step: Callable[[], Any]) -> None:
    """Run an eager step in pdb, from the first line of `train_step`."""
    held: Any = owner(task)
    original = held.train_step
    debugger = pdb.Pdb()

    def train_step(*batch: Any) -> Any:
        return debugger.runcall(original, *batch)

    print(_HELP)
    vars(held)["train_step"] = train_step
    tf.debugging.enable_check_numerics()
    try:
        step()
    except bdb.BdbQuit:
        return
    except Exception as error:
        print(f"{type(error).__name__}: {str(error).splitlines()[0]}")
        with contextlib.suppress(bdb.BdbQuit):
            pdb.post_mortem(_own_part(error.__traceback__))
    finally:
        tf.debugging.disable_check_numerics()
        del vars(held)["train_step"]


def _own_part(traceback: types.TracebackType | None) -> types.TracebackType | None:
    """Return a traceback that ends at the innermost line of the user's code, if there is one."""
    entries = list[types.TracebackType]()
    while traceback is not None:
        entries.append(traceback)
        traceback = traceback.tb_next
    own = [
        n
        for n, each in enumerate(entries)
        if is_own(each.tb_frame.f_code.co_filename, each.tb_lineno)
    ]
    kept = entries[: own[-1] + 1] if own else entries
    found: types.TracebackType | None = None
    for each in reversed(kept):
        found = types.TracebackType(found, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return found
