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
    WORDS,
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


def contrastive(fixed_size: bool) -> Any:
    """Every example against every other, with both axes written out."""

    def loss(model, x, y):
        a, b = model(x)[:, 0], y[:, 0]
        return tf.reduce_mean(tf.square(a[:, None] - b[None, :]))

    return Regression(loss), in_batches(drop_remainder=fixed_size)


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


def normalised() -> Any:
    def loss(model, x, y):
        x = (x - tf.reduce_mean(x, axis=0)) / (1e-3 + tf.norm(x, axis=1, keepdims=True))
        return squared_error(model, x, y)

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


def supervised_with_regularizer() -> Any:
    return lw.Supervised(mlp(3, 1, regularizer="l2"), "mse", "sgd"), X, Y


def teacher() -> Any:
    class Distilling(Regression):
        def __init__(self):
            super().__init__()
            self.teacher = mlp(1, regularizer="l2")
            self.loss = lambda model, x, y: squared_error(model, x, self.teacher(x))

    return Distilling(), X, Y


def gan() -> Any:
    class GAN(lw.Task):
        def __init__(self):
            super().__init__()
            self.generator, self.discriminator = mlp(4, inputs=2), mlp(1)
            self.optimizers = [keras.optimizers.Adam(), keras.optimizers.Adam()]
            self.cross_entropy = keras.losses.BinaryCrossentropy(from_logits=True)
            self.seed = keras.random.SeedGenerator(0)

        def train_step(self, batch):
            noise = keras.random.normal((tf.shape(batch)[0], 2), seed=self.seed)
            with tf.GradientTape(persistent=True) as tape:
                real, fake = self.discriminator(batch), self.discriminator(self.generator(noise))
                d_loss = self.cross_entropy(tf.ones_like(real), real)
                d_loss += self.cross_entropy(tf.zeros_like(fake), fake)
                g_loss = self.cross_entropy(tf.ones_like(fake), fake)
            self.minimize(d_loss, self.discriminator, self.optimizers[0], tape)
            self.minimize(g_loss, self.generator, self.optimizers[1], tape)
            return {"d_loss": d_loss, "g_loss": g_loss}

    return GAN(), X


def embedding() -> Any:
    model = keras.Sequential([layers.Embedding(5, 2), layers.Flatten(), layers.Dense(1)])
    return Regression(model=model), (np.arange(64) % 5).reshape(16, 4), Y


def recurrent() -> Any:
    model = keras.Sequential([keras.Input((4, 1)), layers.LSTM(3), layers.Dense(1)])
    return Regression(model=model), X[..., None], Y


def mixed_precision() -> Any:
    inputs = keras.Input((4,))
    outputs = layers.Dense(1, dtype="mixed_float16")(inputs)
    model = keras.Model(inputs, layers.Activation("linear", dtype="float32")(outputs))
    return (
        lw.Supervised(model, "mse", keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())),
        X,
        Y,
    )


def python_numbers() -> Any:
    """AutoGraph turns float() into a cast, and a branch into a condition."""

    def loss(model, x, y):
        loss = squared_error(model, x, y)
        if loss > 1.0:
            loss = loss * float(tf.shape(x)[0]) / 8.0
        return loss

    return Regression(loss), X, Y


def words_looked_up() -> Any:
    lookup = layers.StringLookup(vocabulary=["a", "b", "c", "d"])
    model = keras.Sequential([lookup, layers.Embedding(5, 2), layers.Flatten(), layers.Dense(1)])
    return lw.Supervised(model, "mse", "sgd"), WORDS, Y


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
    "contrastive": lambda: contrastive(fixed_size=False),
    "contrastive, fixed batch size": lambda: contrastive(fixed_size=True),
    "bias vectors": bias_vectors,
    "a causal mask": causal_mask,
    "normalised inputs": normalised,
    "model losses, used": used_model_losses,
    "model losses, used part by part": losses_of_each_part,
    "model losses in Supervised": supervised_with_regularizer,
    "a teacher with regularisers, not trained": teacher,
    "a GAN": gan,
    "an embedding": embedding,
    "a recurrent model": recurrent,
    "mixed precision": mixed_precision,
    "a branch and a Python float": python_numbers,
    "words that a layer looks up": words_looked_up,
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
