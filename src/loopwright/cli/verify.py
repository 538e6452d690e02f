"""Train a program twice, and compare: the second time with random kills, or without.

Every training runs in a child process, in a temporary directory.
"""

import json
import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, final

from loopwright import runs
from loopwright.checkpoints.store import Store
from loopwright.cli.compare_command import compared_states
from loopwright.errors import LoopwrightError
from loopwright.exactness import Inexact, recorded_reasons
from loopwright.insight.comparison import differences, equal_until
from loopwright.processes import failure, python
from loopwright.quiet_start import UNQUIET, without_noise
from loopwright.settings import last_step

_MOST_OUTPUT_BYTES = 2000
_MOST_READ_BYTES = 20_000
_EXIT_INEXACT = 4
# The tests need neither sinks nor exports.
_VALUES = ("sinks=[]", "export=null")


@final
class Verdict(NamedTuple):
    """What two trainings have shown: in words, and as the exit code of `loopwright verify`."""

    text: str
    exit_code: int


Command = Callable[[Path, str | None], list[str]]
"""Returns the command to start, given a run directory and a plan; None: its own plan."""


def command_for(source: str, *values: str) -> Command:
    """Return the command that trains a task or a config from scratch, in another directory."""
    train = [*python(), "-m", "loopwright", "train", source, *_VALUES, *values]

    def words(run_dir: Path, plan: str | None) -> list[str]:
        plans = [] if plan is None else [f"plan={json.dumps(plan)}"]
        return [*train, *plans, "--run-dir", str(run_dir)]

    return words


def train_and_kill(
    title: str, command: Command, *, kills: int, seed: int, say: Callable[[str], None]
) -> Verdict:
    """Train twice, once undisturbed and once killed `kills` times, and compare."""
    moments = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="loopwright-verify-") as directory:
        whole, killed = Path(directory) / "whole", Path(directory) / "killed"
        say(f"training {title} undisturbed")
        _finish(_start(command, whole, None), whole)
        found = Store(whole / "checkpoints").newest()
        inexact = Inexact(tuple([] if found is None else recorded_reasons(found.content)))
        if inexact:
            return Verdict(str(inexact), _EXIT_INEXACT)
        # Measurements vary: the second training follows the plans of the first.
        plan = str(whole / "plan.json")
        steps = sorted(moments.uniform(0, last_step(whole)) for _ in range(kills))
        for number, step in enumerate(steps):
            process = _start(command, killed, plan)
            while process.poll() is None and last_step(killed) < step:
                time.sleep(0.002)
            time.sleep(moments.uniform(0.0, 0.05))
            process.send_signal(signal.SIGKILL)
            process.wait()
            saved = last_step(killed)
            at = f"saved at step {saved}" if saved else "before the first checkpoint"
            say(f"kill {number + 1} of {kills}: {at}")
        say("resuming until the end")
        _finish(_start(command, killed, plan), killed)
        return _compare_ends(whole, killed, kills)


def _start(command: Command, run_dir: Path, plan: str | None) -> "subprocess.Popen[bytes]":
    """Start a training in a child process; what it prints goes to files next to its run."""
    # Files, not pipes: a full pipe would block the training, because nothing reads from it.
    with _output(run_dir, "stdout").open("wb") as out, _output(run_dir, "stderr").open("wb") as err:
        # Output that a child suppresses would be lost if TensorFlow aborts during its import.
        environment = {**os.environ, UNQUIET: "1"}
        return subprocess.Popen(command(run_dir, plan), stdout=out, stderr=err, env=environment)


def _finish(process: "subprocess.Popen[bytes]", run_dir: Path) -> None:
    """Wait for the end of a training; raise with the end of its output if it failed."""
    code = process.wait()
    if code:
        raise LoopwrightError(
            "The training failed without being killed by verify.",
            expected="exit code 0",
            received=failure(code, _tail(run_dir, "stderr"), _tail(run_dir, "stdout")),
            do="run the training without verify first",
        )


def _output(run_dir: Path, stream: str) -> Path:
    return run_dir.with_name(f"{run_dir.name}.{stream}")


def _tail(run_dir: Path, stream: str) -> str:
    with _output(run_dir, stream).open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _MOST_READ_BYTES))
        return without_noise(file.read())[-_MOST_OUTPUT_BYTES:].decode(errors="replace")


def _compare_ends(whole: Path, killed: Path, kills: int) -> Verdict:
    one, other = (Store(place / "checkpoints").newest() for place in (whole, killed))
    if one is None or other is None or one.step != other.step:
        at = [None if found is None else found.step for found in (one, other)]
        differing = [f"the last step ({at[0]} and {at[1]})"]
    else:
        files = [found.files for found in (one, other)]
        names = [name for name in sorted({*files[0], *files[1]}) if name.startswith("state.")]
        differing = [name for name in names if files[0].get(name) != files[1].get(name)]
        if one.content["history"]["epoch_steps"] != other.content["history"]["epoch_steps"]:
            differing.append("the history")
    what = f"{last_step(whole):,} steps, killed and resumed {kills} times"
    if differing:
        return Verdict(f"NOT EXACT: {what}: different bits in {', '.join(differing)}", 1)
    return Verdict(f"exact: {what}: identical bits", 0)


def train_twice(
    title: str, command: Command, code: Sequence[str], *, say: Callable[[str], None]
) -> Verdict:
    """Train twice from the beginning, the second time by the plans of the first, and compare."""
    with tempfile.TemporaryDirectory(prefix="loopwright-repeat-") as directory:
        first, second = Path(directory) / "first", Path(directory) / "second"
        say(f"training {title}")
        _finish(_start(command, first, None), first)
        say("training it again, by the same plans")
        _finish(_start(command, second, str(first / "plan.json")), second)
        records = [runs.open(first), runs.open(second)]
        return _compare_runs(records, list(code), say)


def _compare_runs(
    records: Sequence[runs.RunRecord], code: list[str], say: Callable[[str], None]
) -> Verdict:
    one, other = records
    last = min(max(one.checksums, default=0), max(other.checksums, default=0))
    equal, differing = equal_until(one, other)
    reasons = recorded_reasons(one.content)
    is_same = equal == last and differing is None
    if is_same:
        lines = [f"it could not be resumed exactly: {reason}" for reason in reasons]
    else:
        lines = [] if equal is None else [f"equal until step {equal:,} at least"]
        causes = [*_causes_in_record(records), *reasons]
        lines += [f"cause: {cause}" for cause in causes]
        if not causes:
            say("looking for the first step that differs")
            found = compared_states(records, [], code, find=True)
            is_same, lines = not found.differs, [*found.lines]
    trained = f"{last:,} steps, trained twice"
    head = f"repeats itself: {trained}: identical bits"
    if not is_same:
        head = f"DOES NOT REPEAT ITSELF: {trained}: different bits"
    return Verdict("\n".join([head, *lines]), int(not is_same))


def _causes_in_record(records: Sequence[runs.RunRecord]) -> list[str]:
    """Return what the two trainings have recorded differently, in words."""
    found = differences(records)
    words = {
        "data": "the data differs each time it is made, so something in it draws without a seed",
        "program": "the program builds something else each time",
        "code": "the code differs each time",
    }
    texts = list[str]()
    for kind, text in words.items():
        own = [each for each in found if each.kind == kind]
        if own:
            more = f", and {len(own) - 2} more" if len(own) > 2 else ""
            texts.append(f"{text}: {'; '.join(map(str, own[:2]))}{more}")
    return texts
