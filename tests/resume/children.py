"""Processes to be killed, which have TensorFlow imported before they begin.

Importing it takes longer than the training. A server imports once and forks before anything ran,
so that each of its children is a process like any other: with its own signals and exit code.
"""

import multiprocessing
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.resume.program"])


@final
class Child:
    """A process that calls a function; what it prints goes to a file."""

    def __init__(self, log: Path, function: Callable[..., Any], *arguments: Any) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log
        self._process = _CONTEXT.Process(target=_run, args=(log, function, *arguments))
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def is_over(self) -> bool:
        return self._process.exitcode is not None

    def send(self, number: int) -> None:
        """Sends a signal, if there is still somebody to hear it."""
        if not self.is_over:
            os.kill(self.pid, number)

    def wait(self, seconds: float) -> None:
        """Waits at most so long."""
        self._process.join(seconds)

    def ended(self, seconds: float = 300) -> tuple[int, str]:
        """Its exit code, negative for a signal, and what it has printed."""
        self._process.join(seconds)
        code = self._process.exitcode
        if code is None:
            self._process.kill()
            self._process.join()
            raise AssertionError(f"It did not end: {self._log.read_text()[-3000:]}")
        return code, self._log.read_text()


def _run(log: Path, function: Callable[..., Any], *arguments: Any) -> None:
    with log.open("w") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
    function(*arguments)
