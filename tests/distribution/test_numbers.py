"""Workers that are started as SLURM starts them train as one process, and hold the same bits."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.distribution.program import tell_numbers
from tests.distribution.workers import Workers, slurm_variables
from tests.resume.faults import ALL


@pytest.fixture(scope="module")
def told(tmp_path_factory: Any) -> dict[str, Any]:
    """What two workers, and one process alone, have written down."""
    out: Path = tmp_path_factory.mktemp("numbers")
    count = 3 if ALL else 2
    together = Workers(out / "together", count, tell_numbers, out, told=slurm_variables).ended()
    alone = Workers(out / "one", 1, tell_numbers, out).ended()
    for code, log in together + alone:
        assert code == 0, log[-3000:]
    return {path.stem: pickle.loads(path.read_bytes()) for path in out.glob("*.pickle")}


def test_all_workers_hold_the_same_bits(told: dict[str, Any]):
    workers = [told[key] for key in sorted(told) if key != "None"]
    assert len(workers) > 1
    assert any(name.startswith("gan generator") for name in workers[0])
    for other in workers[1:]:
        assert other.keys() == workers[0].keys()
        for name, value in workers[0].items():
            np.testing.assert_array_equal(other[name], value, err_msg=name)


def test_several_workers_train_as_one_does(told: dict[str, Any]):
    compared = [name for name in told["None"] if not name.startswith("gan")]
    assert {"history val_near_mae", "score mae", "predictions", "stream loss"} <= set(compared)
    for name in compared:
        one, two = told["None"][name], told["0"][name]
        np.testing.assert_allclose(two, one, rtol=1e-5, atol=1e-6, err_msg=name)


def test_what_would_not_be_the_same_on_all_workers_is_refused(told: dict[str, Any]):
    refused = {name: str(text) for name, text in told["0"].items() if name.startswith("refused")}
    assert refused == {
        "refused data": "The workers do not have the same data or settings.",
        "refused callback": "CSVLogger would write the same files from every worker.",
        "refused plan": "The plan 'fused' cannot run this: XLA does not run a step on several "
        "replicas.",
    }
