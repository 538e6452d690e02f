"""Child processes: their interpreter, why they failed, and answers in lines of JSON.

What the child prints is kept for the words of a failure. A child whose parent is gone reads the end
of the socket instead of a question.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, Self, final

from loopwright import launch
from loopwright.errors import LoopwrightError
from loopwright.quiet_start import UNQUIET, without_noise

_MOST_OUTPUT_BYTES = 4000


def python() -> list[str]:
    """Return the interpreter for child processes.

    With -P the current directory is not on their import path: it may be a run directory from an
    untrusted source. PYTHONPATH still counts.
    """
    return [sys.executable, "-P"]


def failure(code: int, errors: str, output: str = "") -> str:
    """Describe how a child process failed: its exit code or signal, and what it printed last.

    >>> print(failure(-6, "terminate called after throwing std::bad_alloc"))
    killed by SIGABRT:
    terminate called after throwing std::bad_alloc
    >>> failure(3, "")
    'exit code 3, and it printed nothing'
    """
    printed = errors.strip() or output.strip()
    ended = f"exit code {code}" if code >= 0 else f"killed by {_signal_name(-code)}"
    return f"{ended}:\n{printed}" if printed else f"{ended}, and it printed nothing"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@final
class LineChild:
    """A process that was started to answer; `what` names it in the words of a failure."""

    def __init__(
        self,
        what: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        most_seconds: float | None = None,
    ) -> None:
        self._what, self._most_seconds = what, most_seconds
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(most_seconds)
        self._lines = self._socket.makefile("rw", encoding="utf-8")
        parent = f"{os.getpid()} {theirs.fileno()}"
        with theirs:
            self._process = subprocess.Popen(
                command,
                env={**environment, launch.PARENT: parent, UNQUIET: "1"},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                start_new_session=True,  # Ctrl-C ends the parent, which ends the child
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        with contextlib.suppress(OSError):  # a question that was never read
            self._lines.close()
        self._socket.close()
        self._output.close()

    def ask(self, *words: Any) -> None:
        """Ask a question; why it cannot be asked shows when its answer is read."""
        with contextlib.suppress(OSError):
            self._lines.write(json.dumps(words) + "\n")
            self._lines.flush()

    def answer(self) -> dict[str, Any]:
        """Return the next answer; raise if there is none, or if it says why the child failed."""
        line = ""
        with contextlib.suppress(OSError):
            line = self._lines.readline()
        answer = json.loads(line) if line else {"failure": self._reason_for_silence()}
        if "failure" in answer:
            raise LoopwrightError(f"{self._what} failed: {answer['failure']}")
        return answer

    def _reason_for_silence(self) -> str:
        try:
            code = self._process.wait(timeout=1 if self._most_seconds else None)
        except subprocess.TimeoutExpired:
            return f"no answer in {self._most_seconds:.0f} s"
        self._output.seek(0)
        output = without_noise(self._output.read())[-_MOST_OUTPUT_BYTES:]
        return failure(code, output.decode(errors="replace"))
