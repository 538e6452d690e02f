"""What a step calls and returns: losses not used, swapped arguments, counts of updates."""

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
    fit,
    mlp,
    squared_error,
    warned,
)

import loopwright as lw

# --- model losses -----------------------------------------------------------------------------


@pytest.mark.parametrize(("sizes", "count"), [((1,), "1 loss"), ((3, 1), "2 losses")])
def test_model_losses_that_the_step_did_not_use_are_counted(sizes: tuple[int, ...], count: str):
    model = mlp(*sizes, regularizer="l2")

    assert warned(Regression(model=model), X, Y) == (
        f"The model {model.name!r} has {count} of its own (regularisation, add_loss) that the "
        "step did not use.\n"
        "  do: add them inside the tape: loss += sum(model.losses)"
    )


def test_only_the_losses_of_layers_never_asked_are_counted():
    model = mlp(3, 1, regularizer="l2")

    def with_first(model, x, y):
        return squared_error(model, x, y) + sum(model.layers[0].losses)

    assert f"The model {model.name!r} has 1 loss of its own" in warned(
        Regression(with_first, model), X, Y
    )


# --- what is passed to what -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "loss"),
    [
        ("MeanSquaredError", keras.losses.MeanSquaredError),
        ("mean_squared_error", lambda: keras.losses.mean_squared_error),
    ],
)
def test_a_loss_called_with_predictions_first_has_its_arguments_swapped(name: str, loss: Any):
    def swapped(model, x, y):
        return tf.reduce_mean(loss()(model(x, training=True), y))

    assert warned(Regression(swapped)) == (
        f"The arguments of {name} are swapped: predictions first, then labels.\n"
        f"  expected: {name}: labels first, then predictions\n"
        "  received: a first argument that depends on weights, and a second that does not\n"
        "  do: write loss(labels, predictions)"
    )


def test_swapped_arguments_are_named_also_where_keras_refuses_them():
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3)])
    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    task = Regression(lambda model, x, y: cross_entropy(model(x, training=True), y), model)
    with (
        pytest.warns(lw.StepWarning, match="are swapped"),
        pytest.raises(ValueError, match="shape"),
    ):
        fit(task, X, np.arange(16) % 3)


# --- what a step returns ----------------------------------------------------------------------


@pytest.mark.parametrize("start", [None, 0.0], ids=["alone", "added"])
def test_what_apply_gradients_returns_is_no_loss(start: Any):
    class Counting(Regression):
        def train_step(self, batch):
            x, y = batch
            with tf.GradientTape() as tape:
                loss = self.loss(self.model, x, y)
            variables = self.model.trainable_variables
            pairs = zip(tape.gradient(loss, variables), variables, strict=True)
            applied = self.optimizer.apply_gradients(pairs)
            return {"loss": applied if start is None else start + applied}

    with pytest.raises(lw.StepError) as caught:
        fit(Counting())
    assert str(caught.value) == (
        "Counting.train_step returned 'loss', which is not a loss but a number of updates.\n"
        "  expected: a number computed from the batch\n"
        "  received: what optimizer.apply_gradients returns: its count of updates\n"
        "  do: return the loss from which the gradients were taken"
    )
