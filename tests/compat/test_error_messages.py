"""What TensorFlow and Keras say while a step is traced, said about the step and its line."""

import functools
import math
import traceback
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from tests.guards import regression_step
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

# --- what TensorFlow and Keras say while the step is traced -----------------------------------


def numpy_mean(model, x, y):
    return np.mean(tf.square(y - model(x)))  # line: numpy mean


def numpy_noise(model, x, y):
    return tf.reduce_mean(np.random.normal(y) - model(x))  # line: numpy noise


def numpy_cast(model, x, y):
    return tf.reduce_mean(np.float32(y) - model(x))  # line: numpy cast


def tensor_to_numpy(model, x, y):
    return tf.reduce_mean(y - model(x).numpy())  # line: tensor to numpy


@pytest.mark.parametrize(
    ("loss", "called", "use"),
    [
        (numpy_mean, "np.mean", "use tf.reduce_mean"),
        (
            numpy_noise,
            "np.random.normal",
            "use keras.random.normal with a keras.random.SeedGenerator",
        ),
        (numpy_cast, "np.float32", "use tf.cast(..., tf.float32)"),
        (
            tensor_to_numpy,
            ".numpy()",
            "leave it out: TensorFlow functions take the tensor as it is",
        ),
    ],
)
def test_numpy_on_a_symbolic_tensor_is_named_with_its_line_and_what_to_use(
    loss: Any, called: str, use: str
):
    where = place(loss.__name__.replace("_", " "))
    code = where.partition(": ")[2].removesuffix(")")

    assert refused(Regression(loss), X, Y) == (
        f"Regression.train_step calls {called} on a symbolic tensor {where}.\n"
        "  expected: TensorFlow functions inside a step, which is compiled before it runs\n"
        f"  received: {code}\n"
        f'  do: {use}; to look at values while debugging, Trainer(..., plan="eager")'
    )


def square_root(model, x, y):
    return math.sqrt(squared_error(model, x, y))  # line: square root


def to_text(model, x, y):
    loss = squared_error(model, x, y)
    print(f"{loss:.3f}")  # line: to text
    return loss


def looped_over(model, x, y):
    return sum(tf.reduce_mean(row) for row in model(x))  # line: looped over


@pytest.mark.parametrize("loss", [square_root, to_text, looped_over])
def test_a_tensor_used_as_a_python_value_is_named_with_its_line(loss: Any):
    where = place(loss.__name__.replace("_", " "))

    text = refused(Regression(loss), X, Y)

    assert text.startswith(
        f"Regression.train_step uses a symbolic tensor as a Python value {where}.\n"
        "  expected: TensorFlow functions inside a step, which is compiled before it runs\n"
    )
    assert "do: keep it a tensor: tf.cast instead of float() and int(), tf.print instead" in text


def open_noise(model, x, y):
    noise = np.random.uniform(size=y.shape)  # line: open noise
    return squared_error(model, x, y + noise)


def open_loop(model, x, y):
    return sum(model(x)[i, 0] for i in range(x.shape[0]))  # line: open loop


@pytest.mark.parametrize(
    ("loss", "also"),
    [
        (
            open_noise,
            ", and np.random.uniform by keras.random.uniform with a keras.random.SeedGenerator",
        ),
        (open_loop, ""),
    ],
)
def test_a_size_that_is_open_while_tracing_is_named_with_its_line(loss: Any, also: str):
    where = place(loss.__name__.replace("_", " "))
    code = where.partition(": ")[2].removesuffix(")")

    assert refused(Regression(loss), X, Y) == (
        f"Regression.train_step takes a size from .shape that is open while the step is traced "
        f"{where}.\n"
        "  expected: tf.shape(x)[0], which is the size of each batch as it comes\n"
        f"  received: {code}, with batch[0]: float32 (None, 4), batch[1]: float32 (None, 1)\n"
        f"  do: replace x.shape[0] by tf.shape(x)[0]{also}"
    )


def divided(model, x, y):
    return squared_error(model, x, y) / tf.shape(x)[0]  # line: divided


def added_up(model, x, y):
    valid_loss = 0
    for _ in tf.range(2):
        valid_loss += squared_error(model, x, y)  # line: added up
    return valid_loss


@pytest.mark.parametrize(
    ("loss", "labels", "do"),
    [
        (divided, Y, "cast one of them, for instance tf.cast(labels, tf.float32)"),
        (squared_error, Y.astype("int32"), "cast one of them, for instance tf.cast(labels"),
        (added_up, Y, "start valid_loss with a float32 number, for instance valid_loss = 0.0"),
    ],
)
def test_two_dtypes_that_meet_are_named_with_their_line(loss: Any, labels: Any, do: str):
    file = regression_step.__file__ if loss is squared_error else __file__
    where = place_in(file, loss.__name__.replace("_", " "))

    assert refused(Regression(loss), X, labels).startswith(
        f"Regression.train_step combines tensors of dtypes int32 and float32 {where}.\n"
        "  expected: the same dtype on both sides\n"
        f"  received: batch[0]: float32 (None, 4), batch[1]: {labels.dtype} (None, 1)\n"
        f"  do: {do}"
    )


