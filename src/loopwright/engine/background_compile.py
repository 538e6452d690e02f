"""Compile a plan in a thread while training continues."""

import atexit
import functools
import threading
from collections.abc import Callable
from typing import final

from loopwright.errors import first_line

_SECONDS_TO_WAIT_AT_EXIT = 60.0


@final
class BackgroundCompile:
    """Compiles in a thread while training continues."""

    def __init__(self, compile: Callable[[], None]) -> None:
        self._compile, self._failure = compile, ""
        self._thread = threading.Thread(target=self._run, name="loopwright-compile", daemon=True)
        _wait_at_exit()
        _under_way.add(self._thread)
        self._thread.start()

    def is_over(self) -> bool:
        """Return whether it has ended, with or without an error."""
        return not self._thread.is_alive()

    def wait(self, seconds: float) -> None:
        """Wait until it has ended, and at most that long."""
        self._thread.join(seconds)

    def failure(self) -> str | None:
        """Return why it failed, in one line; None if it did not."""
        return self._failure or None

    def _run(self) -> None:
        try:
            self._compile()
        except Exception as error:
            self._failure = first_line(error)
        finally:
            self._compile = lambda: None  # it holds the data
            _under_way.discard(self._thread)


_under_way: set[threading.Thread] = set()


@functools.cache
def _wait_at_exit() -> None:
    """Wait for compiles at exit: the process would crash, since XLA cannot be stopped."""

    def wait() -> None:
        for thread in list(_under_way):
            thread.join(_SECONDS_TO_WAIT_AT_EXIT)

    atexit.register(wait)
