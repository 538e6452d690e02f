"""Real processes, real signals: killed at any moment, a run ends with the same bits."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.resume.children import Child
from tests.resume.faults import ALL, record
from tests.resume.program import train_and_tell

PROGRAM = Path(__file__).with_name("program.py")
ROOT = PROGRAM.parents[2]
KILLS = 50 if ALL else 2
SIGNALS = 12 if ALL else 1
EVERYTHING = [(kind, plan) for kind in ("arrays", "stream") for plan in ("graph", "fused")]
SAMPLE = [(kind, "graph") for kind in ("arrays", "stream")]  # XLA compiles anew in each process


def start(run_dir: Path, kind: str, plan: str, **options: Any) -> Child:
    return Child(run_dir.with_suffix(".log"), train_and_tell, run_dir, kind, plan, options)


def finished(child: Child) -> list[str]:
    code, told = child.ended()
    assert code == 0, told[-3000:]
    return told.splitlines()[-1].split()


def wait_for_steps(run_dir: Path, child: Child) -> None:
    """Until the first checkpoint is there: training is under way."""
    while not child.is_over and not steps(run_dir):
        time.sleep(0.01)


def steps(run_dir: Path) -> set[str]:
    return {path.name for path in Path(run_dir).glob("checkpoints/step-????????")}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: Any) -> Any:
    """How a run ends that nobody disturbs, and how long that takes, by kind of data and plan."""
    known: dict[tuple[str, str], tuple[list[str], float]] = {}

    def end(kind: str, plan: str) -> tuple[list[str], float]:
        if (kind, plan) not in known:
            where = tmp_path_factory.mktemp("undisturbed") / "run"
            child = start(where, kind, plan)
            began = time.monotonic()  # the server has imported what it has to
            known[kind, plan] = finished(child), time.monotonic() - began
        return known[kind, plan]

    return end


@pytest.mark.timeout(3000)
@pytest.mark.parametrize(("kind", "plan"), EVERYTHING if ALL else SAMPLE)
def test_killed_at_random_moments_a_run_ends_with_the_same_bits(
    kind: str, plan: str, tmp_path: Path, undisturbed: Any
):
    expected, seconds = undisturbed(kind, plan)
    moments = random.Random(f"{kind} {plan}")
    kills, runs, silent = 0, 0, 0
    while kills < KILLS:
        runs += 1
        run_dir, before, ended = tmp_path / str(runs), set[str](), None
        while ended is None:
            child = start(run_dir, kind, plan)
            if kills < KILLS:
                child.wait(moments.uniform(0.0, seconds))
                child.send(signal.SIGKILL)
            code, told = child.ended()
            if code == 0:
                ended = told.splitlines()[-1].split()
            else:
                assert code == -signal.SIGKILL, told[-3000:]
                kills += 1
            silent += bool(before) and not steps(run_dir)
            before = steps(run_dir)
        assert ended == expected, f"after {kills} kills"
    assert silent == 0
    record("SIGKILL at a random moment", tried=kills, held=kills, silent_restarts=silent)


@pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed")
@pytest.mark.timeout(3000)
def test_killed_at_a_system_call_on_its_files_a_run_ends_with_the_same_bits(
    tmp_path: Path, undisturbed: Any
):
    expected, _ = undisturbed("arrays", "graph")
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    moments = random.Random(0)
    calls = ("fsync", "rename", "fchmod", "unlinkat", "mkdir")  # few others use these
    kills = 60 if ALL else 1
    for number in range(kills):
        run_dir = tmp_path / str(number)
        call, which = calls[number % len(calls)], moments.randint(1, 40)
        inject = f"inject={call}:signal=SIGKILL:when={which}"
        under = ["strace", "-f", "--seccomp-bpf", "-o", os.devnull, "-e", f"trace={call}"]
        arguments = [*under, "-e", inject, sys.executable, PROGRAM, run_dir, "arrays", "graph"]
        subprocess.run(arguments, capture_output=True, check=False, env=environment, timeout=120)
        assert finished(start(run_dir, "arrays", "graph")) == expected, (call, which)
    record("SIGKILL at a system call of a training", tried=kills, held=kills)


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_signal_saves_at_once_and_the_run_goes_on_with_the_same_bits(
    number: signal.Signals, tmp_path: Path, undisturbed: Any
):
    (expected, seconds), slowest = undisturbed("arrays", "graph"), 0.0
    moments = random.Random(int(number))
    for attempt in range(SIGNALS):
        run_dir = tmp_path / str(attempt)
        child = start(run_dir, "arrays", "graph")
        wait_for_steps(run_dir, child)
        child.wait(moments.uniform(0.0, seconds / 4))
        sent = time.monotonic()
        child.send(number)
        code, told = child.ended(60)
        slowest = max(slowest, time.monotonic() - sent)
        if code == 0:  # it was faster
            assert told.splitlines()[-1].split() == expected
            continue
        if number == signal.SIGINT:
            assert code == 1
            assert "KeyboardInterrupt" in told
        else:
            assert code == 143, told[-3000:]
        # Asked right after a checkpoint, it has nothing more to save.
        stopped = json.loads((run_dir / "status.json").read_text())["step"]
        assert stopped == max(int(name.removeprefix("step-")) for name in steps(run_dir))
        assert finished(start(run_dir, "arrays", "graph")) == expected
    record(
        f"{number.name} at a random moment", tried=SIGNALS, held=SIGNALS, seconds_to_exit=slowest
    )


def test_what_comes_while_a_signal_is_obeyed_harms_nothing(tmp_path: Path, undisturbed: Any):
    for first, then in ((signal.SIGINT, signal.SIGINT), (signal.SIGTERM, signal.SIGKILL)):
        before = steps(tmp_path / "run")
        child = start(tmp_path / "run", "arrays", "graph")
        while not child.is_over and steps(tmp_path / "run") == before:
            time.sleep(0.01)
        child.send(first)
        time.sleep(0.002)  # the last checkpoint may be under way, or not even begun
        child.send(then)
        code, _ = child.ended(60)
        assert code != 0
        assert steps(tmp_path / "run")
    assert finished(start(tmp_path / "run", "arrays", "graph")) == undisturbed("arrays", "graph")[0]
    record("SIGINT twice; SIGTERM, then SIGKILL", tried=2, held=2)


def test_a_run_that_gets_no_more_memory_goes_on_where_it_was(tmp_path: Path, undisturbed: Any):
    code, _ = start(tmp_path / "run", "arrays", "graph", memory_ends_at=20).ended(120)
    assert code != 0
    assert steps(tmp_path / "run")
    assert finished(start(tmp_path / "run", "arrays", "graph")) == undisturbed("arrays", "graph")[0]
    record("no more memory", tried=1, held=1)


def test_a_second_process_in_the_same_run_is_refused(tmp_path: Path):
    first = start(tmp_path / "run", "arrays", "graph")
    wait_for_steps(tmp_path / "run", first)
    first.send(signal.SIGSTOP)  # still there, and not faster than the other
    log = tmp_path / "second.log"
    code, told = Child(log, train_and_tell, tmp_path / "run", "arrays", "graph", {}).ended(60)
    assert code == 1
    assert str(first.pid) in "".join(told.splitlines()[-4:])
    first.send(signal.SIGKILL)
    first.ended()
    record("two processes on one run", tried=1, held=1)
