"""Tables, strings, sparse and ragged inputs; several inputs and outputs."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from tests.programs.right.right_program import BATCH, Program, classes, numbers

COLOURS = np.array(["red", "green", "blue"] * 4)


def columns_with_preprocessing_layers() -> Program:
    colour = keras.Input((1,), name="colour", dtype="string")
    size = keras.Input((1,), name="size")
    lookup = layers.StringLookup(vocabulary=["red", "green", "blue"], output_mode="one_hot")
    normalize = layers.Normalization()
    normalize.adapt(numbers(1))
    joined = layers.concatenate([lookup(colour), normalize(size)])
    model = keras.Model({"colour": colour, "size": size}, layers.Dense(1, "sigmoid")(joined))
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    columns = {"colour": COLOURS[:, None], "size": numbers(1)}
    pairs = (columns, classes(2, 1).astype("float32"))
    return Program(model, tf.data.Dataset.from_tensor_slices(pairs).batch(BATCH))


def preprocessing_inside_the_pipeline() -> Program:
    lookup = layers.StringLookup(vocabulary=["red", "green", "blue"])
    model = keras.Sequential(
        [
            keras.Input((1,), dtype="int64"),
            layers.Embedding(4, 3),
            layers.Flatten(),
            layers.Dense(1),
        ]
    )
    model.compile("sgd", "mse")
    pairs = tf.data.Dataset.from_tensor_slices((COLOURS[:, None], numbers(1)))
    return Program(model, pairs.batch(BATCH).map(lambda x, y: (lookup(x), y)))


def wide_and_deep() -> Program:
    wide, deep = keras.Input((3,)), keras.Input((5,))
    hidden = layers.Dense(4, "relu")(layers.BatchNormalization()(deep))
    model = keras.Model([wide, deep], layers.Dense(1)(layers.concatenate([wide, hidden])))
    model.compile("ftrl", "mse", metrics=["mae"])
    return Program(model, [numbers(3), numbers(5, seed=1)], numbers(1, seed=2))


def recommender_with_dot_products() -> Program:
    class Recommender(keras.Model):
        def __init__(self):
            super().__init__()
            self.user = layers.Embedding(8, 3, embeddings_regularizer=keras.regularizers.l2(1e-3))
            self.user_bias = layers.Embedding(8, 1)
            self.item = layers.Embedding(9, 3)
            self.item_bias = layers.Embedding(9, 1)

        def call(self, inputs):
            user, item = self.user(inputs[:, 0]), self.item(inputs[:, 1])
            dot = ops.sum(user * item, axis=1, keepdims=True)
            return ops.sigmoid(dot + self.user_bias(inputs[:, 0]) + self.item_bias(inputs[:, 1]))

    model = Recommender()
    model.compile(keras.optimizers.Adam(0.01), keras.losses.BinaryCrossentropy())
    return Program(model, classes(8, 2), classes(2, 1).astype("float32"))


def several_outputs_with_losses_by_name() -> Program:
    inputs = keras.Input((5,))
    hidden = layers.Dense(4, "relu")(inputs)
    priority = layers.Dense(1, name="priority")(hidden)
    department = layers.Dense(3, name="department")(hidden)
    model = keras.Model(inputs, {"priority": priority, "department": department})
    model.compile(
        optimizer="rmsprop",
        loss={
            "priority": keras.losses.BinaryCrossentropy(from_logits=True),
            "department": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        },
        loss_weights={"priority": 1.0, "department": 0.2},
        metrics={"department": ["accuracy"]},
    )
    labels = {"priority": classes(2, 1).astype("float32"), "department": classes(3)}
    return Program(model, numbers(5), labels, {"validation_data": (numbers(5, seed=8), labels)})


def several_outputs_in_a_list() -> Program:
    inputs = keras.Input((5,))
    outputs = [layers.Dense(1, name="mean")(inputs), layers.Dense(2, name="pair")(inputs)]
    model = keras.Model(inputs, outputs)
    model.compile("adam", ["mse", "mae"], loss_weights=[1.0, 0.5], metrics=[["mae"], ["mse"]])
    return Program(model, numbers(5), [numbers(1), numbers(2)])


def class_weights() -> Program:
    model = keras.Sequential([keras.Input((5,)), layers.Dense(3, "softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy", weighted_metrics=["accuracy"])
    options = {"class_weight": {0: 1.0, 1: 2.0, 2: 0.5}}
    return Program(model, numbers(5), classes(3), options)


def sample_weights_in_a_pipeline() -> Program:
    model = keras.Sequential([keras.Input((5,)), layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"], weighted_metrics=["mse"])
    rows = (numbers(5), numbers(1), abs(numbers()))
    return Program(model, tf.data.Dataset.from_tensor_slices(rows).batch(BATCH))


def sparse_rows() -> Program:
    model = keras.Sequential([keras.Input((6,), sparse=True), layers.Dense(1)])
    model.compile("sgd", "mse")
    rows = tf.sparse.from_dense(np.maximum(numbers(6), 0.0))
    return Program(model, tf.data.Dataset.from_tensor_slices((rows, numbers(1))).batch(BATCH))


def text_vectorized_in_the_pipeline() -> Program:
    vectorize = layers.TextVectorization(max_tokens=10, output_sequence_length=4)
    texts = np.array(["the cat sat", "a dog", "the dog sat down"] * 4)
    vectorize.adapt(texts)
    model = keras.Sequential(
        [
            keras.Input((4,), dtype="int64"),
            layers.Embedding(10, 3, mask_zero=True),
            layers.GlobalAveragePooling1D(),
            layers.Dense(1),
        ]
    )
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=[keras.metrics.BinaryAccuracy(threshold=0.0)])
    rows = tf.data.Dataset.from_tensor_slices((texts, classes(2, 1).astype("float32")))
    return Program(model, rows.batch(BATCH).map(lambda x, y: (vectorize(x), y)).prefetch(1))


def a_generator_of_batches() -> Program:
    def batches():
        while True:
            yield numbers(5)[:BATCH], numbers(1)[:BATCH]

    model = keras.Sequential([keras.Input((5,)), layers.Dense(1)])
    model.compile("sgd", "mse")
    return Program(model, batches(), options={"steps_per_epoch": 3})


def a_pydataset_with_workers() -> Program:
    class Rows(keras.utils.PyDataset):
        def __len__(self):
            return 3

        def __getitem__(self, index):
            part = slice(index * BATCH, (index + 1) * BATCH)
            return numbers(5)[part], numbers(1)[part]

    model = keras.Sequential([keras.Input((5,)), layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
    return Program(model, Rows(workers=2))


def mixup_of_two_zipped_pipelines() -> Program:
    def mixed(one, other):
        (x1, y1), (x2, y2) = one, other
        share = tf.reshape(tf.linspace(0.1, 0.9, BATCH), (-1, 1))
        return x1 * share + x2 * (1 - share), y1 * share + y2 * (1 - share)

    labels = keras.utils.to_categorical(classes(3), 3).astype("float32")
    rows = tf.data.Dataset.from_tensor_slices((numbers(5), labels))
    both = tf.data.Dataset.zip((rows.batch(BATCH), rows.skip(1).repeat(2).batch(BATCH)))
    model = keras.Sequential([keras.Input((5,)), layers.Dense(3, "softmax")])
    model.compile("adam", "categorical_crossentropy", metrics=["accuracy"])
    return Program(model, both.map(mixed))
