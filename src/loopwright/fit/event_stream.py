"""The events of one call of `fit`, as the caller reads them, and may stop reading."""

import contextlib
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Literal, final

from loopwright.compat.lines import shortened
from loopwright.errors import ConfigurationError
from loopwright.events import Event


class LoopLeft(BaseException):
    """Thrown into the events of a leg that a `with` block ends before its end: it is finished."""


@final
class EventStream:
    """An iterator over events. However a loop over it is left, the next call of `fit` continues.

    Python does not tell an iterator whether `break` or an exception has left its loop. The end of
    a `with` block does: without an exception it finishes the leg.
    """

    def __init__(self, begin: Callable[[], Generator[Event]]) -> None:
        """`begin` is called for the first event."""
        self._begin = begin
        self._events: Generator[Event] | None = None
        self._is_running = self._is_closed = False

    def __iter__(self) -> "EventStream":
        return self

    def __next__(self) -> Event:
        if self._is_closed:
            raise StopIteration
        self._require_idle()
        self._is_running = True
        try:
            if self._events is None:
                self._events = self._begin()
            return next(self._events)
        except BaseException as error:
            self._is_closed = True
            if isinstance(error, Exception):
                shortened(error)
            raise
        finally:
            self._is_running = False

    def __enter__(self) -> "EventStream":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None and self._events is not None and not self._is_closed:
            with contextlib.suppress(LoopLeft, StopIteration):
                self._events.throw(LoopLeft())
        self.close()

    def close(self) -> None:
        """End training without finishing the leg: another call of `fit` continues it."""
        self._require_idle()
        self._is_closed = True
        if self._events is not None:
            self._events.close()

    def _require_idle(self) -> None:
        if self._is_running:
            raise ConfigurationError(
                "This trainer is training.",
                expected="one call of fit at a time",
                received="a call of fit from a callback or a sink, or from another thread",
                do="call fit when the first call has returned, or use another Trainer",
            )


Reason = Literal["left", "interrupted", "failed"]


def reason_of(error: BaseException) -> Reason:
    """Return how a call of `fit` ended that this error has ended."""
    match error:
        case LoopLeft():
            return "left"
        case KeyboardInterrupt() | GeneratorExit():  # the latter: the caller's loop was left
            return "interrupted"
        case _:
            return "failed"
