"""Finding a batch size: a child process that runs the same program again."""

import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

import loopwright as lw
from loopwright.insight import batch_sizes
from loopwright.insight.batch_sizes import BatchSize

SOURCE = Path(__file__).parent.parent.parent / "src"

SCRIPT = """
import keras, numpy as np, tensorflow as tf
import loopwright as lw

class Wide(lw.Task):
    def __init__(self):
        self.model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        self.optimizer = keras.optimizers.SGD(0.1)

    def train_step(self, batch):
        x, y = batch
        # More than any machine has, from 32 examples on.
        columns = tf.where(tf.shape(x)[0] > 16, tf.constant(2**42, tf.int64), 1)
        wide = tf.reduce_mean(tf.tile(x, tf.stack([1, columns])))
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(y - self.model(x))) + wide
        self.minimize(loss, self.model, self.optimizer, tape)
        return {"loss": loss}

print("started")
x = np.ones((64, 4), "float32")
trainer = lw.Trainer(Wide())
if BEFORE:
    trainer.fit(x, x[:, :1], verbose=0)
found = trainer.find_batch_size(x, x[:, :1], seconds=0.05)
print(found)
print("sizes", [one.size for one in found.sizes], all(one.memory_bytes for one in found.sizes))
"""


def run(text: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    (tmp_path / "program.py").write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "TF_CPP_MIN_LOG_LEVEL": "3"}
    return subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def row(size: int, rate: float) -> BatchSize:
    return BatchSize(size, rate, rate / size, 2**20)


def test_a_size_that_does_not_fit_ends_the_search_and_not_the_program(tmp_path):
    done = run(SCRIPT.replace("BEFORE", "False"), tmp_path)
    assert done.returncode == 0, done.stderr
    assert "sizes [8, 16] True" in done.stdout
    assert "32 does not fit in memory." in done.stdout
    assert done.stdout.count("started") == 1  # the child's own output is not shown
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_a_program_that_trains_first_is_refused_with_what_to_do(tmp_path):
    text = SCRIPT.replace("BEFORE", "True").replace("> 16", "> 99")
    done = run(text, tmp_path)
    assert done.returncode != 0
    assert "the program calls fit before find_batch_size" in done.stderr


def test_the_search_ends_when_two_larger_sizes_gain_little():
    rows = [row(8, 100.0), row(16, 190.0), row(32, 200.0)]
    assert batch_sizes._stops_paying(rows) == ""
    assert "less than 10% more" in batch_sizes._stops_paying([*rows, row(64, 205.0)])
    assert batch_sizes._suggested([*rows, row(64, 205.0)]) == 16


def test_data_with_batches_of_its_own_and_sizes_beyond_the_data_are_refused():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    trainer = lw.Trainer(lw.Supervised(model, "mse", "sgd"))
    x = np.ones((4, 1), "float32")
    with pytest.raises(lw.ConfigurationError, match="cannot be changed"):
        trainer.find_batch_size(iter([(x, x)]))
    with pytest.raises(lw.ConfigurationError, match="positive whole numbers up to 4"):
        trainer.find_batch_size(x, x, sizes=[0])


def test_an_interactive_session_is_told_to_use_a_file(monkeypatch):
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    trainer = lw.Trainer(lw.Supervised(model, "mse", "sgd"))
    x = np.ones((64, 1), "float32")
    with pytest.raises(lw.ConfigurationError, match="loopwright find batch-size MODULE:FUNCTION"):
        trainer.find_batch_size(x, x)
