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

    return Wrong(
        Swapped(1, None),
        "The arguments of MeanSquaredError are swapped: predictions first, then labels.\n"
        "  expected: MeanSquaredError: labels first, then predictions\n"
        "  received: a first argument that depends on weights, and a second that does not\n"
        "  do: write loss(labels, predictions)",
        X,
        BINARY,
        id="swapped-arguments",
    )


def one_hot_labels_for_a_sparse_loss(mistake: bool) -> Wrong:
    return Wrong(
        _compiled(3, "softmax", SPARSE),
        "sparse_categorical_crossentropy takes class numbers as labels, but they are one-hot.\n"
        "  expected: class numbers of shape (None,)\n"
        "  received: labels float32 (None, 3), predictions float32 (None, 3)\n"
        "  do: use CategoricalCrossentropy, or class numbers: tf.argmax(y, axis=-1)",
        X,
        ONE_HOT if mistake else CLASSES,
    )


def class_numbers_for_a_one_hot_loss(mistake: bool) -> Wrong:
    return Wrong(
        _compiled(3, "softmax", DENSE),
        "categorical_crossentropy takes one-hot labels, but they are class numbers.\n"
        "  expected: one-hot labels of shape (None, 3)\n"
        "  received: labels int64 (None,), predictions float32 (None, 3)\n"
        "  do: use SparseCategoricalCrossentropy, or one-hot labels: keras.ops.one_hot(y, 3)",
        X,
        CLASSES if mistake else ONE_HOT,
    )


def class_numbers_for_a_one_hot_loss_in_a_step(mistake: bool) -> Wrong:
    class Dense(_Classifier):
        def loss_of(self, y, predictions):
            loss = keras.losses.CategoricalCrossentropy()
            return loss(y, predictions)  # here

    return Wrong(
        Dense(),
        "CategoricalCrossentropy takes one-hot labels, but they are class numbers (file "
        '"losses_and_metrics.py", line {line}: return loss(y, predictions)  # here).\n'
        "  expected: one-hot labels of shape (None, 3)\n"
        "  received: labels int64 (None, 1), predictions float32 (None, 3)\n"
        "  do: use SparseCategoricalCrossentropy, or one-hot labels: keras.ops.one_hot(y, 3)",
        X,
        CLASSES[:, None] if mistake else ONE_HOT,
    )


def class_numbers_for_a_squared_error(mistake: bool) -> Wrong:
    return Wrong(
        _compiled(3, None, "mse"),
        "mean_squared_error compares one label with 3 predictions.\n"
        "  expected: labels and predictions of the same shape\n"
        "  received: labels int64 (None,), predictions float32 (None, 3)\n"
        "  do: reshape the labels or the model's last layer; for class numbers as labels use "
        "SparseCategoricalCrossentropy",
        X,
        CLASSES if mistake else ONE_HOT,
    )


def one_label_for_several_outputs(mistake: bool) -> Wrong:
    return Wrong(
        _compiled(3, None, keras.losses.MeanAbsoluteError()),
        "MeanAbsoluteError compares one label with 3 predictions.\n"
        "  expected: labels and predictions of the same shape\n"
        "  received: labels float32 (None, 1), predictions float32 (None, 3)\n"
        "  do: reshape the labels or the model's last layer; for class numbers as labels use "
        "SparseCategoricalCrossentropy",
        X,
        BINARY if mistake else ONE_HOT,
        id="broadcast",
    )


# --- logits and probabilities ---------------------------------------------------------------------


def logits_for_probabilities(mistake: bool) -> Wrong:
    return Wrong(
        _compiled(3, None if mistake else "softmax", SPARSE),
        "sparse_categorical_crossentropy expects probabilities, but the predictions are the output "
        "of a layer without a softmax.\n"
        "  expected: probabilities, or sparse_categorical_crossentropy with from_logits=True\n"
        "  received: predictions (None, 3), the raw output of a layer\n"
        "  do: pass from_logits=True to the loss, or end the model with "
        'activation="softmax"',
        X,
        CLASSES,
        id="logits",
    )


