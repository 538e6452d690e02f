"""Saving: checkpoints written beside the training, one at a time."""

import threading
from collections.abc import Callable
from typing import final


@final
class Writer:
    """Runs one write after the other in a thread; what fails is raised at the next occasion."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def start(self, write: Callable[[], None]) -> None:
        """Starts a write; waits for the one before, and raises what went wrong with it."""
        self.wait()

        def run() -> None:
            try:
                write()
            except Exception as error:
                self._error = error

        # Not a daemon: a process that ends lets its last checkpoint be finished.
        self._thread = threading.Thread(target=run, name="loopwright-save")
        self._thread.start()

    def wait(self) -> None:
        """Lets the write under way end, and raises what went wrong with it."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.raise_error()

    def raise_error(self) -> None:
        """Raises what went wrong, once."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error
