"""Losses and metrics that do not fit the labels or the predictions."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tests.programs.wrong.wrong_program import Wrong

import loopwright as lw

X = np.random.default_rng(3).normal(size=(16, 4)).astype("float32")
CLASSES = np.arange(16) % 3
ONE_HOT = np.eye(3, dtype="float32")[CLASSES]
BINARY = (np.arange(16) % 2).astype("float32")[:, None]
SPARSE, DENSE = "sparse_categorical_crossentropy", "categorical_crossentropy"


def _network(outputs: int, activation: Any) -> keras.Model:
    dense = keras.layers.Dense(outputs, activation=activation)
    return keras.Sequential([keras.Input((4,)), dense])


def _compiled(outputs: int, activation: Any, loss: Any, metrics: Any = None) -> keras.Model:
    model = _network(outputs, activation)
    model.compile("sgd", loss, metrics=metrics)
    return model


class _Classifier(lw.Task):
    """A step by hand, with the loss that a program gives it."""

    def __init__(self, outputs: int = 3, activation: Any = "softmax") -> None:
        super().__init__()
        self.model = _network(outputs, activation)
        self.optimizer = keras.optimizers.SGD(0.01)
        self.loss = keras.losses.SparseCategoricalCrossentropy()

    def train_step(self, batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = self.loss_of(y, self.model(x, training=True))
        self.minimize(loss, self.model, self.optimizer, tape)
        return {"loss": loss}

    def loss_of(self, y, predictions):
        return self.loss(y, predictions)


# --- labels and losses ----------------------------------------------------------------------------


def predictions_before_labels(mistake: bool) -> Wrong:
    class Swapped(_Classifier):
        def loss_of(self, y, predictions):
            loss = keras.losses.MeanSquaredError()
            return loss(predictions, y) if mistake else loss(y, predictions)

    return Wrong(Swapped(1, None), X, BINARY)


def one_hot_labels_for_a_sparse_loss(mistake: bool) -> Wrong:
    return Wrong(_compiled(3, "softmax", SPARSE), X, ONE_HOT if mistake else CLASSES)


def class_numbers_for_a_one_hot_loss(mistake: bool) -> Wrong:
    return Wrong(_compiled(3, "softmax", DENSE), X, CLASSES if mistake else ONE_HOT)


def class_numbers_for_a_one_hot_loss_in_a_step(mistake: bool) -> Wrong:
    class Dense(_Classifier):
        def loss_of(self, y, predictions):
            loss = keras.losses.CategoricalCrossentropy()
            return loss(y, predictions)  # here

    return Wrong(Dense(), X, CLASSES[:, None] if mistake else ONE_HOT)


def class_numbers_for_a_squared_error(mistake: bool) -> Wrong:
    return Wrong(_compiled(3, None, "mse"), X, CLASSES if mistake else ONE_HOT)


def one_label_for_several_outputs(mistake: bool) -> Wrong:
    return Wrong(
        _compiled(3, None, keras.losses.MeanAbsoluteError()), X, BINARY if mistake else ONE_HOT
    )


# --- logits and probabilities ---------------------------------------------------------------------


def logits_for_probabilities(mistake: bool) -> Wrong:
    return Wrong(_compiled(3, None if mistake else "softmax", SPARSE), X, CLASSES)


def logits_for_probabilities_in_a_step(mistake: bool) -> Wrong:
    class Binary(_Classifier):
        def loss_of(self, y, predictions):
            losses = keras.losses.binary_crossentropy(y, predictions)  # here
            return tf.reduce_mean(losses)

    return Wrong(Binary(1, None if mistake else "sigmoid"), X, BINARY)


def relu_for_probabilities(mistake: bool) -> Wrong:
    return Wrong(
        _compiled(1, "relu" if mistake else "sigmoid", keras.losses.BinaryCrossentropy()), X, BINARY
    )


def probabilities_for_logits(mistake: bool) -> Wrong:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return Wrong(_compiled(3, "softmax" if mistake else None, loss), X, CLASSES)


def probabilities_for_logits_in_a_step(mistake: bool) -> Wrong:
    class Twice(_Classifier):
        def loss_of(self, y, predictions):
            flat = tf.reshape(predictions, (-1, 3))
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            return loss(y, flat)  # here

    return Wrong(Twice(3, "softmax" if mistake else None), X, CLASSES)


def softmax_over_one_output(mistake: bool) -> Wrong:
    return Wrong(_compiled(1, tf.nn.softmax if mistake else "sigmoid", "mse"), X, BINARY)


def sparse_loss_for_one_output(mistake: bool) -> Wrong:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return Wrong(_compiled(1 if mistake else 2, None, loss), X, BINARY)


# --- metrics --------------------------------------------------------------------------------------


def categorical_accuracy_of_class_numbers(mistake: bool) -> Wrong:
    return Wrong(
        _compiled(3, "softmax", SPARSE, ["categorical_accuracy" if mistake else "accuracy"]),
        X,
        CLASSES,
    )


def categorical_accuracy_of_class_numbers_in_a_step(mistake: bool) -> Wrong:
    class Scored(_Classifier):
        def __init__(self):
            super().__init__()
            kind = "CategoricalAccuracy" if mistake else "SparseCategoricalAccuracy"
            self.accuracy = getattr(keras.metrics, kind)()

        def loss_of(self, y, predictions):
            self.accuracy.update_state(y, predictions)  # here
            return super().loss_of(y, predictions)

    return Wrong(Scored(), X, CLASSES[:, None])


def categorical_accuracy_of_one_output(mistake: bool) -> Wrong:
    metric = keras.metrics.CategoricalAccuracy() if mistake else keras.metrics.BinaryAccuracy()
    return Wrong(
        lw.Supervised(_network(1, "sigmoid"), "binary_crossentropy", "sgd", [metric]), X, BINARY
    )


def sparse_accuracy_of_one_hot_labels(mistake: bool) -> Wrong:
    kind = "SparseCategoricalAccuracy" if mistake else "CategoricalAccuracy"
    return Wrong(_compiled(3, "softmax", DENSE, [getattr(keras.metrics, kind)()]), X, ONE_HOT)


def accuracy_of_probabilities(mistake: bool) -> Wrong:
    metric = keras.metrics.Accuracy() if mistake else "accuracy"
    return Wrong(_compiled(1, "sigmoid", "binary_crossentropy", [metric]), X, BINARY)


def accuracy_of_class_numbers(mistake: bool) -> Wrong:
    metric = keras.metrics.Accuracy() if mistake else "accuracy"
    return Wrong(_compiled(3, "softmax", SPARSE, [metric]), X, CLASSES)


def binary_accuracy_of_class_numbers(mistake: bool) -> Wrong:
    metric = keras.metrics.BinaryAccuracy() if mistake else "accuracy"
    return Wrong(_compiled(3, "softmax", SPARSE, [metric]), X, CLASSES)


def binary_accuracy_of_several_classes(mistake: bool) -> Wrong:
    metric = keras.metrics.BinaryAccuracy() if mistake else "accuracy"
    return Wrong(_compiled(3, "softmax", DENSE, [metric]), X, ONE_HOT)
