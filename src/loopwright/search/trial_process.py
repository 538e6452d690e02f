"""The process of a trial: `loopwright train` in a run directory of its own."""

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from loopwright import disk, launch
from loopwright.config.file import PREFIX
from loopwright.distribute.supervisor import stopped_with_parent
from loopwright.errors import printable
from loopwright.processes import failure, python
from loopwright.quiet_start import UNQUIET, without_noise

_OUTPUT = "output.log"
_MOST_BYTES = 100_000
PROGRAM = [*python(), "-m", "loopwright"]
"""The command line of a trial."""
_INTERRUPTED = (128 + signal.SIGINT, 128 + signal.SIGTERM, 193)


@final
class TrialProcess:
    """A training that runs in a child process, which saves and ends when this process is killed."""

    def __init__(self, config: Path, settings: str) -> None:
        self._run_dir = config.parent
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        with os.fdopen(disk.opened(self._run_dir, _OUTPUT, flags), "wb") as output:
            self._process: Any = subprocess.Popen(
                [
                    *(*PROGRAM, "train", str(config)),
                    *("--run-dir", str(self._run_dir), "--settings", settings),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment(os.environ),
                start_new_session=True,
                preexec_fn=stopped_with_parent(),  # noqa: PLW1509  (it calls two system functions)
            )

    def exit_code(self) -> int | None:
        """Return how it ended; None while it runs."""
        return self._process.poll()

    def stop(self) -> None:
        """Let it save and end."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def wait(self, seconds: float) -> None:
        """Wait for its end; kill it when that takes too long."""
        try:
            self._process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Kill it and what it has started."""
        if self._process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def was_interrupted(code: int) -> bool:
    """Return whether a process was killed, or has saved and ended after a signal.

    >>> [was_interrupted(code) for code in (-9, 143, 0, 1, 3)]
    [True, True, False, False, False]
    """
    return code < 0 or code in _INTERRUPTED


def reason_of(code: int, run_dir: Path) -> str:
    """Return in one line why a process failed, from what it printed."""
    with os.fdopen(disk.opened(run_dir, _OUTPUT), "rb") as output:
        output.seek(max(0, output.seek(0, os.SEEK_END) - _MOST_BYTES))
        return in_one_line(code, without_noise(output.read()).decode(errors="replace"))


def in_one_line(code: int, output: str) -> str:
    r"""Return the first line of the last error in an output, or its last line.

    >>> in_one_line(2, "epoch 1\nerror: Invalid config.\n  received: seed: none\n  do: fix it")
    'Invalid config. received: seed: none'
    >>> in_one_line(1, "Traceback (most recent call last):\nKeyError: 3")
    'KeyError: 3'
    """
    lines = output.strip().splitlines()
    starts = [at for at, line in enumerate(lines) if line.startswith("error: ")]
    if starts:
        error = lines[starts[-1] :]
        received = next((each for each in error if each.startswith("  received: ")), "")
        return printable(f"{error[0].removeprefix('error: ')} {received.strip()}".strip())
    if lines and code >= 0:
        return printable(lines[-1].strip())
    return printable(failure(code, lines[-1] if lines else "").replace("\n", " "))


def same_reason(one: str, other: str) -> bool:
    """Return whether two reasons are the same but for their numbers.

    >>> same_reason("NaN at step 3", "NaN at step 12"), same_reason("NaN", "no file")
    (True, False)
    """
    return re.sub(r"[0-9.e+-]+", "0", one) == re.sub(r"[0-9.e+-]+", "0", other)


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a trial: config values are in its config already."""
    kept = {name: value for name, value in given.items() if not name.startswith(PREFIX)}
    return {**launch.unmarked(kept), UNQUIET: "1"}


def refusal_of(config: Path) -> tuple[int, str]:
    """Build everything that a config names, without a run; return the exit code and the output."""
    done = subprocess.run(
        [*PROGRAM, "train", str(config), "--build"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment(os.environ),
        check=False,
    )
    return done.returncode, without_noise(done.stdout).decode(errors="replace")
