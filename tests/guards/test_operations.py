"""Operations of a step: shapes that broadcast, strings taken for numbers."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.guards import regression_step
from tests.guards.regression_step import (
    WORDS,
    Regression,
    Y,
    in_batches,
    place_in,
    refused,
    warned,
)

import loopwright as lw

place = functools.partial(place_in, __file__)


def flat_labels(model, x, y):
    return tf.reduce_mean(tf.square(y[:, 0] - model(x)))  # line: flat labels


@pytest.mark.parametrize(
    ("drop_remainder", "size"), [(False, "None"), (True, "8")], ids=["open size", "fixed size"]
)
def test_labels_that_spread_over_predictions_by_hand_are_warned_of_with_their_line(
    drop_remainder: bool, size: str
):
    assert warned(Regression(flat_labels), in_batches(drop_remainder)) == (
        f"Regression.train_step combines shapes ({size},) and ({size}, 1), which broadcasts to "
        f"(n, n) {place('flat labels')}.\n"
        "  do: give both the same shape, for instance labels[:, None] or "
        "tf.squeeze(predictions, -1); if this is intended, use both axes: a[:, None] and b[None, :]"
    )


def test_strings_for_numbers_in_a_step_by_hand_are_named_with_their_line():
    text = refused(Regression(), WORDS, Y)

    where = place_in(regression_step.__file__, "squared error")
    assert f"Regression.train_step takes strings for numbers {where}." in text


def test_a_step_under_tf_function_is_looked_into_as_any_other():
    class Decorated(lw.Task):
        def __init__(self):
            super().__init__()
            self.model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
            self.optimizer = keras.optimizers.SGD()

        @tf.function
        def train_step(self, batch):
            x, y = batch
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self.model(x, training=True) - y) ** 2)
            self.minimize(loss, self.model, self.optimizer, tape)
            return {"loss": loss}

    x = np.ones((8, 2), "float32")
    with pytest.warns(lw.StepWarning, match=r"broadcasts to \(n, n\)"):
        lw.Trainer(Decorated()).fit(x, x[:, 0], verbose=0)
