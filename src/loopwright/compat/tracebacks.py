"""Tracebacks without the frames of Loopwright, Keras and TensorFlow.

The user's own frames, and those of other libraries, stay. `LOOPWRIGHT_FULL_TRACEBACK=1`, or
`keras.config.disable_traceback_filtering()`, shows every frame.
"""

import contextlib
import functools
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import ParamSpec, TypeVar

import keras
import tensorflow as tf

from loopwright.errors import LoopwrightError

FULL_TRACEBACK = "LOOPWRIGHT_FULL_TRACEBACK"

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")
_Error = TypeVar("_Error", bound=BaseException)

_HERE = str(Path(__file__).parent.parent) + os.sep  # the whole package
_HIDDEN = (
    _HERE,
    *(str(Path(module.__file__ or "").parent) + os.sep for module in (keras, tf)),
    contextlib.__file__,
)
_GENERATED = "__autograph_generated"


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
        if isinstance(link, LoopwrightError) or not _is_raised_here(link):
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


def _is_raised_here(error: BaseException) -> bool:
    """Return whether the innermost frame is ours: a bug of Loopwright, which needs every frame."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return last is not None and last.tb_frame.f_code.co_filename.startswith(_HERE)


def _without_hidden(trace: TracebackType | None) -> TracebackType | None:
    kept = list[TracebackType]()
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if not name.startswith(_HIDDEN) and _GENERATED not in name:
            kept.append(trace)
        trace = trace.tb_next
    last: TracebackType | None = None
    for frame in reversed(kept):
        last = TracebackType(last, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return last