def logits_for_probabilities_in_a_step(mistake: bool) -> Wrong:
    class Binary(_Classifier):
        def loss_of(self, y, predictions):
            losses = keras.losses.binary_crossentropy(y, predictions)  # here
            return tf.reduce_mean(losses)

    return Wrong(
        Binary(1, None if mistake else "sigmoid"),
        "binary_crossentropy expects probabilities, but the predictions are the output of a layer "
        'without a sigmoid (file "losses_and_metrics.py", line {line}: losses = '
        "keras.losses.binary_crossentropy(y, predictions)  # here).\n"
        "  expected: probabilities, or binary_crossentropy with from_logits=True\n"
        "  received: predictions (None, 1), the raw output of a layer\n"
        "  do: pass from_logits=True to the loss, or end the model with "
        'activation="sigmoid"',
        X,
        BINARY,
        id="logits",
    )


def relu_for_probabilities(mistake: bool) -> Wrong:
    return Wrong(
        _compiled(1, "relu" if mistake else "sigmoid", keras.losses.BinaryCrossentropy()),
        "BinaryCrossentropy expects probabilities, but the predictions are the output of a layer "
        "without a sigmoid.\n"
        "  expected: probabilities, or BinaryCrossentropy with from_logits=True\n"
        "  received: predictions (None, 1), the raw output of a layer\n"
        "  do: pass from_logits=True to the loss, or end the model with "
        'activation="sigmoid"',
        X,
        BINARY,
        id="logits",
    )


def probabilities_for_logits(mistake: bool) -> Wrong:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return Wrong(
        _compiled(3, "softmax" if mistake else None, loss),
        "SparseCategoricalCrossentropy has from_logits=True, but the predictions are the output of "
        "a softmax.\n"
        "  expected: logits: the output of a layer without an activation\n"
        "  received: predictions (None, 3) from a softmax\n"
        "  do: remove the softmax from the model, or from_logits=True from the loss",
        X,
        CLASSES,
        id="logits",
    )


def probabilities_for_logits_in_a_step(mistake: bool) -> Wrong:
    class Twice(_Classifier):
        def loss_of(self, y, predictions):
            flat = tf.reshape(predictions, (-1, 3))
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            return loss(y, flat)  # here

    return Wrong(
        Twice(3, "softmax" if mistake else None),
        "SparseCategoricalCrossentropy has from_logits=True, but the predictions are the output of "
        'a softmax (file "losses_and_metrics.py", line {line}: return loss(y, flat)  # here).\n'
        "  expected: logits: the output of a layer without an activation\n"
        "  received: predictions (None, 3) from a softmax\n"
        "  do: remove the softmax from the model, or from_logits=True from the loss",
        X,
        CLASSES,
        id="logits",
    )


def softmax_over_one_output(mistake: bool) -> Wrong:
    return Wrong(
        _compiled(1, tf.nn.softmax if mistake else "sigmoid", "mse"),
        "The model ends with a softmax over a single number: its output is always 1, and nothing "
        "is trained.\n"
        "  expected: a softmax over two classes or more\n"
        "  received: a softmax over (None, 1)\n"
        '  do: use activation="sigmoid" with one output',
        X,
        BINARY,
        id="constant-output",
    )


def sparse_loss_for_one_output(mistake: bool) -> Wrong:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return Wrong(
        _compiled(1 if mistake else 2, None, loss),
        "SparseCategoricalCrossentropy gets predictions for a single class: the loss is always 0, "
        "and nothing is trained.\n"
        "  expected: one prediction for each class, at least two\n"
        "  received: predictions (None, 1)\n"
        "  do: for two classes use BinaryCrossentropy with Dense(1), or Dense(2) with this loss",
        X,
        BINARY,
    )


# --- metrics --------------------------------------------------------------------------------------


