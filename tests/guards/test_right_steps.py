"""Steps that are right: guards let them through without a word."""

import warnings
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
    fit,
    in_batches,
    mlp,
    squared_error,
)

import loopwright as lw

# --- what is right is let through -------------------------------------------------------------


def classes(count: int = 3, **options: Any) -> Any:
    """Class numbers as labels, for a loss that takes them."""
    return lambda: (lw.Supervised(mlp(count), optimizer="sgd", **options), X, np.arange(16) % count)


def self_choosing_loss() -> Any:
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3, activation="softmax")])
    return lw.Supervised(model, "crossentropy", "sgd"), X, np.arange(16) % 3


def robust_loss() -> Any:
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3, activation="softmax")])
    loss = keras.losses.CategoricalGeneralizedCrossEntropy()
    return lw.Supervised(model, loss, "sgd"), X, np.arange(16) % 3


def binary_labels() -> Any:
    model = keras.Sequential([keras.Input((4,)), layers.Dense(1, activation="sigmoid")])
    return lw.Supervised(model, "binary_crossentropy", "sgd", ["accuracy"]), X, np.arange(16) % 2


def own_sparse_loss() -> Any:
    def negative_log_likelihood(y, scores):
        chosen = tf.gather(tf.nn.log_softmax(scores), tf.cast(y, tf.int32), batch_dims=1)
        return -chosen

    return classes(loss=negative_log_likelihood)()


def own_weighted_loss() -> Any:
    """Weights that follow from the labels spread over all classes, and are meant to."""

    def by_class(y, scores):
        weights = tf.gather([1.0, 2.0, 3.0], tf.cast(y, tf.int32))
        return tf.reduce_mean(weights * tf.square(scores), axis=-1)

    return lw.Supervised(mlp(3), by_class, "sgd"), X, (np.arange(16) % 3)[:, None]


def two_outputs() -> Any:
    inputs = keras.Input((4,))
    outputs = {"price": layers.Dense(1)(inputs), "kind": layers.Dense(3)(inputs)}
    sparse = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    task = lw.Supervised(keras.Model(inputs, outputs), {"price": "mse", "kind": sparse}, "sgd")
    return task, X, {"price": Y[:, 0], "kind": np.arange(16) % 3}


def contrastive() -> Any:
    """Every example against every other, with both axes written out."""

    def loss(model, x, y):
        a, b = model(x)[:, 0], y[:, 0]
        return tf.reduce_mean(tf.square(a[:, None] - b[None, :]))

    return Regression(loss), in_batches(drop_remainder=True)


def bias_vectors() -> Any:
    """A vector of a variable, as long as the batch, beside a column."""

    class Biased(Regression):
        def __init__(self):
            super().__init__()
            self.bias = keras.Variable(np.zeros(8, "float32"))

        def train_step(self, batch):
            x, y = batch
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(y - self.model(x) - self.bias))
            self.minimize(loss, [*self.model.trainable_variables, self.bias], self.optimizer, tape)
            return {"loss": loss}

    return Biased(), in_batches(drop_remainder=True)


def causal_mask() -> Any:
    """Positions against positions: sizes come from the batch, values do not."""

    def loss(model, x, y):
        position = tf.range(tf.shape(x)[0])
        mask = tf.cast(position[:, None] >= position, tf.float32)
        return tf.reduce_mean(tf.square(mask @ (y - model(x))))

    return Regression(loss), X, Y


def used_model_losses() -> Any:
    def loss(model, x, y):
        return squared_error(model, x, y) + tf.add_n(model.losses)

    return Regression(loss, mlp(3, 1, regularizer="l2")), X, Y


def losses_of_each_part() -> Any:
    class Parts(Regression):
        def __init__(self):
            self.encoder, self.decoder = mlp(3, regularizer="l2"), mlp(1, inputs=3)
            super().__init__(model=keras.Sequential([self.encoder, self.decoder]))
            self.loss = lambda model, x, y: (
                squared_error(model, x, y) + sum(self.encoder.losses) + sum(self.decoder.losses)
            )

    return Parts(), X, Y


def teacher() -> Any:
    class Distilling(Regression):
        def __init__(self):
            super().__init__()
            self.teacher = mlp(1, regularizer="l2")
            self.loss = lambda model, x, y: squared_error(model, x, self.teacher(x))

    return Distilling(), X, Y


def python_numbers() -> Any:
    """AutoGraph turns float() into a cast, and a branch into a condition."""

    def loss(model, x, y):
        loss = squared_error(model, x, y)
        if loss > 1.0:
            loss = loss * float(tf.shape(x)[0]) / 8.0
        return loss

    return Regression(loss), X, Y


def size_only() -> Any:
    """Reads only the size of its batch: what it draws is new each step."""

    class Drawing(Regression):
        def __init__(self):
            super().__init__()
            self.seed = keras.random.SeedGenerator(0)

        def train_step(self, batch):
            drawn = keras.random.normal((tf.shape(batch)[0], 4), seed=self.seed)
            return super().train_step((drawn, drawn[:, :1]))

    return Drawing(), X


RIGHT: dict[str, Callable[[], Any]] = {
    "sparse labels": classes(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)),
    "a sparse loss under another name": classes(
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True, name="mine")
    ),
    "the loss that chooses itself": self_choosing_loss,
    "a loss between embeddings": classes(loss=keras.losses.Circle()),
    "a robust loss of class numbers": robust_loss,
    "binary labels": binary_labels,
    "a sparse loss of one's own": own_sparse_loss,
    "a weighted loss of one's own": own_weighted_loss,
    "two outputs": two_outputs,
    "contrastive, fixed batch size": contrastive,
    "bias vectors": bias_vectors,
    "a causal mask": causal_mask,
    "model losses, used": used_model_losses,
    "model losses, used part by part": losses_of_each_part,
    "a teacher with regularisers, not trained": teacher,
    "a branch and a Python float": python_numbers,
    "a step that needs only the size of its batch": size_only,
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_step_that_is_right_is_let_through_without_a_word(name: str):
    task, *data = RIGHT[name]()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Keras 3.15 hands its variables to NumPy 2.
        warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)
        history = fit(task, *data)

    assert int(task.step) == 2
    assert all(np.isfinite(values).all() for values in history.history.values())
