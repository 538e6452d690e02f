"""Starting from other weights, matched by name."""

import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import loopwright as lw

X, Y = np.ones((16, 3), "float32"), np.ones((16, 1), "float32")


def model(*widths: int, prefix: str = "layer") -> keras.Model:
    layers = [keras.layers.Dense(n, name=f"{prefix}_{i}") for i, n in enumerate(widths)]
    return keras.Sequential([keras.Input((3,)), *layers])


def task(*widths: int) -> Any:
    return lw.Supervised(model(*widths), "mse", "adam")


def weights(trainer: lw.Trainer) -> list[Any]:
    return trainer.task.model.get_weights()


def same(one: list[Any], other: list[Any]) -> bool:
    return all(np.array_equal(*pair) for pair in zip(one, other, strict=True))


@pytest.fixture(scope="module")
def donor(tmp_path_factory: Any) -> tuple[Path, list[Any]]:
    """A directory with the same weights in all three forms."""
    where = tmp_path_factory.mktemp("donor")
    trainer = lw.Trainer(task(4, 1), run_dir=where / "run", plan="graph")
    trainer.fit(X, Y, epochs=2, verbose=0)
    trainer.task.model.save_weights(where / "own.weights.h5")
    tf.train.Checkpoint(model=trainer.task.model).write(str(where / "bundle"))
    tf.train.Checkpoint(root=trainer.task.model).write(str(where / "root"))
    return where, weights(trainer)


SOURCES = ["run", "own.weights.h5", "bundle", "root", "run/checkpoints/step-00000002"]


@pytest.mark.parametrize("source", SOURCES)
def test_weights_that_match_are_taken_and_the_others_are_told_and_left(donor: Any, source: str):
    where, expected = donor
    trainer = lw.Trainer(task(4, 1), init_from=where / source)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.evaluate(X, Y)
    assert same(weights(trainer), expected)

    other = task(4, 2)
    before = other.model.get_weights()
    trainer = lw.Trainer(other, init_from=where / source)
    with pytest.warns(lw.LoopwrightWarning, match="2 weights were loaded") as told:
        trainer.predict(X)
    assert "left unchanged" in str(told[0].message)
    assert "not used" in str(told[0].message)
    assert same(weights(trainer), [*expected[:2], *before[2:]])

    trainer = lw.Trainer(task(7, 9, 2), init_from=where / source)
    with pytest.raises(lw.ConfigurationError, match="matches this task"):
        trainer.fit(X, np.ones((16, 2), "float32"), verbose=0)


def test_training_starts_from_them_with_optimizer_and_steps_anew(donor: Any, tmp_path: Path):
    where, expected = donor
    by_hand = task(4, 1)
    by_hand.model.set_weights(expected)
    whole = lw.Trainer(by_hand, plan="graph")
    whole.fit(X, Y, epochs=2, verbose=0)
    trainer = lw.Trainer(task(4, 1), run_dir=tmp_path, init_from=where / "run", plan="graph")
    trainer.fit(X, Y, epochs=2, verbose=0)
    assert int(trainer.task.step_counter) == 2
    assert same(weights(trainer), weights(whole))


def test_a_run_that_goes_on_does_not_start_from_them_again(donor: Any, tmp_path: Path):
    where, _ = donor
    for epochs in (1, 3):
        trainer = lw.Trainer(task(4, 1), run_dir=tmp_path, init_from=where / "run", plan="graph")
        trainer.fit(X, Y, epochs=epochs, verbose=0)
    whole = lw.Trainer(task(4, 1), init_from=where / "run", plan="graph")
    whole.fit(X, Y, epochs=3, verbose=0)
    assert same(weights(trainer), weights(whole))


def test_what_is_no_source_of_weights_is_refused_with_what_is(tmp_path: Path):
    (tmp_path / "model.keras").write_bytes(b"")
    for name in ("nowhere", "model.keras", "."):
        with pytest.raises(lw.ConfigurationError, match="Not a source of weights") as refusal:
            lw.Trainer(task(4, 1), init_from=tmp_path / name).fit(X, Y, verbose=0)
        assert ".weights.h5" in str(refusal.value)
    (tmp_path / "bad.weights.h5").write_bytes(b"no HDF5")
    with pytest.raises(lw.ConfigurationError, match="cannot be read"):
        lw.Trainer(task(4, 1), init_from=tmp_path / "bad.weights.h5").fit(X, Y, verbose=0)


def test_a_file_of_weights_needs_to_know_its_model(donor: Any):
    class Two(lw.Task):
        def __init__(self):
            super().__init__()
            self.one, self.other = model(4, 1), model(4, 1)
            self.optimizer = keras.optimizers.SGD()

        def train_step(self, batch):
            x, y = batch
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self.one(x) + self.other(x) - y) ** 2)
            both = self.one.trainable_variables + self.other.trainable_variables
            self.minimize(loss, both, self.optimizer, tape)
            return {"loss": loss}

    with pytest.raises(lw.ConfigurationError, match="which model these weights belong to"):
        lw.Trainer(Two(), init_from=donor[0] / "own.weights.h5").fit(X, Y, verbose=0)


def test_initial_weights_are_applied_once(donor: Any):
    where, expected = donor
    trainer = lw.Trainer(task(4, 1), init_from=where / "own.weights.h5")
    trainer.predict(X)
    assert same(weights(trainer), expected)
    zeros = [np.zeros_like(weight) for weight in expected]
    trainer.task.model.set_weights(zeros)
    trainer.predict(X)
    assert same(weights(trainer), zeros)
