"""Kill a training at random moments, resume it, and compare it with an undisturbed one.

Both run in child processes, in a temporary directory.
"""

import json
import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from loopwright.checkpoints.manifest import read_manifest
from loopwright.checkpoints.store import Store
from loopwright.compat.quiet_start import UNQUIET, without_noise
from loopwright.config.file import FILE
from loopwright.distribute.supervisor import failure, python
from loopwright.errors import LoopwrightError, message
from loopwright.exactness import EXACT, Inexact, recorded_reasons
from loopwright.settings import last_step

_MOST_OUTPUT_BYTES = 2000
_MOST_READ_BYTES = 20_000
_EXIT_INEXACT = 4
_TRAIN = """
import sys
from loopwright import recipes
recipes.run("{recipe}", sys.argv[1], plan=sys.argv[2], quick=True, save_every="5 steps")
"""


@dataclass(frozen=True)
class Verdict:
    """The comparison of a killed training with an undisturbed one."""

    kills: int
    steps: int
    files: int
    differing: list[str]
    inexact: Inexact = EXACT
    """Why the training cannot be resumed exactly; if so, nothing was killed."""

    @property
    def is_exact(self) -> bool:
        """Whether all bytes are identical."""
        return not self.differing and not self.inexact

    @property
    def exit_code(self) -> int:
        """The exit code of `loopwright verify`."""
        return _EXIT_INEXACT if self.inexact else int(not self.is_exact)

    def __str__(self) -> str:
        if self.inexact:
            return str(self.inexact)
        what = f"{self.steps} steps, killed and resumed {self.kills} times"
        if self.is_exact:
            return f"exact: {what}: identical bits"
        return f"NOT EXACT: {what}: different bits in {', '.join(self.differing)}"


Command = Callable[[Path, str | None], list[str]]
"""Returns the command to start, given a run directory and a plan; None: its own plan."""


def command_for_recipe(recipe: str) -> Command:
    """Return the command that trains a recipe."""
    program = _TRAIN.format(recipe=recipe)
    return lambda run_dir, plan: [*python(), "-c", program, str(run_dir), plan or "auto"]


def command_for_run(run: Path) -> Command:
    """Return the command that trains a run's config from scratch, in another directory."""
    train = [*python(), "-m", "loopwright", "train", str(run / FILE)]

    def command(run_dir: Path, plan: str | None) -> list[str]:
        # The test needs neither sinks nor exports.
        values = ["fit.save_every=5 steps", "sinks=[]", "export=null"]
        plans = [] if plan is None else [f"plan={json.dumps(plan)}"]
        return [*train, *plans, *values, "--run-dir", str(run_dir)]

    return command


def verify(
    title: str, command: Command, *, kills: int, seed: int, say: Callable[[str], None]
) -> Verdict:
    """Train twice, once undisturbed and once killed `kills` times, and compare."""
    moments = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="loopwright-verify-") as directory:
        whole, killed = Path(directory) / "whole", Path(directory) / "killed"
        say(f"training {title} undisturbed")
        finish(start(command, whole, None), whole)
        found = Store(whole / "checkpoints").newest()
        inexact = Inexact(tuple([] if found is None else recorded_reasons(found.content)))
        if inexact:
            return Verdict(0, 0 if found is None else found.step, 0, [], inexact)
        # Measurements vary: the second training follows the plans of the first.
        plan = str(whole / "plan.json")
        steps = sorted(moments.uniform(0, last_step(whole)) for _ in range(kills))
        for number, step in enumerate(steps):
            process = start(command, killed, plan)
            while process.poll() is None and last_step(killed) < step:
                time.sleep(0.002)
            time.sleep(moments.uniform(0.0, 0.05))
            process.send_signal(signal.SIGKILL)
            process.wait()
            found = Store(killed / "checkpoints").newest()
            at = "before the first checkpoint" if found is None else f"saved at step {found.step}"
            say(f"kill {number + 1} of {kills}: {at}")
        say("resuming until the end")
        finish(start(command, killed, plan), killed)
        return _compare(whole, killed, kills)


def start(command: Command, run_dir: Path, plan: str | None) -> "subprocess.Popen[bytes]":
    """Start a training in a child process; what it prints goes to files next to its run."""
    # Files, not pipes: a full pipe would block the training, because nothing reads from it.
    with _output(run_dir, "stdout").open("wb") as out, _output(run_dir, "stderr").open("wb") as err:
        # Output that a child suppresses would be lost if TensorFlow aborts during its import.
        environment = {**os.environ, UNQUIET: "1"}
        return subprocess.Popen(command(run_dir, plan), stdout=out, stderr=err, env=environment)


def finish(process: "subprocess.Popen[bytes]", run_dir: Path) -> None:
    """Wait for the end of a training; raise with the end of its output if it failed."""
    code = process.wait()
    if code:
        raise LoopwrightError(
            message(
                "The training failed without being killed by verify.",
                expected="exit code 0",
                received=failure(code, _tail(run_dir, "stderr"), _tail(run_dir, "stdout")),
                do="run the training without verify first",
            )
        )


def _output(run_dir: Path, stream: str) -> Path:
    return run_dir.with_name(f"{run_dir.name}.{stream}")


def _tail(run_dir: Path, stream: str) -> str:
    with _output(run_dir, stream).open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _MOST_READ_BYTES))
        return without_noise(file.read())[-_MOST_OUTPUT_BYTES:].decode(errors="replace")


def _compare(whole: Path, killed: Path, kills: int) -> Verdict:
    one, other = (Store(place / "checkpoints").newest() for place in (whole, killed))
    if one is None or other is None or one.step != other.step:
        at = [None if found is None else found.step for found in (one, other)]
        return Verdict(kills, at[0] or 0, 0, [f"the last step ({at[0]} and {at[1]})"])
    files = [read_manifest(found.path)["files"] for found in (one, other)]
    names = [name for name in sorted({*files[0], *files[1]}) if name.startswith("state.")]
    differing = [name for name in names if files[0].get(name) != files[1].get(name)]
    histories = [json.dumps(found.content["history"]["epoch_steps"]) for found in (one, other)]
    if histories[0] != histories[1]:
        differing.append("the history")
    return Verdict(kills, one.step, len(names), differing)
