"""Tracebacks without the frames of Loopwright, Keras and TensorFlow.

The user's own frames, and those of other libraries, stay. `LOOPWRIGHT_FULL_TRACEBACK=1`, or
`keras.config.disable_traceback_filtering()`, shows every frame.
"""

import contextlib
import functools
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import ParamSpec, TypeVar

import keras
import tensorflow as tf

from loopwright.compat.lines import GENERATED, PACKAGE
from loopwright.errors import LoopwrightError

FULL_TRACEBACK = "LOOPWRIGHT_FULL_TRACEBACK"

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")
_Error = TypeVar("_Error", bound=BaseException)

_LIBRARIES = tuple(str(Path(module.__file__ or "").parent) + os.sep for module in (keras, tf))
_HIDDEN = (PACKAGE, *_LIBRARIES, contextlib.__file__)


def hides_frames() -> bool:
    """Return whether tracebacks are shortened."""
    if os.environ.get(FULL_TRACEBACK, "") not in ("", "0"):
        return False
    return keras.config.is_traceback_filtering_enabled()


def shortened(error: _Error) -> _Error:
    """Return the error with only the frames that the user can act on, its causes included."""
    if not hides_frames():
        return error
    seen = set[int]()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        # A bug of Loopwright needs every frame.
        if isinstance(link, LoopwrightError) or not _innermost_file(link).startswith(PACKAGE):
            link.__traceback__ = _without_hidden(link.__traceback__)
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return error


def shortens_tracebacks(method: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Shorten the traceback of whatever a method raises."""

    @functools.wraps(method)
    def call(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        try:
            return method(*args, **kwargs)
        except Exception as error:
            shortened(error)
            raise  # without this frame, which is not added again

    return call


def is_of_libraries(error: BaseException) -> bool:
    """Return whether Keras or TensorFlow has raised an error."""
    return _innermost_file(error).startswith(_LIBRARIES)


def _innermost_file(error: BaseException) -> str:
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return frames[-1].f_code.co_filename if frames else ""


def _without_hidden(trace: TracebackType | None) -> TracebackType | None:
    kept = list[TracebackType]()
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if not name.startswith(_HIDDEN) and GENERATED not in name:
            kept.append(trace)
        trace = trace.tb_next
    last: TracebackType | None = None
    for frame in reversed(kept):
        last = TracebackType(last, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return last
