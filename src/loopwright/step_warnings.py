"""Warnings: at a line of the user's program, and by an id that silences one about a step."""

import contextlib
import functools
import sys
import sysconfig
import warnings
from collections.abc import Collection, Iterator
from pathlib import Path
from types import FrameType
from typing import NewType

from loopwright.errors import ConfigurationError, LoopwrightWarning, StepWarning

_STANDARD = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
_PACKAGES = {"site-packages", "dist-packages"}
_HERE = str(Path(__file__).parent)
_GENERATED = ("__autograph_generated", "<frozen ", "<string>")


def warn_at_call(warning: str | Warning) -> None:
    """Warn at the innermost line of the user's program: of the step, or the call of `fit`."""
    stacklevel, frame = 2, sys._getframe(1)
    while _is_foreign(frame) and frame.f_back is not None:
        stacklevel, frame = stacklevel + 1, frame.f_back
    if _is_foreign(frame):
        stacklevel = 2  # a thread of TensorFlow, or the command line: no line of a program
    category = None if isinstance(warning, Warning) else LoopwrightWarning
    warnings.warn(warning, category, stacklevel=stacklevel)


@functools.cache
def is_installed(filename: str) -> bool:
    """Return whether a file is of Python or of an installed package, wherever that is installed.

    >>> is_installed("/home/ada/.local/lib/python3.11/site-packages/keras/__init__.py")
    True
    >>> is_installed("/home/ada/train.py")
    False
    """
    return filename.startswith(_STANDARD) or not _PACKAGES.isdisjoint(Path(filename).parts)


def _is_foreign(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    if name.startswith(_HERE) or is_installed(name):
        return True
    # `python -c` runs the user's program under a name that generated code has too.
    is_program = frame.f_globals.get("__name__") == "__main__"
    return not is_program and any(part in name for part in _GENERATED)


WarningId = NewType("WarningId", str)
_rows: dict[str, frozenset[str]] = {}


def declare(id: str, warns_that: str) -> WarningId:
    """Declare the id of a warning, and what the table in `docs/debugging.md` says about it.

    The module that gives a warning declares it. Where several do, the table has all they say.
    """
    _rows[id] = _rows.get(id, frozenset()) | {warns_that}
    return WarningId(id)


def documented() -> dict[str, str]:
    """Return what each declared id warns of, as the table in `docs/debugging.md` has it."""
    return {id: "; ".join(sorted(rows)) for id, rows in sorted(_rows.items())}


_silenced: list[frozenset[str]] = []


def warn(id: WarningId, text: str) -> None:
    """Warn about something that is probably a mistake, unless its id is silenced."""
    if not any(id in ids for ids in _silenced):
        text += f'\n  silence: Trainer(..., silence=["{id}"]), if this is intended'
        warn_at_call(StepWarning(text, id=id))


@contextlib.contextmanager
def silenced(ids: Collection[str]) -> Iterator[None]:
    """Silence these ids in the whole process: replicas are traced in their own threads."""
    _silenced.append(frozenset(ids))
    try:
        yield
    finally:
        _silenced.pop()


def require_known(ids: Collection[str]) -> frozenset[str]:
    """Return the ids; raise if one of them is unknown."""
    known = sorted(_rows)
    given = [ids] if isinstance(ids, str) else list(ids)
    unknown = [id for id in given if id not in known]
    if unknown or isinstance(ids, str):
        raise ConfigurationError(
            f"Unknown warning {unknown[0]!r} in silence."
            if unknown
            else "silence is a list of ids.",
            expected=f"a list of: {', '.join(known)}",
            received=f"silence={ids!r}",
            do="take the id from the last line of the warning",
        )
    return frozenset(given)