def categorical_accuracy_of_class_numbers(mistake: bool) -> Wrong:
    return Wrong(
        _compiled(3, "softmax", SPARSE, ["categorical_accuracy" if mistake else "accuracy"]),
        "CategoricalAccuracy takes one-hot labels, but they are class numbers: its values are "
        "meaningless.\n"
        "  expected: one-hot labels of shape (None, 3)\n"
        "  received: labels int64 (None,), predictions float32 (None, 3)\n"
        '  do: use SparseCategoricalAccuracy, or "accuracy", which chooses by the shapes',
        X,
        CLASSES,
        id="wrong-metric",
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

    return Wrong(
        Scored(),
        "CategoricalAccuracy takes one-hot labels, but they are class numbers (file "
        '"losses_and_metrics.py", line {line}: self.accuracy.update_state(y, predictions)  '
        "# here): its values are meaningless.\n"
        "  expected: one-hot labels of shape (None, 3)\n"
        "  received: labels int64 (None, 1), predictions float32 (None, 3)\n"
        '  do: use SparseCategoricalAccuracy, or "accuracy", which chooses by the shapes',
        X,
        CLASSES[:, None],
        id="wrong-metric",
    )


def categorical_accuracy_of_one_output(mistake: bool) -> Wrong:
    metric = keras.metrics.CategoricalAccuracy() if mistake else keras.metrics.BinaryAccuracy()
    return Wrong(
        lw.Supervised(_network(1, "sigmoid"), "binary_crossentropy", "sgd", [metric]),
        "CategoricalAccuracy gets predictions for a single class: it takes class 0 for predicted "
        "in every example.\n"
        "  expected: one prediction for each class, at least two\n"
        "  received: labels float32 (None, 1), predictions float32 (None, 1)\n"
        '  do: use BinaryAccuracy, or "accuracy", which chooses by the shapes',
        X,
        BINARY,
        id="wrong-metric",
    )


def sparse_accuracy_of_one_hot_labels(mistake: bool) -> Wrong:
    kind = "SparseCategoricalAccuracy" if mistake else "CategoricalAccuracy"
    return Wrong(
        _compiled(3, "softmax", DENSE, [getattr(keras.metrics, kind)()]),
        "SparseCategoricalAccuracy takes class numbers as labels, but they are one-hot.\n"
        "  expected: class numbers of shape (None,)\n"
        "  received: labels float32 (None, 3), predictions float32 (None, 3)\n"
        "  do: use CategoricalAccuracy, or class numbers: tf.argmax(y, axis=-1)",
        X,
        ONE_HOT,
    )


def accuracy_of_probabilities(mistake: bool) -> Wrong:
    metric = keras.metrics.Accuracy() if mistake else "accuracy"
    return Wrong(
        _compiled(1, "sigmoid", "binary_crossentropy", [metric]),
        "Accuracy compares labels and predictions for equality, but the predictions are not "
        "classes: its values are meaningless.\n"
        "  expected: predicted classes\n"
        "  received: labels float32 (None, 1), predictions float32 (None, 1)\n"
        '  do: use metrics=["accuracy"], which chooses by the shapes, BinaryAccuracy, '
        "CategoricalAccuracy or SparseCategoricalAccuracy; for regression use MeanAbsoluteError",
        X,
        BINARY,
        id="wrong-metric",
    )


def accuracy_of_class_numbers(mistake: bool) -> Wrong:
    metric = keras.metrics.Accuracy() if mistake else "accuracy"
    return Wrong(
        _compiled(3, "softmax", SPARSE, [metric]),
        "Accuracy compares labels and predictions for equality, but there are several predictions "
        "for each label.\n"
        "  expected: labels and predictions of the same shape\n"
        "  received: labels int64 (None,), predictions float32 (None, 3)\n"
        '  do: use SparseCategoricalAccuracy, or "accuracy", which chooses by the shapes',
        X,
        CLASSES,
    )


def binary_accuracy_of_class_numbers(mistake: bool) -> Wrong:
    metric = keras.metrics.BinaryAccuracy() if mistake else "accuracy"
    return Wrong(
        _compiled(3, "softmax", SPARSE, [metric]),
        "BinaryAccuracy compares each prediction with a label of 0 or 1, but there are several "
        "predictions for each label.\n"
        "  expected: labels and predictions of the same shape\n"
        "  received: labels int64 (None,), predictions float32 (None, 3)\n"
        '  do: use SparseCategoricalAccuracy, or "accuracy", which chooses by the shapes',
        X,
        CLASSES,
    )


def binary_accuracy_of_several_classes(mistake: bool) -> Wrong:
    metric = keras.metrics.BinaryAccuracy() if mistake else "accuracy"
    return Wrong(
        _compiled(3, "softmax", DENSE, [metric]),
        "BinaryAccuracy counts each of 3 classes separately: it is high even where no class is "
        "predicted right.\n"
        "  expected: one prediction of 0 or 1, or independent ones\n"
        "  received: labels float32 (None, 3), predictions float32 (None, 3)\n"
        '  do: use CategoricalAccuracy, or "accuracy", which chooses by the shapes',
        X,
        ONE_HOT,
        id="wrong-metric",
    )