def one_input(size: int = 4) -> keras.Model:
    inputs = keras.Input((size,))
    return keras.Model(inputs, layers.Dense(1)(inputs))


def two_inputs() -> keras.Model:
    a, b = keras.Input((4,), name="a"), keras.Input((2,), name="b")
    return keras.Model({"a": a, "b": b}, layers.Dense(1)(layers.Concatenate()([a, b])))


@pytest.mark.parametrize(
    ("model", "x", "expected", "received"),
    [
        (
            lambda: one_input(5),
            X,
            "expected shape=(None, 5), found shape=(None, 4)",
            "batch[0]: float32 (None, 4), batch[1]: float32 (None, 1)",
        ),
        (
            lambda: mlp(1, inputs=5),
            X,
            "expected axis -1 of input shape to have value 5",
            "batch[0]: float32 (None, 4), batch[1]: float32 (None, 1)",
        ),
        (
            one_input,
            X[:, None],
            "expected shape=(None, 4), found shape=(None, 1, 4)",
            "batch[0]: float32 (None, 1, 4), batch[1]: float32 (None, 1)",
        ),
        (
            two_inputs,
            {"a": X},
            'Missing data for input "b"',
            "batch[0]['a']: float32 (None, 4), batch[1]: float32 (None, 1)",
        ),
        (
            one_input,
            (X, X),
            "expects 1 named input(s)",
            "batch[0][0]: float32 (None, 4), batch[0][1]: float32 (None, 4), "
            "batch[1]: float32 (None, 1)",
        ),
    ],
    ids=["functional", "sequential", "rank", "missing key", "one input too many"],
)
def test_a_batch_that_does_not_fit_the_model_is_described(
    model: Any, x: Any, expected: str, received: str
):
    what, wanted, got, do = refused(lw.Supervised(model(), "mse", "sgd"), x, Y).splitlines()

    assert what == "The batch does not fit the model."
    assert wanted.startswith("  expected: ")
    assert expected in wanted
    assert got == f"  received: {received}"
    assert do == "  do: compare the shapes and dtypes above with the model's first layer"


def test_a_single_example_in_place_of_a_batch_raises_the_question_of_batching():
    dataset = tf.data.Dataset.from_tensor_slices((X[:, :1], Y))  # both of length 1: not seen before
    convolution = keras.Sequential([layers.Conv1D(1, 1), layers.Flatten(), layers.Dense(1)])

    text = refused(lw.Supervised(convolution, "mse", "sgd"), dataset)

    assert "expected min_ndim=3, found ndim=1" in text
    assert text.endswith("with the model's first layer (is the data batched?)")


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

    assert refused(task, X, Y) == (
        f"{type(task).__name__}.train_step combines shapes that do not fit {place('own dense')}.\n"
        "  expected: equal sizes, not 4 and 5 with input shapes: [?,4], [5,1].\n"
        "  received: batch[0]: float32 (None, 4), batch[1]: float32 (None, 1)\n"
        "  do: compare the batch with the weights or tensors in that line"
    )


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

    task = OneForTwo()

    assert refused(task, X, Y) == (
        "OneForTwo.train_step gives an optimizer a variable that it was not built for "
        f"{place('one for two')}.\n"
        "  expected: the same variables for an optimizer in every update\n"
        f"  received: {task.second.layers[0].kernel.path}\n"
        "  do: make an optimizer of its own for each set of variables, or pass all of them in one "
        "minimize; after layers were unfrozen, make a new optimizer"
    )


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


@pytest.mark.parametrize(
    ("use", "step", "called", "line"),
    [
        (lambda trainer: trainer.evaluate(X, Y), "test_step", "np.mean", "scoring"),
        (lambda trainer: trainer.predict(X), "predict_step", "np.exp", "predicting"),
    ],
)
def test_errors_in_other_steps_are_explained(use: Any, step: str, called: str, line: str):
    with pytest.raises(lw.StepError) as caught:
        use(lw.Trainer(Scoring()))

    text = message_of(caught)
    assert f"Scoring.{step} calls {called} on a symbolic tensor {place(line)}." in text


def compiled() -> keras.Model:
    model = one_input(5)
    model.compile("sgd", "mse")
    return model


@pytest.mark.parametrize(
    "use",
    [
        lambda: lw.Trainer(lw.Supervised(one_input(5), "mse", "sgd")).evaluate(X),
        lambda: lw.Trainer(lw.Supervised(one_input(5), "mse", "sgd")).predict(X),
        lambda: lw.Trainer(compiled()).fit(X, Y, verbose=0),
    ],
    ids=["evaluate", "predict", "a compiled model"],
)
def test_a_batch_that_does_not_fit_is_described_by_every_method(use: Any):
    with pytest.raises(lw.StepError) as caught:
        use()

    text = message_of(caught)
    assert text.startswith("The batch does not fit the model.\n")
    assert ": float32 (None, 4)" in text
