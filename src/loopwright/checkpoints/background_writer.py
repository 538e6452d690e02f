"""Checkpoints written in a background thread, one at a time."""

import threading
from collections.abc import Callable, Container
from typing import final


@final
class Writer:
    """Runs one write after the other in a thread; raises an error at the next call.

    At most one write waits behind the current one.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._turn = threading.Condition()
        self._is_running = False
        self._waiting: tuple[int | None, Callable[[], None]] | None = None
        """A write that has not started; its step if a newer best may replace it."""

    def start(self, write: Callable[[], None]) -> None:
        """Start a write, after waiting for the previous ones; raise their error."""
        self._begin(None, write)

    def queue(self, step: int, write: Callable[[], None], best: Container[int]) -> None:
        """Start a write, or queue it behind the current one.

        It replaces a queued write whose step is no longer among the `best`. Block while a write
        is queued that may not be replaced.
        """
        with self._turn:
            while self._waiting is not None and not self._may_replace(self._waiting[0], best):
                self._turn.wait()
            if self._is_running:
                self._waiting = step, write
                return
        self._begin(step, write)

    def wait(self) -> None:
        """Wait until all writes have ended; raise their error."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.raise_error()

    def raise_error(self) -> None:
        """Raise the error of a write, once."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _begin(self, step: int | None, write: Callable[[], None]) -> None:
        self.wait()
        self._waiting, self._is_running = (step, write), True
        # Not a daemon: a process that exits finishes its last checkpoint.
        self._thread = threading.Thread(target=self._run, name="loopwright-save")
        self._thread.start()

    @staticmethod
    def _may_replace(step: int | None, best: Container[int]) -> bool:
        return step is not None and step not in best

    def _run(self) -> None:
        while (write := self._next()) is not None:
            try:
                write()
            except Exception as error:
                self._error = error

    def _next(self) -> Callable[[], None] | None:
        """Return the next write; none after an error, which will end the run."""
        with self._turn:
            write = None if self._error or self._waiting is None else self._waiting[1]
            self._waiting, self._is_running = None, write is not None
            self._turn.notify_all()
            return write
