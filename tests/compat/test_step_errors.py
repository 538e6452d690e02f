"""What TensorFlow and Keras say while a step is traced, said about the step and its line.

Most causes are in `tests/programs/wrong`, with all of their words.
"""

import functools
import math
import traceback
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
    message_of,
    mlp,
    place_in,
    refused,
    squared_error,
)

import loopwright as lw

place = functools.partial(place_in, __file__)
BATCH = "batch[0]: float32 (None, 4), batch[1]: float32 (None, 1)"


def tensor_to_numpy(model, x, y):
    return tf.reduce_mean(y - model(x).numpy())  # line: tensor to numpy


def square_root(model, x, y):
    return math.sqrt(squared_error(model, x, y))  # line: square root


def to_text(model, x, y):
    loss = squared_error(model, x, y)
    print(f"{loss:.3f}")  # line: to text
    return loss


def looped_over(model, x, y):
    return sum(tf.reduce_mean(row) for row in model(x))  # line: looped over


def open_loop(model, x, y):
    return sum(model(x)[i, 0] for i in range(x.shape[0]))  # line: open loop


def divided(model, x, y):
    return squared_error(model, x, y) / tf.shape(x)[0]  # line: divided


def added_up(model, x, y):
    valid_loss = 0
    for _ in tf.range(2):
        valid_loss += squared_error(model, x, y)  # line: added up
    return valid_loss


def wrong_axis(model, x, y):
    return tf.reduce_mean(tf.transpose(model(x), [0, 1, 2]))  # line: wrong axis


AS_A_VALUE = "uses a symbolic tensor as a Python value"


