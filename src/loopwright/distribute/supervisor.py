"""Supervising: workers as processes of this machine, started together and again after a death.

A worker that dies takes the others with it: they could only wait for it. All are started again, and
go on from the last checkpoint. Nothing here imports TensorFlow.
"""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, final

from loopwright.compat.messages import is_worker_noise
from loopwright.distribute.cluster import tf_config

_SECONDS_BETWEEN_LOOKS = 0.05
_SECONDS_TO_LEAVE = 600.0
"""For those who save after a signal; then they are killed."""
_ASKED_TO_LEAVE = (128 + signal.SIGTERM, 128 + signal.SIGINT)
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


def python() -> list[str]:
    """The interpreter for child processes.

    With -P the current directory is not on their import path: it may be a run directory that came
    from somebody else. PYTHONPATH still counts.
    """
    return [sys.executable, "-P"]


def failure(code: int, errors: str, output: str = "") -> str:
    """Say how a child process failed: its exit code or signal, and what it printed last.

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


def supervise(
    command: Sequence[str],
    *,
    workers: int,
    restarts: int,
    environment: Mapping[str, str],
    say: Callable[[str], None],
) -> int:
    """Runs a command as so many workers, to the end; the exit code of whoever decided it."""
    code = 0
    with _heard() as asked:
        for start in range(restarts + 1):
            team = _Workers(command, workers, environment, say)
            try:
                code = team.ended(asked)
            finally:
                team.end()
            if code == 0 or asked or not _may_be_retried(code):
                return code
            left = restarts - start
            say(f"a worker is gone (exit code {code}): " + _what_next(left))
    return code


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, right now, on this machine."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _what_next(left: int) -> str:
    return f"all start again, {left - 1} more times at most" if left else "and no restart is left"


def _may_be_retried(code: int) -> bool:
    """Whether it was an accident, and not what the program does every time.

    >>> [_may_be_retried(code) for code in (1, 2, 137, 143, 193)]
    [False, False, True, False, True]
    """
    return code >= 128 and code not in _ASKED_TO_LEAVE


@contextlib.contextmanager
def _heard() -> Iterator[list[int]]:
    """The signals that come while it is open."""
    asked: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: asked.append(number))
        for number in _FORWARDED
    }
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@final
class _Workers:
    """Processes that train together, each in a group of its own."""

    def __init__(
        self,
        command: Sequence[str],
        count: int,
        environment: Mapping[str, str],
        say: Callable[[str], None],
    ) -> None:
        addresses = [f"127.0.0.1:{port}" for port in free_ports(count)]
        self._say, self._forwarded = say, 0
        self._processes: list[subprocess.Popen[bytes]] = []
        self._readers: list[threading.Thread] = []
        prepare = _dies_with_parent()
        for index in range(count):
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**environment, "TF_CONFIG": tf_config(addresses, index)},
                start_new_session=True,
                preexec_fn=prepare,  # noqa: PLW1509  (no thread of ours runs yet)
            )
            self._processes.append(process)
        for index, process in enumerate(self._processes):
            reader = threading.Thread(target=self._read, args=(index, process.stdout), daemon=True)
            reader.start()
            self._readers.append(reader)

    def ended(self, asked: list[int]) -> int:
        """Waits for all; signals that are `asked` are handed on. The code that counts."""
        leaving_since: float | None = None
        while True:
            for number in asked[self._forwarded :]:
                self._forwarded += 1
                self._send(number)
            codes = [process.poll() for process in self._processes]
            over = [_as_exit_code(code) for code in codes if code is not None]
            # Whoever died of a signal has not saved, and the others wait for it.
            died = [-code for code in codes if code is not None and code < 0]
            failed = [code for code in over if code and code not in _ASKED_TO_LEAVE]
            failed += [128 + number for number in died if number not in asked]
            if failed:
                # A mistake of the program's says more than those who died of it.
                return min(failed)
            if len(over) == len(codes):
                return max(over)
            if any(over):
                leaving_since = leaving_since or time.monotonic()
                if time.monotonic() - leaving_since > _SECONDS_TO_LEAVE:
                    return 128 + signal.SIGKILL
            time.sleep(_SECONDS_BETWEEN_LOOKS)

    def end(self) -> None:
        """Nobody is left, nor anybody that they started; all they said has been told."""
        self._send(signal.SIGKILL)
        for process in self._processes:
            process.wait()
        for reader in self._readers:
            reader.join(timeout=5.0)

    def _send(self, number: int) -> None:
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if number == signal.SIGKILL:
                    os.killpg(process.pid, number)
                elif process.poll() is None:
                    os.kill(process.pid, number)

    def _read(self, index: int, stream: Any) -> None:
        with stream:
            for line in stream:
                text = line.decode(errors="replace").rstrip()
                if not is_worker_noise(text):
                    self._say(f"[worker {index}] {text}")


def _as_exit_code(code: int) -> int:
    return code if code >= 0 else 128 - code


def _dies_with_parent() -> Callable[[], None] | None:
    """Has the kernel kill a worker whose supervisor was killed; where there is Linux."""
    if not sys.platform.startswith("linux"):
        return None
    library, parent = ctypes.CDLL(None), os.getpid()

    def prepare() -> None:
        library.prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != parent:  # it was killed before the line above
            os._exit(1)

    return prepare
