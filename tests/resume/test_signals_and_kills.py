"""Real processes, real signals: killed at any moment, a run ends with the same bits."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("program.py")
SAMPLE = int(os.environ.get("LOOPWRIGHT_KILLS", "3"))


def start(run_dir, kind, plan):
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), str(run_dir), kind, plan],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process):
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err[-3000:]
    return out.splitlines()[-1].split()


def wait_for_steps(run_dir, process):
    """Until the first checkpoint is there: training is under way."""
    while process.poll() is None and not list(Path(run_dir).glob("checkpoints/step-????????")):
        time.sleep(0.01)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """How a run ends that nobody disturbs, by kind of data and plan."""
    known = {}

    def end(kind, plan):
        if (kind, plan) not in known:
            where = tmp_path_factory.mktemp("undisturbed") / "run"
            known[kind, plan] = finished(start(where, kind, plan))
        return known[kind, plan]

    return end


@pytest.mark.parametrize(("kind", "plan"), [("arrays", "graph"), ("stream", "fused")])
def test_killed_at_random_moments_a_run_ends_with_the_same_bits(kind, plan, tmp_path, undisturbed):
    expected = undisturbed(kind, plan)
    moments = random.Random(f"{kind} {plan}")
    for _ in range(SAMPLE):
        process = start(tmp_path / "run", kind, plan)
        wait_for_steps(tmp_path / "run", process)
        time.sleep(moments.uniform(0.0, 0.4))
        process.kill()
        process.communicate()
        assert process.returncode in (0, -signal.SIGKILL)
    assert finished(start(tmp_path / "run", kind, plan)) == expected


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_signal_saves_at_once_and_the_run_goes_on_with_the_same_bits(
    number, tmp_path, undisturbed
):
    process = start(tmp_path / "run", "arrays", "graph")
    wait_for_steps(tmp_path / "run", process)
    steps = {path.name for path in (tmp_path / "run/checkpoints").glob("step-????????")}
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    if number == signal.SIGINT:
        assert process.returncode in (1, 130, -signal.SIGINT)
        assert "KeyboardInterrupt" in err
    else:
        assert process.returncode == 143, err[-3000:]
    assert {path.name for path in (tmp_path / "run/checkpoints").glob("step-????????")} - steps
    assert finished(start(tmp_path / "run", "arrays", "graph")) == undisturbed("arrays", "graph")


def test_a_second_process_in_the_same_run_is_refused(tmp_path):
    first = start(tmp_path / "run", "arrays", "graph")
    wait_for_steps(tmp_path / "run", first)
    second = start(tmp_path / "run", "arrays", "graph")
    _, err = second.communicate(timeout=60)
    assert second.returncode == 1
    assert str(first.pid) in err.splitlines()[-4:].__str__()
    first.kill()
    first.communicate()
