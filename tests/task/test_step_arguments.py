"""The arguments of a step: a batch, or nothing."""

from typing import Any

import keras
import pytest
import tensorflow as tf
from tests.guards.changed_step import Alone, Regression
from tests.guards.regression_step import X, Y, fit

import loopwright as lw

# --- the arguments of a step --------------------------------------------------------------------


def test_data_for_a_step_without_a_batch_argument_is_refused_in_words():
    with pytest.raises(lw.ConfigurationError) as caught:
        fit(Alone())
    assert str(caught.value) == (
        "Alone.train_step takes no batch, but it was given data.\n"
        "  expected: def train_step(self, batch)\n"
        "  received: def train_step(self)\n"
        "  do: add the argument and take the examples from it: x, y = batch; "
        'or call fit(None, until="1000 steps")'
    )


class Unpacked(Regression):
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
    task: Any = Regression()
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