@pytest.mark.parametrize(
    ("loss", "what", "received", "do"),
    [
        (tensor_to_numpy, "calls NumPy on a symbolic tensor", "return", "use the function of that"),
        (square_root, AS_A_VALUE, "return math.sqrt", "keep it a tensor: tf.cast instead of"),
        (to_text, AS_A_VALUE, 'print(f"', "keep it a tensor: tf.cast instead of"),
        (looped_over, AS_A_VALUE, "return sum(", "keep it a tensor: tf.cast instead of"),
        (
            open_loop,
            "takes a size from .shape that is open while the step is traced",
            "return sum(",
            "replace x.shape[0] by tf.shape(x)[0]",
        ),
        (
            divided,
            "combines tensors of dtypes int32 and float32",
            BATCH,
            "cast one of them, for instance tf.cast(labels, tf.float32)",
        ),
        (added_up, "combines tensors of dtypes int32 and float32", BATCH, "cast one of them"),
        # Without a row in the table it is shown by its own line.
        (
            wrong_axis,
            "failed while it was traced",
            "Dimension must be 2 but is 3",
            "check what the error",
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_an_error_while_tracing_is_named_with_its_line(
    loss: Any, what: str, received: str, do: str
):
    first, _, third, last = refused(Regression(loss), X, Y).splitlines()

    assert first == f"Regression.train_step {what} {place(loss.__name__.replace('_', ' '))}."
    assert third.startswith(f"  received: {received}")
    assert last.startswith(f"  do: {do}")


def one_input(size: int = 4) -> keras.Model:
    inputs = keras.Input((size,))
    return keras.Model(inputs, layers.Dense(1)(inputs))


def two_inputs() -> keras.Model:
    a, b = keras.Input((4,), name="a"), keras.Input((2,), name="b")
    return keras.Model({"a": a, "b": b}, layers.Dense(1)(layers.Concatenate()([a, b])))


@pytest.mark.parametrize(
    ("model", "x", "expected", "received"),
    [
        (lambda: one_input(5), X, "expected shape=(None, 5), found shape=(None, 4)", BATCH),
        (lambda: mlp(1, inputs=5), X, "expected axis -1 of input shape to have value 5", BATCH),
        (
            two_inputs,
            {"a": X},
            'Missing data for input "b"',
            "batch[0]['a']: float32 (None, 4), batch[1]: float32 (None, 1)",
        ),
    ],
    ids=["functional", "sequential", "missing key"],
)
def test_a_batch_that_does_not_fit_the_model_is_described(
    model: Any, x: Any, expected: str, received: str
):
    what, wanted, got, do = refused(lw.Supervised(model(), "mse", "sgd"), x, Y).splitlines()

    assert what == "The batch does not fit the model."
    assert wanted.startswith("  expected: ")
    assert expected in wanted
    assert got == f"  received: {received}"
    assert do.startswith("  do: compare the shapes and dtypes above with the model's first layer")


class OwnDense(keras.Model):
    def __init__(self):
        super().__init__()
        self.kernel = self.add_weight(shape=(5, 1))

    def call(self, inputs):
        return tf.matmul(inputs, self.kernel)  # line: own dense


@pytest.mark.parametrize("by_hand", [True, False])
def test_a_batch_that_does_not_fit_a_model_by_hand_is_named_with_the_line(by_hand: bool):
    model = OwnDense()
    task = Regression(model=model) if by_hand else lw.Supervised(model, "mse", "sgd")

    text = refused(task, X, Y)
    title = f"{type(task).__name__}.train_step"
    assert text.startswith(f"{title} combines shapes that do not match {place('own dense')}.\n")
    assert "  received: (?, 4) and (5, 1)\n" in text


def test_an_optimizer_that_is_given_other_variables_than_before_is_named_with_the_line():
    class OneForTwo(Regression):
        def __init__(self):
            super().__init__()
            self.second = mlp(1)

        def train_step(self, batch):
            x, y = batch
            with tf.GradientTape(persistent=True) as tape:
                first, second = squared_error(self.model, x, y), squared_error(self.second, x, y)
            self.minimize(first, self.model, self.optimizer, tape)
            self.minimize(second, self.second, self.optimizer, tape)  # line: one for two
            return {"loss": first + second}

    text = refused(OneForTwo(), X, Y)
    where = place("one for two")
    assert text.startswith(f"OneForTwo.train_step failed while it was traced {where}.\n")
    assert "Unknown variable: " in text
    assert "recreate a new optimizer instance" in text


class Mine(ValueError):
    pass


@both_plans
def test_an_error_of_the_step_itself_passes_unchanged(plan: str):
    error, cause = Mine("this layer got a string, dtype unknown"), KeyError("mine")

    def raising(model, x, y):
        raise error from cause  # line: raising

    with pytest.raises(Mine) as caught:
        fit(Regression(raising), X, Y, plan=plan)

    assert caught.value is error
    assert str(error) == "this layer got a string, dtype unknown"
    assert error.__cause__ is cause
    lines = "".join(traceback.format_exception(error))
    assert "raise error from cause  # line: raising" in lines
    assert plan == "eager" or lines.endswith(f"raised in the step {place('raising')}\n")


# --- the other steps --------------------------------------------------------------------------


class Scoring(Regression):
    def test_step(self, batch):
        return {"loss": np.mean(batch[1])}  # line: scoring

    def predict_step(self, batch):
        return np.exp(batch)  # line: predicting


def compiled() -> keras.Model:
    model = one_input(5)
    model.compile("sgd", "mse")
    return model


NUMPY, MISFIT = "calls NumPy on a symbolic tensor", "The batch does not fit the model."


@pytest.mark.parametrize(
    ("trained", "use", "words"),
    [
        (Scoring, "evaluate", f"Scoring.test_step {NUMPY} {place('scoring')}."),
        (Scoring, "predict", f"Scoring.predict_step {NUMPY} {place('predicting')}."),
        (lambda: lw.Supervised(one_input(5), "mse", "sgd"), "evaluate", MISFIT),
        (lambda: lw.Supervised(one_input(5), "mse", "sgd"), "predict", MISFIT),
        (compiled, "fit", MISFIT),
    ],
)
def test_errors_in_every_method_are_explained(trained: Any, use: str, words: str):
    data = (X,) if use == "predict" else (X, Y)
    with pytest.raises(lw.StepError) as caught:
        getattr(lw.Trainer(trained()), use)(*data)

    assert message_of(caught).startswith(f"{words}\n")
