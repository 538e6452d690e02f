"""The events of one call of `fit`, as the caller reads them, and may stop reading."""

import contextlib
import inspect
from collections.abc import Generator
from types import TracebackType
from typing import final

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

    def __init__(self, events: Generator[Event]) -> None:
        self._events = events

    def __iter__(self) -> "EventStream":
        return self

    def __next__(self) -> Event:
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
        if error is None and inspect.getgeneratorstate(self._events) == inspect.GEN_SUSPENDED:
            with contextlib.suppress(LoopLeft, StopIteration):
                self._events.throw(LoopLeft())
        self._events.close()

    def close(self) -> None:
        """End training without finishing the leg: another call of `fit` continues it."""
        if inspect.getgeneratorstate(self._events) == inspect.GEN_RUNNING:
            raise ConfigurationError(
                "This trainer is training.",
                expected="one call of fit at a time",
                received="a call of fit from a callback or a sink, or from another thread",
                do="call fit when the first call has returned, or use another Trainer",
            )
        self._events.close()
