"""Workers in a run directory: one writes, all stop at the same step, and go on bit for bit."""

import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.distribution.program import train_exactly
from tests.distribution.workers import Workers
from tests.resume.faults import ALL, record

from loopwright.checkpoint import Store
from loopwright.errors import EXIT_WORKER_LOST


def bits(run: Path) -> dict[str, bytes]:
    """The tensors of the last checkpoint, and its step."""
    found = Store(run / "checkpoints").newest()
    assert found is not None
    files = {path.name: path.read_bytes() for path in found.path.glob("state.*")}
    return {"step": str(found.step).encode(), **files}


@pytest.fixture(scope="module", params=["arrays", "stream"] if ALL else ["stream"])
def whole(request: Any, tmp_path_factory: Any) -> tuple[str, Path]:
    """A run of two workers that nobody disturbed."""
    directory: Path = tmp_path_factory.mktemp(request.param)
    workers = Workers(directory / "logs", 2, train_exactly, str(directory / "run"), request.param)
    for code, log in workers.ended():
        assert code == 0, log[-3000:]
    return request.param, directory / "run"


def test_only_the_first_worker_writes_into_the_run(whole: tuple[str, Path]):
    _, run = whole
    assert (run / "worker-1.log").read_text().count("epoch") == 3
    assert not (run / "worker-0.log").exists()
    assert (run / "metrics.jsonl").read_text().count('"event": "epoch_ended"') == 3


def test_a_signal_to_one_worker_stops_all_at_one_step_and_the_run_goes_on(
    whole: tuple[str, Path], tmp_path: Path
):
    kind, run = whole
    given = (str(tmp_path / "run"), kind)
    stopped = Workers(tmp_path / "first", 2, train_exactly, *given, 1, signal.SIGTERM, 14)
    for code, log in stopped.ended():
        assert code == 143, log[-3000:]
    assert bits(tmp_path / "run")["step"] == b"14"
    for code, log in Workers(tmp_path / "second", 2, train_exactly, *given).ended():
        assert code == 0, log[-3000:]
    assert bits(tmp_path / "run") == bits(run)


GONE = {
    "stopped worker": (1, signal.SIGSTOP),
    "killed chief": (0, signal.SIGKILL),
    "stopped chief": (0, signal.SIGSTOP),
    "killed worker": (1, signal.SIGKILL),
}


@pytest.mark.parametrize("which", list(GONE)[: None if ALL else 1])
def test_a_worker_that_is_gone_ends_the_other_and_the_run_goes_on_bit_for_bit(
    which: str, whole: tuple[str, Path], tmp_path: Path
):
    (victim, number), (kind, run) = GONE[which], whole
    given = (str(tmp_path / "run"), kind)
    # Step 9 is saved in the background while step 10 is run.
    workers = Workers(tmp_path / "first", 2, train_exactly, *given, victim, number, 10)
    code, log = workers.each[1 - victim].ended(60)
    workers.each[victim].send(signal.SIGKILL)
    assert code == EXIT_WORKER_LOST, log[-3000:]
    assert "Another worker is gone" in log
    assert "loopwright launch --restarts" in log
    for code, log in Workers(tmp_path / "second", 2, train_exactly, *given).ended():
        assert code == 0, log[-3000:]
    is_same = bits(tmp_path / "run") == bits(run)
    record(f"of two workers: {which}, all started again", tried=1, held=int(is_same))
    assert is_same


def test_a_run_of_two_workers_goes_on_with_one_and_says_since_when_bits_may_differ(
    whole: tuple[str, Path], tmp_path: Path
):
    kind, run = whole
    shutil.copytree(run, tmp_path / "run")
    for later in sorted((tmp_path / "run" / "checkpoints").glob("step-????????"))[1:]:
        shutil.rmtree(later)
    before = int(bits(tmp_path / "run")["step"])
    ((code, log),) = Workers(
        tmp_path / "alone", 1, train_exactly, str(tmp_path / "run"), kind
    ).ended()
    assert code == 0, log[-3000:]
    assert (
        f"replicas: 2 then, 1 now): this run goes on, and is bit-exact until step {before}" in log
    )
    assert bits(tmp_path / "run")["step"] == bits(run)["step"]
