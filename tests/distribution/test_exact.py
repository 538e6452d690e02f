"""Workers in a run directory: one writes, all stop at the same step, and go on bit for bit."""

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
    "killed chief": (0, signal.SIGKILL),
    "stopped worker": (1, signal.SIGSTOP),
    "stopped chief": (0, signal.SIGSTOP),
    "killed worker": (1, signal.SIGKILL),
}


@pytest.mark.parametrize(("victim", "number"), list(GONE.values())[: None if ALL else 2], ids=str)
def test_a_worker_that_is_gone_ends_the_other_with_a_code_to_be_retried(
    victim: int, number: signal.Signals, tmp_path: Path
):
    given = (str(tmp_path / "run"), "arrays", victim, number, 8)
    workers = Workers(tmp_path / "logs", 2, train_exactly, *given)
    code, log = workers.each[1 - victim].ended(60)
    workers.each[victim].send(signal.SIGKILL)
    assert code == EXIT_WORKER_LOST, log[-3000:]
    assert "Another worker is gone" in log
