"""What a step returns, minimizes and compares: mistakes that tasks refuse, in words."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from tests.guards.regression_step import (
    Regression,
    X,
    Y,
    both_plans,
    fit,
    mlp,
    refused,
    warned,
)

import loopwright as lw

# --- what a step returns ----------------------------------------------------------------------


class Returning(Regression):
    def __init__(self, returned: Callable[[Any], Any]):
        super().__init__()
        self.returned = returned

    def train_step(self, batch):
        super().train_step(batch)
        return self.returned(batch[1])


@both_plans
@pytest.mark.parametrize(
    ("returned", "received"),
    [
        (lambda y: None, "nothing (no return statement?)"),
        (tf.reduce_mean, "a tensor: float32 ()"),
        (lambda y: (1.0, 2.0), "(1.0, 2.0) (tuple)"),
    ],
)
def test_a_step_that_returns_no_dict_is_refused(returned: Any, received: str, plan: str):
    assert refused(Returning(returned), X, Y, plan=plan) == (
        "Returning.train_step must return a dict of scalars.\n"
        '  expected: return {"loss": loss}\n'
        f"  received: {received}\n"
        "  do: return the numbers to report, by name"
    )


@both_plans
@pytest.mark.parametrize("rows", [None, 8])
def test_a_step_that_returns_one_number_per_example_is_refused(rows: int | None, plan: str):
    task = Returning(lambda y: {"loss": tf.ensure_shape(y, (rows, 1))})

    seen = 8 if plan == "eager" else rows
    assert refused(task, X, Y, plan=plan) == (
        "Returning.train_step returned 'loss', which is not a scalar number.\n"
        "  expected: one number per name\n"
        f"  received: a tensor: float32 ({seen}, 1)\n"
        "  do: reduce it first, for instance with tf.reduce_mean"
    )


# --- gradients --------------------------------------------------------------------------------


@both_plans
def test_a_loss_outside_the_tape_is_refused_with_the_names_of_the_variables(plan: str):
    class Outside(Regression):
        def train_step(self, batch):
            loss = self.loss(self.model, *batch)
            with tf.GradientTape() as tape:
                loss = 2.0 * loss
            self.minimize(loss, self.model, self.optimizer, tape)
            return {"loss": loss}

    task = Outside()

    what, expected, received, do = refused(task, X, Y, plan=plan).splitlines()

    assert what == "No variable has a gradient: the loss does not depend on any of them."
    assert expected == "  expected: a loss computed from these variables, inside the GradientTape"
    names = ", ".join(variable.path for variable in task.model.trainable_variables)
    assert received == f"  received: None for every one of: {names}"
    assert do.startswith("  do: compute predictions and loss inside `with tf.GradientTape()")


def test_an_error_of_ours_comes_out_of_a_compiled_step_as_it_is():
    class Compiled(Regression):
        @tf.function
        def train_step(self, batch):
            return super().train_step(batch)

    text = refused(Compiled(lambda model, x, y: tf.reduce_mean(y)), X, Y)

    assert text.startswith("No variable has a gradient: the loss does not depend on any of them.\n")


def test_variables_without_a_gradient_are_named_and_the_others_trained():
    class Half(Regression):
        def __init__(self):
            super().__init__()
            self.unused = mlp(2)

        def train_step(self, batch):
            with tf.GradientTape() as tape:
                loss = self.loss(self.model, *batch)
            self.minimize(loss, [self.model, self.unused], self.optimizer, tape)
            return {"loss": loss}

    task = Half()
    before = task.model.get_weights()

    text = warned(task, X, Y)

    kernel, bias = (variable.path for variable in task.unused.trainable_variables)
    assert text.startswith(
        f"2 of 6 variables have no gradient, and are not updated: {kernel}, {bias}.\n"
        "  do: leave them out of minimize if that is intended; otherwise check that the loss uses"
    )
    assert not np.array_equal(before[0], task.model.get_weights()[0])


@both_plans
@pytest.mark.parametrize("by_hand", [True, False])
def test_a_model_without_trainable_variables_is_refused(by_hand: bool, plan: str):
    model = mlp(1)
    model.trainable = False
    task = Regression(model=model) if by_hand else lw.Supervised(model, "mse", "sgd")

    assert refused(task, X, Y, plan=plan) == (
        f"The model {model.name!r} has nothing to train.\n"
        "  expected: at least one trainable variable\n"
        "  received: none: no weights, not built, or trainable=False everywhere\n"
        "  do: call the model inside the tape before minimize, or set .trainable = True"
    )


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
