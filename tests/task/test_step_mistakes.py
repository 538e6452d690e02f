"""What a step takes, minimizes and compares: mistakes that tasks refuse, in words."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from tests.guards import changed_step
from tests.guards.regression_step import (
    Regression,
    X,
    Y,
    fit,
    mlp,
    refused,
)

import loopwright as lw

# --- gradients --------------------------------------------------------------------------------


def test_an_error_of_ours_comes_out_of_a_compiled_step_as_it_is():
    class Compiled(Regression):
        @tf.function
        def train_step(self, batch):
            return super().train_step(batch)

    text = refused(Compiled(lambda model, x, y: tf.reduce_mean(y)), X, Y)

    assert text.startswith("No variable has a gradient: the loss does not depend on any of them.\n")


# --- labels and predictions -------------------------------------------------------------------


def own_squared_error(y, predictions):
    return tf.reduce_mean(tf.square(y - predictions), axis=-1)


class OwnSquaredError(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return own_squared_error(y_true, y_pred)


KERAS_LOSSES = {
    "name": "mse",
    "object": keras.losses.MeanSquaredError(),
    "function": keras.losses.mean_squared_error,
}
OWN_LOSSES = {"own function": own_squared_error, "own class": OwnSquaredError()}


def each(losses: dict[str, Any]) -> Any:
    return pytest.mark.parametrize("loss", list(losses.values()), ids=list(losses))


@each(KERAS_LOSSES | OWN_LOSSES)
@pytest.mark.parametrize("labels", [Y, Y[:, 0]], ids=["(n, 1)", "(n,)"])
def test_labels_that_only_fit_by_broadcasting_are_refused(labels: np.ndarray, loss: Any):
    shape = "(None,)" if labels.ndim == 1 else "(None, 1)"

    assert refused(lw.Supervised(mlp(10), loss, "sgd"), X, labels) == (
        "Labels and predictions only fit by broadcasting to a larger shape.\n"
        "  expected: labels and predictions of the same shape\n"
        f"  received: labels {shape}, predictions (None, 10)\n"
        "  do: reshape the labels (for instance y[:, None]) or the model's last layer; for class "
        "numbers as labels use a sparse loss"
    )


def allowing_for_flat_labels(y, predictions):
    return tf.square(y - predictions[:, 0])


@each(OWN_LOSSES | {"own function for flat labels": allowing_for_flat_labels})
def test_a_missing_last_axis_before_a_loss_of_ones_own_is_refused(loss: Any):
    assert refused(lw.Supervised(mlp(1), loss, "sgd"), X, Y[:, 0]) == (
        "Labels and predictions only fit by broadcasting to (n, n).\n"
        "  expected: labels and predictions of the same shape\n"
        "  received: labels (None,), predictions (None, 1)\n"
        "  do: reshape the labels (for instance y[:, None]) or the model's last layer"
    )


@each(KERAS_LOSSES)
def test_keras_losses_put_a_missing_last_axis_right(loss: Any):
    first, second = mlp(1), mlp(1)
    second.set_weights(first.get_weights())

    flat = fit(lw.Supervised(first, loss, "sgd"), X, Y[:, 0]).history["loss"]
    column = fit(lw.Supervised(second, loss, "sgd"), X, Y).history["loss"]

    assert flat == column


def test_the_output_whose_labels_do_not_fit_is_named():
    inputs = keras.Input((4,))
    outputs = {"price": layers.Dense(1)(inputs), "kind": layers.Dense(10)(inputs)}
    task = lw.Supervised(keras.Model(inputs, outputs), {"price": "mse", "kind": "mse"}, "sgd")

    text = refused(task, X, {"price": Y, "kind": Y})

    assert "Labels and predictions of output 'kind' only fit by broadcasting" in text


def test_supervised_without_labels_says_so():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    with pytest.raises(lw.StepError, match="the data has no labels"):
        lw.Trainer(lw.Supervised(model, "mse", "sgd")).fit(np.ones((8, 2)), verbose=0)


# --- the arguments of a step ------------------------------------------------------------------


def test_data_for_a_step_without_a_batch_argument_is_refused_in_words():
    with pytest.raises(lw.ConfigurationError) as caught:
        fit(changed_step.Alone())
    assert str(caught.value) == (
        "Alone.train_step takes no batch, but it was given data.\n"
        "  expected: def train_step(self, batch)\n"
        "  received: def train_step(self)\n"
        "  do: add the argument and take the examples from it: x, y = batch; "
        'or call fit(None, until="1000 steps")'
    )


class Unpacked(changed_step.Regression):
    def train_step(self, x, y):  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().train_step((x, y))

    @tf.function
    def test_step(self, x, y):  # pyright: ignore[reportIncompatibleMethodOverride]
        return {"loss": 0.0}

    def predict_step(self):  # pyright: ignore[reportIncompatibleMethodOverride]
        return 0.0


@pytest.mark.parametrize(
    ("use", "received"),
    [
        (lambda trainer: trainer.fit(X, Y), "def train_step(self, x, y)"),
        (lambda trainer: trainer.evaluate(X, Y), "def test_step(self, x, y)"),
        (lambda trainer: trainer.predict(X), "def predict_step(self)"),
    ],
    ids=["fit", "evaluate", "predict"],
)
def test_a_step_with_other_arguments_than_a_batch_is_refused_in_words(use: Any, received: str):
    with pytest.raises(lw.ConfigurationError) as caught:
        use(lw.Trainer(Unpacked()))
    assert f"received: {received}\n" in str(caught.value)
    assert "x, y = batch" in str(caught.value)


def test_a_wrong_test_step_shows_before_training():
    task: Any = changed_step.Regression()
    task.test_step = lambda x, y: {"loss": 0.0}
    with pytest.raises(lw.ConfigurationError, match=r"^Regression.test_step must take one"):
        fit(task, validation_data=(X, Y))
    assert int(task.step) == 0


def test_a_keras_model_whose_step_takes_other_arguments_is_refused_in_words():
    class Unpacking(keras.Sequential):
        def train_step(self, x, y):
            return {"loss": 0.0}

    model = Unpacking([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(lw.ConfigurationError, match=r"^Unpacking.train_step must take one"):
        lw.Trainer(model).fit(X, Y, verbose=0)
