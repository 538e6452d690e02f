"""Warnings: at a line of the user's program, and by an id that silences one about a step."""

import contextlib
import sys
import sysconfig
import warnings
from collections.abc import Collection, Iterator
from pathlib import Path
from types import FrameType
from typing import Literal, get_args

from loopwright.errors import ConfigurationError, LoopwrightWarning, StepWarning, message

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


WarningId = Literal[
    "baked-in-array",
    "broadcast",
    "constant-inputs",
    "constant-labels",
    "constant-loss",
    "constant-output",
    "exploding-loss",
    "idle-metric",
    "inference-mode",
    "large-batch",
    "logits",
    "no-gradient",
    "no-update",
    "python-side-effect",
    "shared-rows",
    "shared-variables",
    "sorted-labels",
    "swapped-arguments",
    "unreduced-loss",
    "unrolled-loop",
    "unsavable-layer",
    "unscaled-images",
    "unused-losses",
    "wrong-metric",
    "zero-gradients",
    "zero-learning-rate",
]
"""What each warns of is told in `docs/debugging.md`."""
_silenced: list[frozenset[str]] = []


def warn(id: WarningId, text: str) -> None:
    """Warn about something that is probably a mistake, unless its id is silenced."""
    if not any(id in ids for ids in _silenced):
        text += f'\n  silence: Trainer(..., silence=["{id}"]), if it is meant'
        warn_at_call(StepWarning(text, id=id))


@contextlib.contextmanager
def silenced(ids: Collection[str]) -> Iterator[None]:
    """Silence these ids in the whole process: replicas are traced in threads of their own."""
    _silenced.append(frozenset(ids))
    try:
        yield
    finally:
        _silenced.pop()


def require_known(ids: Collection[str]) -> frozenset[str]:
    """Return the ids; raise if one of them is unknown.

    >>> sorted(require_known(["broadcast"]))
    ['broadcast']
    """
    known = get_args(WarningId)
    given = [ids] if isinstance(ids, str) else list(ids)
    unknown = [id for id in given if id not in known]
    if unknown or isinstance(ids, str):
        raise ConfigurationError(
            message(
                f"Unknown warning {unknown[0]!r} in silence."
                if unknown
                else "silence is a list of ids.",
                expected=f"a list of: {', '.join(known)}",
                received=f"silence={ids!r}",
                do="take the id from the last line of the warning",
            )
        )
    return frozenset(given)
