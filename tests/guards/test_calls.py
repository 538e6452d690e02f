"""What a step calls, computes and returns: losses not used, swapped arguments, shapes, strings."""

import functools
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from tests.guards import regression_step
from tests.guards.regression_step import (
    WORDS,
    Regression,
    X,
    Y,
    fit,
    in_batches,
    mlp,
    place_in,
    refused,
    squared_error,
    warned,
)

import loopwright as lw

# --- model losses -----------------------------------------------------------------------------


def test_only_the_losses_of_layers_never_asked_are_counted():
    model = mlp(3, 1, regularizer="l2")

    def with_first(model, x, y):
        return squared_error(model, x, y) + sum(model.layers[0].losses)

    assert f"The model {model.name!r} has 1 loss of its own" in warned(
        Regression(with_first, model), X, Y
    )


class OwnStep(keras.Model):
    """A compiled model with a step by hand, as in the guides of Keras."""

    uses_losses = False

    def __init__(self, **options: Any):
        super().__init__()
        self.inner = mlp(3, 1, **options)
        self.compile("sgd")

    def call(self, x):
        return self.inner(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(y - self(x, training=True)))
            loss += sum(self.losses) if self.uses_losses else 0.0
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


def test_losses_of_a_keras_model_with_a_step_of_its_own_are_counted():
    assert "has 2 losses of its own" in warned(OwnStep(regularizer="l2"), X, Y)
    OwnStep.uses_losses = True
    fit(OwnStep(regularizer="l2"))


class _Broken(layers.Layer):
    def get_config(self):
        return {**super().get_config(), "units": units}  # noqa: F821  # pyright: ignore

    def call(self, x):
        return x


def test_a_config_that_fails_is_named_once_for_a_compiled_keras_model():
    model = keras.Sequential([keras.Input((4,)), _Broken(), _Broken(), layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.warns(lw.StepWarning) as caught:
        fit(model)
    assert [str(each.message).startswith("_Broken.get_config fails") for each in caught] == [True]


# --- what is passed to what -------------------------------------------------------------------


def test_swapped_arguments_are_named_also_where_keras_refuses_them():
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3)])
    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    task = Regression(lambda model, x, y: cross_entropy(model(x, training=True), y), model)
    with (
        pytest.warns(lw.StepWarning, match="are swapped"),
        pytest.raises(ValueError, match="shape"),
    ):
        fit(task, X, np.arange(16) % 3)


def test_a_loss_of_the_user_may_take_a_prediction_first():
    class Consistency(keras.losses.Loss):
        """Compares an enhanced batch with the batch itself: neither of them is a label."""

        def call(self, y_true, y_pred):
            return tf.square(y_true - y_pred)

    model = keras.Sequential([keras.Input((4,)), layers.Dense(4)])
    fit(Regression(lambda model, x, y: Consistency()(model(x, training=True), x), model))


# --- what it computes ---------------------------------------------------------------------------

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
