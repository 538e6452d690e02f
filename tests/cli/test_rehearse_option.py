"""`loopwright train --rehearse`, as a person uses it."""

from pathlib import Path

import pytest
from tests.cli.small_project import enter, invoke

MINE = """
import keras, numpy as np
import loopwright as lw


def make_task(*, seed=0, rate=0.05):
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    return lw.Supervised(model, "mse", keras.optimizers.Adam(rate))


def experiment(*, poisoned=False):
    x = np.random.default_rng(0).normal(size=(50, 3)).astype("float32")
    if poisoned:
        x[:] = np.inf
    fit = {"x": x, "y": x[:, :2], "validation_data": (x, x[:, :2]), "batch_size": 16}
    return lw.Experiment(make_task, fit={**fit, "epochs": 3})
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return enter(tmp_path, monkeypatch, mine=MINE)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.name != "__pycache__")


def test_a_rehearsal_prints_its_page_and_writes_nothing(project: Path):
    code, output = invoke("train", "mine:experiment", "--rehearse", "--overfit")
    assert code == 0, output
    assert "ok  last batch  4 of 4, 2 examples" in output
    assert "whole run" in output
    assert "12 steps" in output
    assert (
        "until 3 epochs of 4 steps; validate every 1 epoch; save every 600 seconds, at the best "
        "val_loss and at the end" in " ".join(output.split())
    )
    assert names(project) == ["mine.py"]


def test_a_step_that_does_not_learn_one_batch_is_exit_code_1(project: Path):
    code, output = invoke("train", "mine:experiment", "--rehearse", "--overfit", "model.rate=1e-9")
    assert code == 1
    assert "learning rate too small" in " ".join(output.split())


def test_nan_in_a_rehearsal_is_exit_code_3_and_names_the_part(project: Path):
    code, output = invoke("train", "mine:experiment", "--rehearse", "data.poisoned=true")
    assert code == 3, output
    assert 'The rehearsal failed in the part "first batch".' in output


def test_a_config_that_a_resumed_run_refuses_is_refused(project: Path):
    assert invoke("train", "mine:experiment", "fit.verbose=0")[0] == 0
    before = sorted(project.rglob("*"))
    code, output = invoke("train", "mine:experiment", "--rehearse", "seed=5")
    assert code == 2
    assert "seed" in output
    code, output = invoke("train", "mine:experiment", "--rehearse", "fit.epochs=9")
    assert code == 0, output
    assert "resumes from step 12" in output
    code, output = invoke("train", "mine:experiment", "--rehearse", "--fresh", "seed=5")
    assert code == 0
    assert "is moved aside" in output
    assert sorted(project.rglob("*")) == before


@pytest.mark.parametrize("option", ["--overfit", "--callbacks"])
def test_options_of_a_rehearsal_need_one(option: str, project: Path):
    code, output = invoke("train", "mine:experiment", option)
    assert code == 2
    assert f"--rehearse {option}" in output
