"""What only the frames of the interpreter tell."""

import dis
import inspect
import os


def was_left_on_purpose() -> bool:
    """Whether a generator of ours is being closed because a loop over it was left by `break`.

    An exception in the body of the loop closes it as well, and looks the same from inside: only
    the instruction at which the loop is tells them apart.
    If this moves: a run that was left by `break` is not taken for finished, and goes on when it is
    started again (tested).
    """
    ours = os.path.dirname(os.path.dirname(__file__))  # not this package alone
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(ours):
        frame = frame.f_back
    if frame is None:
        return False
    leaving = {"POP_TOP", "POP_ITER"}
    codes = dis.get_instructions(frame.f_code)
    return any(code.offset == frame.f_lasti and code.opname in leaving for code in codes)
