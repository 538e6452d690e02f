"""Mistakes that only the numbers or sizes of a batch show, while a step runs."""

import keras
import numpy as np
import tensorflow as tf
from tests.programs.wrong.wrong_program import Wrong, on_every_plan, on_plans
from tests.tasks import ByHand

import loopwright as lw

X = np.random.default_rng(3).normal(size=(20, 4)).astype("float32")
"""In batches of 8: the last one has 4 examples."""
LABELS = np.arange(20) % 5
TOKENS = np.arange(60).reshape(20, 3) % 10
IN_ORDER = {"shuffle": False}


class _Classifier(ByHand):
    """A step by hand over 5 classes, with the loss that a program gives it."""

    def __init__(self) -> None:
        super().__init__(keras.Sequential([keras.Input((4,)), keras.layers.Dense(5)]))

    def loss_of(self, x, y):
        logits = self.model(x, training=True)
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))


def _supervised(*layers: keras.Layer, loss: str = "sparse_categorical_crossentropy"):
    return lw.Supervised(keras.Sequential(list(layers)), loss, "sgd")


def _softmax_of_5():
    return _supervised(keras.Input((4,)), keras.layers.Dense(5, activation="softmax"))


def _with_label(label: int, place: int = 17) -> np.ndarray:
    labels = LABELS.copy()
    labels[place] = label
    return labels


_EAGER = 'with plan="eager" print and breakpoint() work in that line'
_THIRD = "step 3 (batch 3 of epoch 1: examples 16, 17, 18, 19)"


# -- labels ------------------------------------------------------------------------------------


@on_every_plan
def label_that_is_no_class(mistake: bool) -> Wrong:
    return Wrong(_softmax_of_5(), X, _with_label(7) if mistake else LABELS, options=IN_ORDER)


@on_every_plan
def label_that_is_no_class_in_the_middle_of_a_stream(mistake: bool) -> Wrong:
    labels = _with_label(9, place=10) if mistake else LABELS
    return Wrong(_softmax_of_5(), tf.data.Dataset.from_tensor_slices((X, labels)).batch(8))


@on_every_plan
def labels_from_one(mistake: bool) -> Wrong:
    class Numbered(_Classifier):
        def loss_of(self, x, y):
            logits = self.model(x, training=True)
            loss = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)  # here
            return tf.reduce_mean(loss)

    return Wrong(Numbered(), X, LABELS + 1 if mistake else LABELS, options=IN_ORDER)


@on_every_plan
def negative_label(mistake: bool) -> Wrong:
    return Wrong(_softmax_of_5(), X, _with_label(-1) if mistake else LABELS, options=IN_ORDER)


