"""`loopwright find` and `loopwright profile`, on a small program of one's own."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from loopwright.cli import main
from loopwright.errors import LoopwrightError

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
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "searched.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("searched", None)


def invoke(*arguments: str) -> str:
    done = CliRunner().invoke(main.app, list(arguments))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    assert max(map(len, done.output.splitlines())) <= 80
    return done.output


def test_a_learning_rate_is_found_with_a_figure_and_no_run_is_written(project: Path):
    output = invoke("find", "learning-rate", "searched:experiment", "--figure", "rates.png")
    assert "<- suggestion" in output
    assert "figure: rates.png" in output
    assert {path.name for path in project.iterdir()} - {"__pycache__"} == {
        "searched.py",
        "rates.png",
    }
    with pytest.raises(LoopwrightError, match="has no such optimizer"):
        invoke("find", "learning-rate", "searched:experiment", "--optimizer", "other")


def test_the_help_of_find_lists_no_removed_command():
    output = invoke("find", "--help")
    assert "learning-rate" in output
    assert "batch" not in output


def test_a_profile_names_layers_and_keeps_files_where_it_is_told(project: Path):
    output = invoke("profile", "searched:experiment", "--steps", "10", "--directory", "kept")
    assert "wide (Dense)" in output
    assert "tensorboard --logdir kept" in output
    assert list((project / "kept").rglob("*.xplane.pb"))
    assert not (project / "runs").exists()
