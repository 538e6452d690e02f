"""Worker processes on this machine, started together and restarted together after a crash.

If one worker dies, the others can only wait for it: all are killed and restarted, and resume from
the last checkpoint. Nothing here imports TensorFlow.
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

_SECONDS_BETWEEN_POLLS = 0.05
_SECONDS_TO_EXIT = 600.0
"""For workers that save after a signal; then they are killed."""
_STOPPED_BY_SIGNAL = (128 + signal.SIGTERM, 128 + signal.SIGINT)
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


def supervise(
    command: Sequence[str],
    *,
    workers: int,
    restarts: int,
    environment: Mapping[str, str],
    say: Callable[[str], None],
) -> int:
    """Run a command as several workers until all have ended; return the exit code."""
    code = 0
    with _received_signals() as signals:
        for left in range(restarts, -1, -1):
            team = _Workers(command, workers, environment, say)
            try:
                worker, code = team.wait(signals)
            finally:
                team.kill()
            if code == 0 or signals or not _may_be_retried(code):
                return code
            restarts_left = f"({left - 1} {'restart' if left == 2 else 'restarts'} left)"
            then = f"restarting all workers {restarts_left}" if left else "no restarts left"
            say(f"worker {worker} exited with code {code}; {then}")
    return code


def free_ports(count: int) -> list[int]:
    """Return ports of this machine that are free right now."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _may_be_retried(code: int) -> bool:
    """Return whether an exit code is that of a crash, and not of an error in the program.

    >>> [_may_be_retried(code) for code in (1, 2, 137, 143, 193)]
    [False, False, True, False, True]
    """
    return code >= 128 and code not in _STOPPED_BY_SIGNAL


@contextlib.contextmanager
def _received_signals() -> Iterator[list[int]]:
    """Collect the signals that arrive in this scope."""
    received: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: received.append(number))
        for number in _FORWARDED
    }
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@final
class _Workers:
    """Processes that train together, each in its own process group."""

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
        prepare = stopped_with_parent(signal.SIGKILL)
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

    def wait(self, signals: list[int]) -> tuple[int, int]:
        """Wait for all workers and forward `signals`; return the worker and code that decide."""
        exiting_since: float | None = None
        while True:
            for number in signals[self._forwarded :]:
                self._forwarded += 1
                self._send(number)
            codes = [process.poll() for process in self._processes]
            over = {i: _as_exit_code(code) for i, code in enumerate(codes) if code is not None}
            failed = {i: code for i, code in over.items() if code and not self._stopped(i, signals)}
            if failed:
                # An error of the program says more than the crashes that follow from it.
                return min(failed.items(), key=lambda item: item[1])
            if len(over) == len(codes):
                return max(over.items(), key=lambda item: item[1])
            if any(over.values()):
                exiting_since = exiting_since or time.monotonic()
                if time.monotonic() - exiting_since > _SECONDS_TO_EXIT:
                    slow = next(i for i, code in enumerate(codes) if code is None)
                    return slow, 128 + signal.SIGKILL
            time.sleep(_SECONDS_BETWEEN_POLLS)

    def _stopped(self, index: int, signals: list[int]) -> bool:
        """Return whether a worker exited after a signal, or died of one of `signals`."""
        code = self._processes[index].poll() or 0
        # A worker that any other signal killed has not saved, and the others wait for it.
        is_known = code >= 0 or -code in signals
        return is_known and _as_exit_code(code) in _STOPPED_BY_SIGNAL

    def kill(self) -> None:
        """Kill all workers and the processes they started; print the rest of their output."""
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


def stopped_with_parent(number: int = signal.SIGTERM) -> Callable[[], None] | None:
    """Return a function for a child process that has Linux send it a signal when we are killed."""
    if not sys.platform.startswith("linux"):
        return None
    library, parent = ctypes.CDLL(None), os.getpid()

    def prepare() -> None:
        library.prctl(_SET_PARENT_DEATH_SIGNAL, number)
        if os.getppid() != parent:  # the supervisor was killed before the line above
            os._exit(1)

    return prepare
