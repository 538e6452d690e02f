"""`loopwright find` and `loopwright profile`, on a small program of one's own."""

from pathlib import Path

import pytest
from tests.cli.small_project import enter, invoke

MINE = """
import keras, numpy as np
import loopwright as lw

def task():
    layers = [keras.Input((4,)), keras.layers.Dense(8, "relu", name="wide"), keras.layers.Dense(1)]
    return lw.Supervised(keras.Sequential(layers), "mse", keras.optimizers.SGD(0.01))

def experiment():
    x = np.random.default_rng(0).normal(size=(128, 4)).astype("float32")
    return lw.Experiment(task, fit={"x": x, "y": x.sum(axis=1, keepdims=True), "batch_size": 16})
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return enter(tmp_path, monkeypatch, searched=MINE)


def printed(*arguments: str) -> str:
    code, output = invoke(*arguments)
    assert code == 0, output
    assert max(map(len, output.splitlines())) <= 80
    return output


def test_a_learning_rate_is_found_with_a_figure_and_no_run_is_written(project: Path):
    output = printed("find", "learning-rate", "searched:experiment", "--figure", "rates.png")
    assert "<- suggestion" in output
    assert "figure: rates.png" in output
    assert {path.name for path in project.iterdir()} - {"__pycache__"} == {
        "searched.py",
        "rates.png",
    }
    wrong = invoke("find", "learning-rate", "searched:experiment", "--optimizer", "other")
    assert "has no such optimizer" in wrong[1]


def test_a_profile_names_layers_and_keeps_files_where_it_is_told(project: Path):
    output = printed("profile", "searched:experiment", "--steps", "10", "--directory", "kept")
    assert "wide (Dense)" in output
    assert "tensorboard --logdir kept" in output
    assert list((project / "kept").rglob("*.xplane.pb"))
    assert not (project / "runs").exists()
