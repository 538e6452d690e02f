"""A child process that replays one run, with the settings that the run recorded.

The parent asks in lines of JSON and reads answers; it does not import TensorFlow itself.
"""

import base64
import io
import json
import os
import socket
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, final

from loopwright import launch
from loopwright.errors import ConfigurationError, LoopwrightError
from loopwright.insight.first_difference import State
from loopwright.processes import LineChild, python
from loopwright.settings import recorded

if TYPE_CHECKING:
    import numpy as np


@final
class ReplayedRun:
    """The states of a run, replayed in a child process.

    `first_step` decides the process settings: those that ran the steps after it.
    """

    def __init__(self, run: Path, code: Sequence[str], *, first_step: int = 0) -> None:
        self.directory = run
        options = [word for name in code for word in ("--task", name)]
        settings = recorded(run, first_step + 1)
        variables = {} if settings is None else settings.variables()
        self._child = LineChild(
            f"The replay of {run}",
            [*python(), "-m", "loopwright.cli.replay_child", str(run), *options],
            {**launch.unmarked(os.environ), **variables},
        )
        self._facts: dict[str, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.__exit__()

    @property
    def steps(self) -> Sequence[int]:
        """The steps that have a checkpoint, the oldest first."""
        return self._started()["steps"]

    @property
    def reasons(self) -> Sequence[str]:
        """Why replaying may not give the bits of the run."""
        return self._started()["reasons"]

    def ask(self, step: int) -> None:
        """Ask for the state after a step."""
        self._started()
        self._child.ask("state", step)

    def answer(self) -> State:
        """Return the state after the step that was asked for."""
        found = self._received()
        return State(found["step"], found["digests"])

    def disagreement(self, step: int) -> list[str]:
        """Replay from `step` to the next checkpoint; return the variables that differ from it."""
        return self._asked("disagreement", step)["names"]

    def facts(self, step: int) -> dict[str, Any]:
        """Return what made a step: its plan, its batch, the learning rates."""
        return self._asked("facts", step)

    def value(self, step: int, name: str) -> "np.ndarray[Any, Any]":
        """Return a variable after a step."""
        import numpy as np

        found = base64.b64decode(self._asked("value", step, name)["npy"])
        return np.load(io.BytesIO(found), allow_pickle=False)

    def _started(self) -> dict[str, Any]:
        self._facts = self._facts or self._received()
        return self._facts

    def _asked(self, *words: Any) -> Any:
        self._started()
        self._child.ask(*words)
        return self._received()

    def _received(self) -> dict[str, Any]:
        found = self._child.answer()
        if "refused" in found:
            raise ConfigurationError(found["refused"])
        return found


def main(words: Sequence[str]) -> None:
    """Serve a parent until it closes its end."""
    descriptor = launch.parent_socket()
    if descriptor is None:
        raise SystemExit("started by loopwright compare only")
    run, code = Path(words[0]), [word for word in words[1:] if word != "--task"]
    with socket.socket(fileno=descriptor).makefile("rw", encoding="utf-8") as lines:

        def answer(found: Mapping[str, Any]) -> None:
            lines.write(json.dumps(found) + "\n")
            lines.flush()

        try:
            _serve(run, code, lines, answer)
        except LoopwrightError as error:
            answer({"refused": str(error)})


def _serve(
    run: Path,
    code: list[str],
    questions: Iterable[str],
    answer: Callable[[Mapping[str, Any]], None],
) -> None:
    import numpy as np

    from loopwright.cli import job
    from loopwright.cli.arguments import run_config
    from loopwright.insight.history_state import run_states

    config = run_config(run, code)
    # The recorded plans are followed, whatever file or word the config names.
    config = config.model_copy(update={"plan": "auto", "callbacks": []})
    with (
        job.open_job(config) as opened,
        run_states(opened.trainer, **job.fit_arguments(opened)) as states,
    ):
        answer({"steps": states.steps, "reasons": states.reasons})
        for line in questions:
            match json.loads(line):
                case ["state", step]:
                    found = states.after(step)
                    answer({"step": found.step, "digests": dict(found.digests)})
                case ["disagreement", step]:
                    answer({"names": states.disagreement(step)})
                case ["facts", step]:
                    answer(states.facts(step))
                case ["value", step, name]:
                    np.save(file := io.BytesIO(), states.value(step, name))
                    answer({"npy": base64.b64encode(file.getvalue()).decode()})
                case _:
                    raise ValueError(line)


if __name__ == "__main__":
    main(sys.argv[1:])
