"""A program is trained twice, and what makes it differ from itself is named."""

import sys
from pathlib import Path

import pytest
from tests.cli.small_project import MINE, invoke

UNSEEDED = MINE.replace("default_rng(0)", "default_rng()")
STATEFUL = MINE.replace(
    'return lw.Supervised(model, "mse", keras.optimizers.Adam(rate))',
    "return Noisy(model)",
).replace(
    "def experiment",
    """
class Noisy(lw.Task):
    def __init__(self, model):
        super().__init__()
        self.model, self.optimizer = model, keras.optimizers.Adam(0.01)

    def train_step(self, batch):
        import os, tensorflow as tf
        x, y = batch
        noise = tf.random.normal(tf.shape(y), seed=int.from_bytes(os.urandom(3), "big"))
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.model(x, training=True) - y - noise))
        self.minimize(loss, self.model, self.optimizer, tape)
        return {"loss": loss}

    def test_step(self, batch):
        x, y = batch
        import tensorflow as tf
        return {"loss": tf.reduce_mean(tf.square(self.model(x) - y))}


def experiment""",
)


def repeat(program: str, where: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    (where / "mine.py").write_text(program)
    monkeypatch.chdir(where)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    code, output = invoke(
        *("train", "mine:experiment", "plan=graph", "fit.verbose=0", "exact=best_effort"),
        *("--run-dir", "runs/it"),
    )
    assert code == 0, output
    return invoke("verify", "runs/it", "--repeat", "--task", "mine:experiment")


def test_a_program_that_repeats_itself_is_told_so(tmp_path, monkeypatch):
    code, output = repeat(MINE, tmp_path, monkeypatch)
    assert code == 0, output
    assert "repeats itself: 24 steps, trained twice: identical bits" in output


def test_data_without_a_seed_is_named(tmp_path, monkeypatch):
    code, output = repeat(UNSEEDED, tmp_path, monkeypatch)
    assert code == 1
    assert "DOES NOT REPEAT ITSELF: 24 steps" in output
    assert "cause: the data differs each time it is made" in output


def test_a_step_that_draws_from_a_stateful_operation_is_named(tmp_path, monkeypatch):
    code, output = repeat(STATEFUL, tmp_path, monkeypatch)
    assert code == 1
    assert "draws from tf.random.normal" in output
