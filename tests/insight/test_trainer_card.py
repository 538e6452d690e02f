"""A trainer in words and in a notebook: task, models, run, plan, last scores; nothing fails."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import loopwright as lw

HOSTILE = "<img src=x onerror=alert(1)>"


class Pair(lw.Task):
    def __init__(self) -> None:
        super().__init__()
        self.models = {
            HOSTILE: keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]),
            "lazy": keras.Sequential([keras.layers.Dense(2)]),
        }
        self.models[HOSTILE].layers[0].bias.trainable = False
        self.optimizer = keras.optimizers.SGD(0.125)

    def train_step(self, batch: Any) -> Any:
        with tf.GradientTape() as tape:
            outputs = sum(model(batch, training=True) for model in self.models.values())
            loss = tf.reduce_mean(tf.square(outputs))
        self.minimize(loss, list(self.models.values()), self.optimizer, tape)
        return {"loss": loss, HOSTILE: loss}


def test_a_trainer_says_what_it_holds(tmp_path: Path):
    trainer = lw.Trainer(Pair(), plan="graph", run_dir=tmp_path / "<b>run")
    assert repr(trainer).startswith("Trainer(Pair, 0 steps, run_dir=")
    card = trainer._repr_html_()
    for text in ("8 parameters, 6 trained", "built by the first batch", "SGD, learning rate 0.125"):
        assert text in card, text
    assert "not started" in card
    x = np.ones((16, 3), "float32")
    trainer.fit(x, batch_size=8, epochs=2, verbose=0)
    card = trainer._repr_html_()
    assert "completed at step 4" in card
    assert "4 steps" in card
    assert "step=&#x27;graph&#x27;" in card
    assert "loss 0." in repr(trainer)
    assert "<img" not in card
    assert "<b>" not in card


def test_a_run_that_cannot_be_read_is_named_in_the_card(tmp_path: Path):
    trainer = lw.Trainer(Pair(), plan="graph", run_dir=tmp_path / "run")
    (tmp_path / "run").mkdir(exist_ok=True)
    (tmp_path / "run" / "status.json").symlink_to("/etc/hostname")
    assert "symlink" in trainer._repr_html_()


def test_a_trainer_without_a_run_directory_says_so():
    assert "nothing is written to disk" in lw.Trainer(Pair())._repr_html_()
