"""A trial of other process settings: a child of this process takes turns with the run.

The child starts while the run trains. When it is ready, both train for a second in turns: the
steps of the run are training steps, those of the child are thrown away. Whatever happens to the
child, the run continues as it was.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, final

from loopwright.compat.quiet_start import UNQUIET, without_noise
from loopwright.events import Trained
from loopwright.loop.signals import Signals
from loopwright.plans.duel import ROUND_SECONDS, Duel
from loopwright.plans.launch import TRIAL

_MOST_START_SECONDS = 300.0
_MOST_ROUND_SECONDS = 120.0
_POLL_SECONDS = 0.1
_MOST_OUTPUT_BYTES = 4000


@final
class Child:
    """The same program with other settings, which answers how fast it trains."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], plan: str = "graph"
    ) -> None:
        asked, self._ask = os.pipe()
        self._answer, answered = os.pipe()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `end`
        self._buffer = b""
        told = {**environment, TRIAL: f"{os.getpid()} {asked} {answered} {plan}", UNQUIET: "1"}
        try:
            # A session of its own: Ctrl-C is for the run, which ends the child.
            self._process = subprocess.Popen(
                command,
                env=told,
                pass_fds=(asked, answered),
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                start_new_session=True,
            )
        finally:
            os.close(asked)
            os.close(answered)

    def ask(self, seconds: float) -> None:
        """Ask the child to train for about `seconds`."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._ask, f"{seconds}\n".encode())

    def answer(self, wait_seconds: float = 0.0) -> dict[str, Any] | None:
        """Return the child's next answer; None if it has none yet. Raise if it died."""
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self._answer], [], [], wait_seconds)
            if not ready:
                return None
            data = os.read(self._answer, 65_536)
            if not data:
                raise ChildProcessError(self._end_in_words())
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        found = json.loads(line)
        if "failure" in found:
            raise ChildProcessError(found["failure"])
        return found

    def end(self) -> None:
        """End the child, whatever it does."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for descriptor in (self._ask, self._answer):
            os.close(descriptor)
        self._output.close()

    def _end_in_words(self) -> str:
        code = self._process.wait()
        self._output.seek(0)
        lines = without_noise(self._output.read()[-_MOST_OUTPUT_BYTES:]).decode(errors="replace")
        last = (lines.strip().splitlines() or ["no output"])[-1].strip()
        if code < 0:
            return f"ended by {signal.Signals(-code).name}: {last}"
        return f"ended with exit code {code}: {last}"


@final
class SettingsTrial:
    """Lets the child and the run take turns; `after` is called at each stop of the run."""

    def __init__(
        self,
        child: Child,
        signals: Signals,
        clock: Callable[[], float],
    ) -> None:
        self._child, self._signals, self._clock = child, signals, clock
        self._began = clock()
        self._is_ready = False
        self.duel = Duel()
        self.failure = ""
        """Why the child gave no rates."""
        self._steps, self._seconds = 0, 0.0

    def after(self, trained: Trained) -> Literal["open", "won", "lost", "failed"]:
        """Take note of steps of the run, and let the child have its turn if it is due."""
        try:
            return self._after(trained)
        except (ChildProcessError, OSError, ValueError, KeyError, TypeError) as error:
            self.failure = str(error) or type(error).__name__
            return "failed"

    def end(self) -> None:
        """End the child."""
        self._child.end()

    def _after(self, trained: Trained) -> Literal["open", "won", "lost", "failed"]:
        if not self._is_ready:
            # Beside a child that starts, the run is slow: these steps say nothing.
            self._is_ready = self._child.answer() is not None
            if not self._is_ready and self._clock() - self._began > _MOST_START_SECONDS:
                raise ChildProcessError(f"it did not start within {_MOST_START_SECONDS:.0f} s")
        else:
            self._steps, self._seconds = (
                self._steps + trained.steps,
                self._seconds + trained.seconds,
            )
            if self._seconds >= ROUND_SECONDS:
                self.duel.own.append(self._steps / self._seconds)
                self._steps, self._seconds = 0, 0.0
        is_turn = len(self.duel.challenger) <= len(self.duel.own) and self.duel.outcome == "open"
        if self._is_ready and is_turn and not self._signals.received():
            self._let_child_train()
        return self.duel.outcome

    def _let_child_train(self) -> None:
        """Pause the run while the child trains; a signal to the run ends the pause."""
        self._child.ask(ROUND_SECONDS)
        began = self._clock()
        while (found := self._child.answer(_POLL_SECONDS)) is None:
            if self._signals.received():
                return
            if self._clock() - began > _MOST_ROUND_SECONDS:
                raise ChildProcessError("it did not answer in time")
        self.duel.challenger.append(found["steps"] / found["seconds"])
