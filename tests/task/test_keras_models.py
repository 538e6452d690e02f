"""Keras models with steps of their own run through `lw.Trainer(model)` as they stand.

The models are written in the manner of the Keras guides: `compile`, `train_step`, `test_step`
and `metrics` are theirs, and nothing in them knows of Loopwright.
"""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops
from tests.programs.right import generative, representations
from tests.programs.right.keras_guides import GuideModel
from tests.programs.right.right_program import Program, assert_same_as_keras
from tests.programs.test_right_programs import fresh

import loopwright as lw

X = np.random.default_rng(1).normal(size=(50, 6)).astype("float32")
CLASSES = np.random.default_rng(2).integers(0, 3, size=50)


class OwnMetrics(keras.Model):
    """`compute_metrics` adds a number that is no metric: Keras then reports the last batch."""

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        results = super().compute_metrics(x, y, y_pred, sample_weight)
        return {**results, "largest_logit": ops.max(y_pred)}


class RawLosses(keras.Model):
    """Returns numbers that are no metrics: Keras reports those of the last batch."""

    def raw(self, x, y, training):
        logits = self(x, training=training)
        cross = ops.mean(keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True))
        return cross, 1e-3 * ops.mean(ops.square(logits))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            cross, penalty = self.raw(x, y, training=True)
            total = cross + penalty
        gradients = tape.gradient(total, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"total": total, "cross": cross, "penalty": penalty}

    def test_step(self, data):
        cross, penalty = self.raw(*data, training=False)
        return {"cross": cross, "penalty": penalty}


class RawLossNamedLoss(RawLosses):
    def train_step(self, data):
        return {"loss": super().train_step(data)["total"]}


class Watched(layers.Layer):
    """A layer with a metric of its own."""

    def __init__(self, **options):
        super().__init__(**options)
        self.spread = keras.metrics.Mean(name="spread")

    def call(self, inputs):
        self.spread.update_state(ops.std(inputs))
        return inputs


def changed(kind: type[keras.Model], *more: keras.Layer) -> Program:
    """A classifier of this kind; its last batch is a smaller one."""
    inputs = hidden = keras.Input((6,))
    for layer in (layers.Dense(8, activation="relu"), *more):
        hidden = layer(hidden)
    model = kind(inputs, layers.Dense(3)(hidden))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    metrics = ["accuracy"] if kind in (OwnMetrics, keras.Model) else None
    model.compile("adam", None if issubclass(kind, RawLosses) else loss, metrics=metrics)
    held = {} if kind is RawLossNamedLoss else {"validation_data": (X, CLASSES)}
    return Program(model, X, CLASSES, {"epochs": 3, **held})


CASES: dict[str, Callable[[], Program]] = {
    "a GAN": generative.gan_with_two_optimizers,
    "a VAE": generative.variational_autoencoder,
    "a distiller": representations.distillation,
    "a contrastive model": representations.contrastive_with_unlabelled_batches_of_another_size,
    "a train step of its own": lambda: changed(GuideModel),
    "metrics of its own": lambda: changed(OwnMetrics),
    "raw losses": lambda: changed(RawLosses),
    "a plainly compiled model with a metric inside a layer": lambda: changed(
        keras.Model, Watched()
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_keras_model_reports_and_learns_what_it_does_in_keras(name: str):
    reference, arguments = fresh(CASES[name])
    expected = reference.trained.fit(**arguments).history
    program, arguments = fresh(CASES[name])

    history = lw.Trainer(program.trained).fit(**arguments).history

    assert_same_as_keras(program, history, reference, expected)


def test_a_raw_number_named_like_a_metric_is_reported_as_keras_reports_it():
    """Keras takes the metric then, which nothing updated: 0. Surprising, but the same."""
    (reference, arguments), (program, _) = (fresh(lambda: changed(RawLossNamedLoss)) for _ in "ab")

    history = lw.Trainer(program.trained).fit(**arguments).history

    assert history == reference.trained.fit(**arguments).history == {"loss": [0.0] * 3}


def test_an_optimizer_that_makes_variables_of_tensors_trains_as_it_does_in_keras():
    def fitted(fit: Any) -> Any:
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(1)])
        model.compile("nadam", "mse")
        x = np.linspace(0, 1, 96, dtype="float32").reshape(32, 3)
        return fit(model, x, x[:, :1])

    options: Any = {"epochs": 2, "batch_size": 8, "shuffle": False, "verbose": 0}
    ours = fitted(lambda model, x, y: lw.Trainer(model).fit(x, y, **options).history)
    theirs = fitted(lambda model, x, y: model.fit(x, y, **options).history)
    assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
