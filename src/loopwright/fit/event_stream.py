"""The events of one call of `fit`, as the caller reads them, and may stop reading."""

import contextlib
import gc
import inspect
import sys
from collections.abc import Generator
from types import CodeType, FrameType, TracebackType
from typing import final

from loopwright.compat.tracebacks import shortened
from loopwright.errors import ConfigurationError, message
from loopwright.events import Event

_REFERENCES_OF_A_LOOP = 3
"""The loop's own, that of the method, and that of the call that counts them."""


class LoopLeft(BaseException):
    """Thrown into the events of a leg that the caller has left on purpose: the leg is finished."""


@final
class EventStream:
    """An iterator over events, which knows why it is left.

    `break` and `return` finish the leg, and so does the end of a `with` block. An exception in the
    body of the loop does not, nor do `close()` and dropping events that are held in a variable:
    the next call of `fit` continues the leg.
    """

    def __init__(self, events: Generator[Event]) -> None:
        self._events = events
        self._loop: tuple[int, CodeType] | None = None
        """The frame of the loop that alone holds the stream, by its id."""

    def __iter__(self) -> "EventStream":
        return self

    def __next__(self) -> Event:
        is_held = sys.getrefcount(self) > _REFERENCES_OF_A_LOOP
        # Without a variable for the frame: one that refers to itself would keep the stream alive.
        self._loop = None if is_held else _identity(sys._getframe(1))
        try:
            return next(self._events)
        except Exception as error:
            shortened(error)
            raise

    def __enter__(self) -> "EventStream":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave(on_purpose=error is None)

    def close(self) -> None:
        """End training without finishing the leg: another call of `fit` continues it."""
        if inspect.getgeneratorstate(self._events) == inspect.GEN_RUNNING:
            raise ConfigurationError(
                message(
                    "This trainer is training.",
                    expected="one call of fit at a time",
                    received="a call of fit from a callback or a sink, or from another thread",
                    do="call fit when the first call has returned, or use another Trainer",
                )
            )
        self._leave(on_purpose=False)

    def __del__(self) -> None:
        if inspect.getgeneratorstate(self._events) != inspect.GEN_SUSPENDED:
            return  # it was read to its end: looking for tracebacks takes a tenth of a second
        frame = sys._getframe(1)
        self._leave(on_purpose=_identity(frame) == self._loop and not _is_raising(frame))

    def _leave(self, *, on_purpose: bool) -> None:
        if on_purpose and inspect.getgeneratorstate(self._events) == inspect.GEN_SUSPENDED:
            with contextlib.suppress(LoopLeft, StopIteration):
                self._events.throw(LoopLeft())
        self._events.close()


def _identity(frame: FrameType) -> tuple[int, CodeType]:
    return id(frame), frame.f_code


def _is_raising(frame: FrameType) -> bool:
    """Return whether an exception is on its way out of the instruction that a frame is at.

    A loop drops its iterator after `break` as it does after an exception. Only then is there a
    traceback of this very instruction.
    """
    return any(
        isinstance(found, TracebackType) and found.tb_lasti == frame.f_lasti
        for found in gc.get_referrers(frame)
    )
