"""The mistakes of the documents that this library comes from: each trains right or is named."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from tests.guards.regression_step import Regression, X, Y, dense, fit, squared_error

import loopwright as lw
import regression


def line_of(marker: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(n for n, text in enumerate(lines, 1) if text.endswith(f"  # {marker}"))


def test_float64_labels_train_as_float32_labels_do_and_integers_stay():
    def trained(labels: Any) -> list[float]:
        keras.utils.set_random_seed(0)
        return fit(Regression(), X, labels).history["loss"]

    assert trained(Y.astype("float64")) == trained(Y)

    seen = []

    def note(model, x, y):
        seen.append(y.dtype)
        return squared_error(model, x, tf.cast(y, tf.float32))

    fit(Regression(note), X, np.ones((16, 1), "int64"))
    assert set(seen) == {tf.int64}


# --- numbers ----------------------------------------------------------------------------------


def naive_softplus(z):
    return tf.math.log(tf.exp(z) + 1.0)  # overflow


@pytest.mark.parametrize("plan", ["graph", "eager"])
def test_an_overflow_is_named_and_eagerly_also_the_operation_where_it_began(plan: str):
    task = Regression(model=dense(layers.Dense(3, activation=naive_softplus)))
    trainer = lw.Trainer(task, plan=plan)
    with pytest.raises(lw.NotFiniteError) as caught:
        trainer.fit(1000 * X, Y, batch_size=8, verbose=0)

    text = str(caught.value)
    assert text.startswith("The loss is NaN or infinite at step 1.\n")
    assert 'plan="eager" names the first operation that is not finite' in text
    place = f'(file "{Path(__file__).name}", line {line_of("overflow")}: return tf.math.log('
    assert (f"first in Exp {place}" in text) == (plan == "eager")


def test_looking_for_the_first_operation_leaves_the_state_as_the_step_left_it():
    def infinite(model, x, y):
        return squared_error(model, x, y) * tf.exp(1000.0)

    task = Regression(infinite)
    with pytest.raises(lw.NotFiniteError, match="first in Exp"):
        lw.Trainer(task, plan="eager").fit(X, Y, batch_size=8, verbose=0)
    assert int(task.optimizer.iterations) == int(task.step) == 1
    assert not np.isfinite(task.model.get_weights()[0]).any()


# --- what is saved ----------------------------------------------------------------------------


class Noise(keras.layers.Layer):
    def call(self, inputs):
        return inputs + tf.random.normal(tf.shape(inputs))


def test_noise_from_a_hidden_state_in_a_layer_cannot_be_resumed(tmp_path: Path):
    with pytest.raises(lw.StepError) as caught:
        fit(Regression(model=dense(Noise())), run_dir=tmp_path / "run")
    assert "tf.random.normal (instead: keras.random.normal(..., seed=self.seed))" in str(
        caught.value
    )


def test_test_data_is_scaled_by_what_the_training_data_says():
    x = regression.load()["test"][0]
    assert abs(x.mean(0)).max() > 0.01  # its own statistics would have made this 0
