"""A small experiment of a person's own, and commands called on it in this process."""

from pathlib import Path

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
