"""Workers in a run directory: one writes, all stop at the same step, and go on bit for bit."""

import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.distribute.trainings import (
    COMMIT,
    train_edited,
    train_exactly,
    train_over_a_bad_batch,
)
from tests.distribute.workers import Workers
from tests.resume.faults import ALL, record

from loopwright.checkpoints.store import Store
from loopwright.errors import EXIT_WORKER_LOST


def bits(run: Path) -> dict[str, bytes]:
    """The tensors of the last checkpoint, and its step."""
    found = Store(run / "checkpoints").newest()
    assert found is not None
    files = {path.name: path.read_bytes() for path in found.path.glob("state.*")}
    return {"step": str(found.step).encode(), **files}


def ended(workers: Workers, expected: int = 0) -> list[str]:
    """What they have printed, after all have ended with the same exit code."""
    found = workers.ended()
    for code, log in found:
        assert code == expected, log[-3000:]
    return [log for _, log in found]


@pytest.fixture(scope="module", params=["shares", "arrays", "stream"] if ALL else ["shares"])
def whole(request: Any, tmp_path_factory: Any) -> tuple[str, Path]:
    """A run of two workers that nobody disturbed."""
    directory: Path = tmp_path_factory.mktemp(request.param)
    ended(Workers(directory / "logs", 2, train_exactly, str(directory / "run"), request.param))
    return request.param, directory / "run"


def test_only_the_first_worker_writes_into_the_run(whole: tuple[str, Path]):
    _, run = whole
    assert (run / "worker-1.log").read_text().count("/3 · 13 steps") == 3
    assert not (run / "worker-0.log").exists()
    assert (run / "metrics.jsonl").read_text().count('"event": "epoch_ended"') == 3


def test_all_workers_refuse_an_edited_program_or_start_over_together(
    whole: tuple[str, Path], tmp_path: Path
):
    kind, run = whole
    given = (str(shutil.copytree(run, tmp_path / "run")), kind)
    for log in ended(Workers(tmp_path / "refused", 2, train_edited, *given, "refuse"), 1):
        assert "seed: 0 -> 7" in log
    ended(Workers(tmp_path / "over", 2, train_edited, *given, "start_over"))
    assert len(list(tmp_path.glob("run.old-*"))) == 1
    assert bits(tmp_path / "run")["step"] == b"39"


chance = random.Random(int(os.environ.get("FAULTS_SEED", "0")))
MOMENTS: list[tuple[int, int | str]] = [
    (1, 14),
    (0, "validation"),
    (1, "start"),
    *((chance.randrange(2), chance.randrange(1, 39)) for _ in range(5)),
]


@pytest.mark.parametrize(("worker", "moment"), MOMENTS if ALL else MOMENTS[:1])
def test_a_signal_to_one_worker_stops_all_at_one_step_and_the_run_goes_on(
    worker: int, moment: int | str, whole: tuple[str, Path], tmp_path: Path
):
    kind, run = whole
    given = (str(tmp_path / "run"), kind)
    ended(
        Workers(tmp_path / "first", 2, train_exactly, *given, worker, signal.SIGTERM, moment), 143
    )
    if isinstance(moment, int):
        assert bits(tmp_path / "run")["step"] == str(moment).encode()
    if kind == "shares":
        (log,) = ended(Workers(tmp_path / "alone", 1, train_exactly, *given), 1)
        assert "The number of workers changed; data positions are saved per worker." in log
        assert "expected: 2 worker(s), as when this run began" in log
    ended(Workers(tmp_path / "second", 2, train_exactly, *given))
    is_same = bits(tmp_path / "run") == bits(run)
    record("SIGTERM to one of two workers", tried=1, held=int(is_same))
    assert is_same


GONE: dict[str, tuple[int, int, int | str]] = {
    # Step 9 is saved in the background while step 10 is run.
    "stopped worker": (1, signal.SIGSTOP, 10),
    "chief killed between writing and commit": (0, signal.SIGKILL, COMMIT),
    "killed chief": (0, signal.SIGKILL, 10),
    "stopped chief": (0, signal.SIGSTOP, 10),
    "killed worker": (1, signal.SIGKILL, 10),
}


@pytest.mark.parametrize("which", list(GONE)[: None if ALL else 2])
def test_a_worker_that_is_gone_ends_the_other_and_the_run_goes_on_bit_for_bit(
    which: str, whole: tuple[str, Path], tmp_path: Path
):
    (victim, number, at), (kind, run) = GONE[which], whole
    given = (str(tmp_path / "run"), kind)
    workers = Workers(tmp_path / "first", 2, train_exactly, *given, victim, number, at)
    code, log = workers.each[1 - victim].ended(60)
    noticed = time.time() - float((tmp_path / "gone").read_text())
    workers.each[victim].send(signal.SIGKILL)
    assert code == EXIT_WORKER_LOST, log[-3000:]
    assert "Lost connection to another worker" in log
    assert "loopwright launch --restarts" in log
    if at == COMMIT:
        assert bits(tmp_path / "run")["step"] == b"6"  # of step 9 there is all but the name
    ended(Workers(tmp_path / "second", 2, train_exactly, *given))
    is_same = bits(tmp_path / "run") == bits(run)
    fault = f"of two workers: {which}, all started again"
    record(fault, tried=1, held=int(is_same), seconds_until_noticed=noticed)
    assert is_same


def test_a_run_of_two_workers_goes_on_with_one_and_says_since_when_bits_may_differ(tmp_path: Path):
    given = (str(tmp_path / "run"), "arrays")
    ended(Workers(tmp_path / "two", 2, train_exactly, *given, 0, signal.SIGUSR1, 14), 143)
    (log,) = ended(Workers(tmp_path / "one", 1, train_exactly, *given))
    assert "replicas: 2 then, 1 now): this run continues, and is bit-exact until step 14" in log
    assert bits(tmp_path / "run")["step"] == b"39"


def test_all_workers_go_back_before_a_bad_batch_and_leave_it_out(tmp_path: Path):
    given = (str(tmp_path / "run"), str(tmp_path / "weights"))
    ended(Workers(tmp_path / "two", 2, train_over_a_bad_batch, *given))
    given = (str(tmp_path / "alone"), str(tmp_path / "weights"))
    ended(Workers(tmp_path / "one", 1, train_over_a_bad_batch, *given))
    first, second, alone = (np.load(tmp_path / f"weights-{who}.npy") for who in (0, 1, None))
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(first, alone, rtol=1e-5)
    assert (tmp_path / "run" / "metrics.jsonl").read_text().count("batch_skipped") == 2
