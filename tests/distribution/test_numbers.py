"""Two workers, started as SLURM starts them, train as one process and hold the same bits."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.distribution.program import tell_numbers
from tests.distribution.workers import Workers, slurm_variables


@pytest.fixture(scope="module")
def told(tmp_path_factory: Any) -> dict[str, Any]:
    """What two workers, and one process alone, have written down."""
    out: Path = tmp_path_factory.mktemp("numbers")
    together = Workers(out / "two", 2, tell_numbers, out, told=slurm_variables).ended()
    alone = Workers(out / "one", 1, tell_numbers, out).ended()
    for code, log in together + alone:
        assert code == 0, log[-3000:]
    return {path.stem: pickle.loads(path.read_bytes()) for path in out.glob("*.pickle")}


def test_two_workers_hold_the_same_bits(told: dict[str, Any]):
    assert told["0"].keys() == told["1"].keys()
    assert any(name.startswith("gan generator") for name in told["0"])
    for name, value in told["0"].items():
        np.testing.assert_array_equal(told["1"][name], value, err_msg=name)


def test_two_workers_train_as_one_does(told: dict[str, Any]):
    compared = [name for name in told["None"] if not name.startswith("gan")]
    assert {"history val_near_mae", "score mae", "predictions", "stream loss"} <= set(compared)
    for name in compared:
        one, two = told["None"][name], told["0"][name]
        np.testing.assert_allclose(two, one, rtol=1e-5, atol=1e-6, err_msg=name)
