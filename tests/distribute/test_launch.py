"""`loopwright launch`: workers that are killed at random, and end with the same bits."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.distribute.test_exact import bits
from tests.resume.faults import ALL, record

MINE = """
import time
import keras, numpy as np
import loopwright as lw

class Slowly(keras.callbacks.Callback):
    needs_every_step = True
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.005)

def make_task(seed=0):
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(8, "relu"), keras.layers.Dropout(0.2, seed=5)]
    model = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(1)])
    return lw.Supervised(model, "mse", keras.optimizers.Adam(0.01), metrics=["mae"])

def experiment():
    x = np.random.default_rng(0).normal(size=(101, 4)).astype("float32")
    fit = {"x": x, "y": x[:, :1] * 3, "validation_data": (x[:20], x[:20, :1]), "batch_size": 8}
    fit |= {"epochs": 3, "callbacks": [Slowly()]}
    return lw.Experiment(make_task, fit=fit, test=(x, x[:, :1]))
"""


def launched(project: Path, run: str, restarts: int) -> "subprocess.Popen[str]":
    train = ["train", "mine:experiment", "fit.save_every=4 steps", "--run-dir", run]
    words = ["launch", "--workers", "2", "--restarts", str(restarts), "--", *train]
    return subprocess.Popen(
        [sys.executable, "-m", "loopwright", *words],
        cwd=project,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def last_step(run: Path) -> int:
    saved = (run / "checkpoints").glob("step-????????")
    return max((int(path.name[-8:]) for path in saved), default=0)


def workers_of(process: "subprocess.Popen[str]") -> list[int]:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return [int(pid) for pid in children.split()]


def wait(process: "subprocess.Popen[str]", seconds: float) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(seconds)


def test_workers_that_are_killed_at_random_end_with_the_same_bits(tmp_path: Path):
    (tmp_path / "mine.py").write_text(MINE)
    whole = launched(tmp_path, "whole", 0)
    said, _ = whole.communicate(timeout=200)
    assert whole.returncode == 0, said[-3000:]
    assert "[worker 0] " in said

    kills, chance = 10 if ALL else 1, random.Random(int(os.environ.get("FAULTS_SEED", "0")))
    end = last_step(tmp_path / "whole")
    process, dead = launched(tmp_path, "killed", kills), set[int]()
    for step in sorted(chance.randrange(0, end - 8) for _ in range(kills)):
        # All of a new start are there, and it has come so far, or a little further.
        while len(set(workers_of(process)) - dead) < 2 or last_step(tmp_path / "killed") <= step:
            wait(process, 0.01)
        wait(process, chance.uniform(0.0, 0.1))
        dead |= set(workers_of(process))
        os.kill(chance.choice(sorted(workers_of(process))), signal.SIGKILL)
    said, _ = process.communicate(timeout=600)
    assert process.returncode == 0, said[-3000:]
    assert said.count("restarting all workers") == kills
    is_same = bits(tmp_path / "killed") == bits(tmp_path / "whole")
    record("one of two workers killed, restarted by launch", tried=kills, held=kills * is_same)
    assert is_same
