"""Real processes, real signals: killed at any moment, a run ends with the same bits."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.resume.faults import ALL, record

PROGRAM = Path(__file__).with_name("program.py")
ROOT = PROGRAM.parents[2]
KILLS = 50 if ALL else 2
SIGNALS = 12 if ALL else 1
EVERYTHING = [(kind, plan) for kind in ("arrays", "stream") for plan in ("graph", "fused")]
SAMPLE = [("arrays", "fused"), ("stream", "graph")]


def start(
    run_dir: Path, kind: str, plan: str, under: Sequence[str] = (), **more: str
) -> "subprocess.Popen[str]":
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [*under, sys.executable, str(PROGRAM), str(run_dir), kind, plan],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path, **more},
    )


def finished(process: "subprocess.Popen[str]") -> list[str]:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err[-3000:]
    return out.splitlines()[-1].split()


def wait_for_steps(run_dir: Path, process: "subprocess.Popen[str]") -> None:
    """Until the first checkpoint is there: training is under way."""
    while process.poll() is None and not steps(run_dir):
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
            process = start(where, kind, plan)
            assert process.stdout is not None
            assert process.stdout.readline() == "begins\n"
            began = time.monotonic()
            known[kind, plan] = finished(process), time.monotonic() - began
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
            process = start(run_dir, kind, plan)
            if kills < KILLS:
                assert process.stdout is not None
                process.stdout.readline()  # imports are done
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(moments.uniform(0.0, seconds))
                process.kill()
            out, err = process.communicate(timeout=300)
            if process.returncode == 0:
                ended = out.splitlines()[-1].split()
            else:
                assert process.returncode == -signal.SIGKILL, err[-3000:]
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
    moments = random.Random(0)
    calls = ("fsync", "rename", "fchmod", "unlinkat", "mkdir")  # few others use these
    kills = 60 if ALL else 1
    for number in range(kills):
        run_dir = tmp_path / str(number)
        call, which = calls[number % len(calls)], moments.randint(1, 40)
        inject = f"inject={call}:signal=SIGKILL:when={which}"
        under = ["strace", "-f", "--seccomp-bpf", "-o", os.devnull, "-e", f"trace={call}"]
        process = start(run_dir, "arrays", "graph", under=[*under, "-e", inject])
        process.communicate(timeout=120)
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
        process = start(run_dir, "arrays", "graph")
        wait_for_steps(run_dir, process)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(moments.uniform(0.0, seconds / 4))
        before, sent = steps(run_dir), time.monotonic()
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        slowest = max(slowest, time.monotonic() - sent)
        if out.splitlines()[-1].startswith("end"):  # it was faster
            assert out.splitlines()[-1].split() == expected
            continue
        if number == signal.SIGINT:
            assert process.returncode in (1, 130, -signal.SIGINT)
            assert "KeyboardInterrupt" in err
        else:
            assert process.returncode == 143, err[-3000:]
        assert steps(run_dir) - before
        assert finished(start(run_dir, "arrays", "graph")) == expected
    record(
        f"{number.name} at a random moment", tried=SIGNALS, held=SIGNALS, seconds_to_exit=slowest
    )


def test_a_second_interrupt_leaves_at_once_and_harms_nothing(tmp_path: Path, undisturbed: Any):
    process = start(tmp_path / "run", "arrays", "graph")
    wait_for_steps(tmp_path / "run", process)
    process.send_signal(signal.SIGINT)
    time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode != 0
    assert finished(start(tmp_path / "run", "arrays", "graph")) == undisturbed("arrays", "graph")[0]
    record("SIGINT twice", tried=1, held=1)


def test_a_run_that_gets_no_more_memory_goes_on_where_it_was(tmp_path: Path, undisturbed: Any):
    process = start(tmp_path / "run", "arrays", "graph", LOOPWRIGHT_NO_MEMORY="1")
    process.communicate(timeout=120)
    assert process.returncode != 0
    assert steps(tmp_path / "run")
    assert finished(start(tmp_path / "run", "arrays", "graph")) == undisturbed("arrays", "graph")[0]
    record("no more memory", tried=1, held=1)


def test_a_second_process_in_the_same_run_is_refused(tmp_path: Path):
    first = start(tmp_path / "run", "arrays", "graph")
    wait_for_steps(tmp_path / "run", first)
    first.send_signal(signal.SIGSTOP)  # still there, and not faster than the other
    second = start(tmp_path / "run", "arrays", "graph")
    _, err = second.communicate(timeout=60)
    assert second.returncode == 1
    assert str(first.pid) in "".join(err.splitlines()[-4:])
    first.kill()
    first.communicate()
    record("two processes on one run", tried=1, held=1)
