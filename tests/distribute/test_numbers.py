"""Workers that are started as SLURM starts them train as one process, and hold the same bits."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.distribute.trainings import tell_numbers
from tests.distribute.workers import Workers, slurm_variables
from tests.resume.faults import ALL


@pytest.fixture(scope="module", params=[(3, 1), (2, 2)] if ALL else [(3, 1)], ids=str)
def told(request: Any, tmp_path_factory: Any) -> dict[str, Any]:
    """What so many workers with so many devices, and one process alone, have written down."""
    out: Path = tmp_path_factory.mktemp("numbers")
    count, devices = request.param
    workers = Workers(out / "together", count, tell_numbers, out, devices, told=slurm_variables)
    together = workers.ended()
    alone = Workers(out / "one", 1, tell_numbers, out).ended()
    for code, log in together + alone:
        assert code == 0, log[-3000:]
    return {path.stem: pickle.loads(path.read_bytes()) for path in out.glob("*.pickle")}


def test_all_workers_hold_the_same_bits(told: dict[str, Any]):
    first, *others = (numbers for worker, numbers in told.items() if worker != "None")
    assert others
    assert any(name.startswith("drawn generator") for name in first)
    for other in others:
        assert other.keys() == first.keys()
        for name, value in first.items():
            np.testing.assert_array_equal(other[name], value, err_msg=name)


TRAINED = ["arrays", "stream", "shares", "digits", "gan", "compiled", "score", "predictions"]


@pytest.mark.parametrize("what", TRAINED)
def test_several_workers_train_as_one_does(what: str, told: dict[str, Any]):
    # What each replica keeps for itself, like the sums of metrics, has no counterpart.
    compared = [n for n in told["None"] if n.split()[0] == what and n in told["0"]]
    assert compared
    for name in compared:
        one, several = told["None"][name], told["0"][name]
        np.testing.assert_allclose(several, one, rtol=1e-5, atol=1e-6, err_msg=name)


def test_all_kinds_of_numbers_were_compared(told: dict[str, Any]):
    assert {"arrays history val_near_mae", "score mae", "shares history val_loss"} <= set(told["0"])


def test_a_worker_on_loopback_hears_this_machine_alone(told: dict[str, Any]):
    assert told["0"]["heard here"]
    assert not any(told["0"]["heard elsewhere"])


def test_what_would_not_be_the_same_on_all_workers_is_refused(told: dict[str, Any]):
    refused = {name: str(text) for name, text in told["0"].items() if name.startswith("refused")}
    assert refused == {
        "refused data": "The workers do not have the same data or settings.",
        "refused lengths": "The workers do not have the same data or settings.",
        "refused callback": "CSVLogger would write the same files from every worker.",
        "refused plan": "The plan 'fused' cannot run this task: XLA does not run a step on several "
        "replicas.",
    }