@on_every_plan
def too_few_classes(mistake: bool) -> Wrong:
    units = 3 if mistake else 5
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(units, activation="softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    return Wrong(model, X, LABELS, options=IN_ORDER)


@on_every_plan
def label_that_is_no_class_in_the_validation_data(mistake: bool) -> Wrong:
    labels = _with_label(7) if mistake else LABELS
    return Wrong(_softmax_of_5(), X, LABELS, options={"validation_data": (X, labels)})


@on_every_plan
def one_hot_labels_made_flat(mistake: bool) -> Wrong:
    class Flat(_Classifier):
        def loss_of(self, x, y):
            logits = self.model(x, training=True)
            flat = tf.reshape(y, [-1])
            loss = tf.nn.sparse_softmax_cross_entropy_with_logits(flat, logits)  # here
            return tf.reduce_mean(loss)

    return Wrong(
        Flat(), X, np.eye(5, dtype="int64")[LABELS] if mistake else LABELS, options=IN_ORDER
    )


# -- indices -----------------------------------------------------------------------------------


@on_every_plan
def token_that_is_not_in_the_embedding(mistake: bool) -> Wrong:
    tokens = TOKENS.copy()
    tokens[17, 1] = 12 if mistake else 9
    return Wrong(
        _supervised(
            keras.Input((3,), dtype="int64"),
            keras.layers.Embedding(10, 2),
            keras.layers.Flatten(),
            keras.layers.Dense(1),
            loss="mse",
        ),
        tokens,
        X[:, :1],
        options=IN_ORDER,
    )


@on_every_plan
def action_that_has_no_value(mistake: bool) -> Wrong:
    class Picked(_Classifier):
        def loss_of(self, x, y):
            values = self.model(x, training=True)
            rows = tf.range(tf.shape(y)[0], dtype=y.dtype)
            picked = tf.gather_nd(values, tf.stack([rows, y], axis=1))  # here
            return tf.reduce_mean(tf.square(picked))

    return Wrong(Picked(), X, _with_label(6) if mistake else LABELS, options=IN_ORDER)


# -- sizes: a batch size that is written down, and a last batch that is smaller ----------------


@on_every_plan
def reshape_by_a_fixed_batch_size(mistake: bool) -> Wrong:
    class Reshaped(_Classifier):
        def loss_of(self, x, y):
            logits = self.model(x, training=True)
            pairs = tf.reshape(logits, [-1, 8 if mistake else 2, 5])  # here
            return tf.reduce_mean(tf.square(pairs))

    return Wrong(Reshaped(), X, LABELS, options=IN_ORDER)


@on_every_plan
def product_with_a_fixed_batch_size(mistake: bool) -> Wrong:
    class Mixed(_Classifier):
        def loss_of(self, x, y):
            logits = self.model(x, training=True)
            mixer = tf.ones([2, 8 if mistake else tf.shape(x)[0]])
            mixed = tf.matmul(mixer, logits)  # here
            return tf.reduce_mean(tf.square(mixed))

    return Wrong(Mixed(), X, LABELS, options=IN_ORDER)


@on_every_plan
def sum_with_a_fixed_batch_size(mistake: bool) -> Wrong:
    class Shifted(_Classifier):
        def loss_of(self, x, y):
            logits = self.model(x, training=True)
            noise = tf.ones([8 if mistake else tf.shape(x)[0], 5])
            shifted = logits + noise  # here
            return tf.reduce_mean(tf.square(shifted))

    return Wrong(Shifted(), X, LABELS, options=IN_ORDER)


# -- assertions and Python ---------------------------------------------------------------------


@on_every_plan
def assertion_that_fails(mistake: bool) -> Wrong:
    class Careful(_Classifier):
        def loss_of(self, x, y):
            limit = tf.constant(4, y.dtype)
            tf.debugging.assert_less_equal(y, limit, "labels above 4")  # here
            return super().loss_of(x, tf.minimum(y, limit))

    return Wrong(Careful(), X, _with_label(7) if mistake else LABELS, options=IN_ORDER)


@on_every_plan
def check_that_finds_nan(mistake: bool) -> Wrong:
    class Checked(_Classifier):
        def loss_of(self, x, y):
            roots = tf.sqrt(tf.cast(y, "float32"))
            roots = tf.debugging.check_numerics(roots, "roots")  # here
            return tf.reduce_mean(roots) + tf.reduce_mean(self.model(x, training=True))

    return Wrong(Checked(), X, _with_label(-1) if mistake else LABELS, options=IN_ORDER)


@on_plans("eager", "graph")
def python_function_that_raises(mistake: bool) -> Wrong:
    def weights(labels):
        if labels.numpy().max() > 4:
            raise KeyError("no weight for a label")
        return labels

    class Weighted(_Classifier):
        def loss_of(self, x, y):
            y = tf.ensure_shape(tf.py_function(weights, [y], y.dtype), y.shape)  # here
            return super().loss_of(x, y)

    return Wrong(Weighted(), X, _with_label(7) if mistake else LABELS, options=IN_ORDER)


# -- pipelines ---------------------------------------------------------------------------------


@on_every_plan
def pipeline_with_a_table_that_is_too_small(mistake: bool) -> Wrong:
    def numbered(x, y):
        table = tf.range(4 if mistake else 5)
        return x, tf.gather(table, y)  # here

    return Wrong(
        _softmax_of_5(), tf.data.Dataset.from_tensor_slices((X, LABELS)).map(numbered).batch(8)
    )


@on_every_plan
def pipeline_with_a_function_that_raises(mistake: bool) -> Wrong:
    def looked_up(label):
        names = {0: 0, 1: 1, 2: 2, 3: 3} if mistake else {n: n for n in range(5)}
        return np.int64(names[int(label)])  # here

    def mapped(x, y):
        return x, tf.ensure_shape(tf.numpy_function(looked_up, [y], tf.int64), [])

    return Wrong(
        _softmax_of_5(), tf.data.Dataset.from_tensor_slices((X, LABELS)).map(mapped).batch(8)
    )
