"""A small experiment of a person's own, and commands called on it in this process."""

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from loopwright.cli import main
from loopwright.errors import LoopwrightError

MINE = """
import keras, numpy as np
import loopwright as lw


def make_task(*, seed=0, rate=0.01, width=4):
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(width, "relu"), keras.layers.Dropout(0.5, seed=1)]
    model = keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dense(1)])
    return lw.Supervised(model, "mse", keras.optimizers.Adam(rate))


def experiment(*, rows=60):
    x = np.random.default_rng(0).normal(size=(rows, 3)).astype("float32")
    y = x.sum(axis=1, keepdims=True)
    fit = {"x": x, "y": y, "validation_data": (x, y), "epochs": 4, "batch_size": 10}
    return lw.Experiment(make_task, fit=fit)
"""

LINEAR = """
import functools, keras, numpy as np
import loopwright as lw


def make_task(*, seed=0, channels=None, loss="mse"):
    keras.utils.set_random_seed(seed)
    shape = (3,) if channels is None else (4, 4, channels)
    model = keras.Sequential([keras.Input(shape), keras.layers.Flatten(), keras.layers.Dense(2)])
    return lw.Supervised(model, loss, "sgd")


def experiment(*, rows=64, channels=None, poisoned=False):
    shape = (3,) if channels is None else (4, 4, channels)
    x = np.random.default_rng(0).normal(size=(rows, *shape)).astype("float32")
    y = np.zeros((rows, 2), "float32")
    if poisoned:
        x[5] = np.nan
    fit = {"x": x, "y": y, "validation_data": (x, y), "epochs": 2, "batch_size": 16}
    return lw.Experiment(functools.partial(make_task, channels=channels), fit=fit)
"""
"""A model without random numbers, for vectors or for images, and data with NaN if asked for."""


def enter(directory: Path, monkeypatch: pytest.MonkeyPatch, **programs: str) -> Path:
    """Write modules into a directory, which becomes the working directory: `mine=MINE`."""
    monkeypatch.chdir(directory)
    for name, text in programs.items():
        (directory / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    return directory


def invoke(*arguments: str) -> tuple[int, str]:
    """Exit code and output of a command in this process, as `main` would end it."""
    done = CliRunner().invoke(main.app, list(arguments))
    if isinstance(done.exception, LoopwrightError):
        return main.exit_code(done.exception), done.output + f"error: {done.exception}"
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.output


def content_of(run: Path) -> dict[Path, bytes]:
    """The bytes of every file below a directory."""
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
