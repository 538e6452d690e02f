"""Mistakes that the data shows."""

import keras
import numpy as np
import tensorflow as tf
from tests.programs.wrong.wrong_program import Wrong

import loopwright as lw

_DRAW = np.random.default_rng(5)
X = _DRAW.normal(size=(300, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)
CLASSES = _DRAW.integers(0, 3, size=300)


def _regression(loss: str = "mse") -> lw.Supervised:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    return lw.Supervised(model, loss, keras.optimizers.SGD(0.01))


def _classifier() -> lw.Supervised:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "softmax")])
    return lw.Supervised(model, "sparse_categorical_crossentropy", keras.optimizers.SGD(0.01))


def sorted_labels_without_shuffle(mistake: bool) -> Wrong:
    return Wrong(
        _classifier(),
        X,
        np.sort(CLASSES) if mistake else CLASSES,
        options={"batch_size": 100, "shuffle": False},
    )


def sorted_labels_with_validation_split(mistake: bool) -> Wrong:
    return Wrong(
        _classifier(),
        X,
        np.sort(CLASSES) if mistake else CLASSES,
        options={"batch_size": 100, "validation_split": 0.2},
    )


def sorted_one_hot_labels(mistake: bool) -> Wrong:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "softmax")])
    model.compile("sgd", "categorical_crossentropy")
    order = np.sort(CLASSES) if mistake else CLASSES
    return Wrong(
        model,
        X,
        np.eye(3, dtype="float32")[order],
        options={"batch_size": 100, "validation_split": 0.25},
    )


def validation_rows_that_are_training_rows(mistake: bool) -> Wrong:
    other = np.random.default_rng(6).normal(size=(100, 4)).astype("float32")
    x = np.concatenate([other[:60], X[:40]]) if mistake else other
    return Wrong(
        _regression(),
        X,
        Y,
        options={"batch_size": 100, "validation_data": (x, x.sum(axis=1, keepdims=True))},
    )


def training_data_as_a_named_validation_set(mistake: bool) -> Wrong:
    other = np.random.default_rng(6).normal(size=(300, 4)).astype("float32")
    x = X if mistake else other
    return Wrong(
        _regression(), X, Y, options={"batch_size": 100, "validation_data": {"near": (x, Y)}}
    )


def nan_in_the_inputs(mistake: bool) -> Wrong:
    x = X.copy()
    x[[7, 250], [2, 0]] = (np.nan, np.inf) if mistake else 0.0
    return Wrong(_regression(), x, Y, options={"batch_size": 100})


def nan_that_the_model_does_not_fill_in(mistake: bool) -> Wrong:
    @keras.saving.register_keras_serializable("tests")
    class Filled(keras.layers.Layer):
        def call(self, x):
            return tf.where(tf.math.is_nan(x), tf.zeros_like(x), x)

    x = X.copy()
    x[::50, 1] = np.nan
    layers = [keras.Input((4,)), *([] if mistake else [Filled()]), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile("sgd", "mse")
    return Wrong(model, x, Y, options={"batch_size": 100})


def nan_in_the_labels(mistake: bool) -> Wrong:
    y = Y.copy()
    y[299] = np.nan if mistake else 0.0
    return Wrong(_regression(), X, y, options={"batch_size": 100})


def labels_of_one_class(mistake: bool) -> Wrong:
    return Wrong(
        _classifier(), X, np.ones_like(CLASSES) if mistake else CLASSES, options={"batch_size": 100}
    )


def inputs_and_labels_of_different_lengths(mistake: bool) -> Wrong:
    return Wrong(_regression(), X, Y[1:] if mistake else Y)


def validation_data_without_examples(mistake: bool) -> Wrong:
    count = 0 if mistake else 16
    draw = np.random.default_rng(2).normal(size=(count, 4)).astype("float32")
    return Wrong(_regression(), X[:16], Y[:16], options={"validation_data": (draw, draw[:, :1])})


def validation_dataset_without_batches(mistake: bool) -> Wrong:
    held = tf.data.Dataset.from_tensor_slices((X[:12], Y[:12]))
    return Wrong(
        _regression(),
        X[:16],
        Y[:16],
        options={"validation_data": {"late": held.batch(16, drop_remainder=mistake)}},
    )


def dataset_batched_twice(mistake: bool) -> Wrong:
    batches = tf.data.Dataset.from_tensor_slices((X[:16], Y[:16])).batch(4)
    return Wrong(_regression(), batches.batch(2) if mistake else batches)


def dataset_batched_twice_without_remainders(mistake: bool) -> Wrong:
    rows = tf.data.Dataset.from_tensor_slices((X[:16], CLASSES[:16]))
    batches = rows.batch(4, drop_remainder=True)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    return Wrong(model, batches.batch(2, drop_remainder=True) if mistake else batches)


def dataset_never_batched(mistake: bool) -> Wrong:
    rows = tf.data.Dataset.from_tensor_slices((X[:16], CLASSES[:16]))
    return Wrong(_classifier(), rows if mistake else rows.batch(8))


def numbers_as_objects(mistake: bool) -> Wrong:
    return Wrong(_regression(), X[:16].astype(object) if mistake else X[:16], Y[:16])


def numbers_as_strings(mistake: bool) -> Wrong:
    return Wrong(_regression(), np.full((16, 4), "0.5") if mistake else X[:16], Y[:16])
