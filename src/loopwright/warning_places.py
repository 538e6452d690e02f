"""Warnings that point at the line of the person who can change it."""

import sys
import sysconfig
import warnings
from pathlib import Path
from types import FrameType

from loopwright.errors import LoopwrightWarning

_HERE = str(Path(__file__).parent)
_INSTALLED = tuple(
    path
    for kind in ("stdlib", "platstdlib", "purelib", "platlib")
    if (path := sysconfig.get_paths().get(kind))
)
_GENERATED = ("__autograph_generated", "<frozen ", "<string>")


def warn_at_call(warning: str | Warning) -> None:
    """Warn at the innermost line that is neither ours nor installed: of the step, or of `fit`."""
    stacklevel, frame = 2, sys._getframe(1)
    while _is_foreign(frame) and frame.f_back is not None:
        stacklevel, frame = stacklevel + 1, frame.f_back
    if _is_foreign(frame):
        stacklevel = 2  # a thread of TensorFlow's, or the command line: nobody's line
    category = None if isinstance(warning, Warning) else LoopwrightWarning
    warnings.warn(warning, category, stacklevel=stacklevel)


def _is_foreign(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    if name.startswith((_HERE, *_INSTALLED)):
        return True
    # `python -c` runs a person's program under a name that generated code has too.
    is_program = frame.f_globals.get("__name__") == "__main__"
    return not is_program and any(part in name for part in _GENERATED)
