"""Sequences: attention with masks, recurrence, language models, time series."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from tests.programs.right.right_program import BATCH, Program, classes, numbers


class TokensAndPositions(layers.Layer):
    def __init__(self, length, vocabulary, size):
        super().__init__()
        self.tokens = layers.Embedding(vocabulary, size)
        self.positions = layers.Embedding(length, size)

    def call(self, x):
        return self.tokens(x) + self.positions(ops.arange(0, ops.shape(x)[-1], 1))


class TransformerBlock(layers.Layer):
    def __init__(self, size, heads, *, causal=False):
        super().__init__()
        self.attention = layers.MultiHeadAttention(heads, size)
        self.feed_forward = keras.Sequential([layers.Dense(4, "relu"), layers.Dense(size)])
        self.norms = [layers.LayerNormalization(epsilon=1e-6) for _ in range(2)]
        self.causal = causal

    def call(self, inputs):
        attended = self.attention(inputs, inputs, use_causal_mask=self.causal)
        attended = self.norms[0](inputs + attended)
        return self.norms[1](attended + self.feed_forward(attended))


def transformer_that_classifies() -> Program:
    inputs = keras.Input((6,), dtype="int32")
    hidden = TransformerBlock(4, 2)(TokensAndPositions(6, 9, 4)(inputs))
    outputs = layers.Dense(2, "softmax")(layers.GlobalAveragePooling1D()(hidden))
    model = keras.Model(inputs, outputs)
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return Program(model, classes(9, 6), classes(2))


def causal_language_model() -> Program:
    inputs = keras.Input((6,), dtype="int32")
    hidden = TransformerBlock(4, 2, causal=True)(TokensAndPositions(6, 9, 4)(inputs))
    logits = layers.Dense(9)(hidden)
    model = keras.Model(inputs, [logits, hidden])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss=[loss, None])
    tokens = classes(9, 7)
    rows = tf.data.Dataset.from_tensor_slices((tokens[:, :-1], tokens[:, 1:]))
    return Program(model, rows.batch(BATCH))


def masked_language_model() -> Program:
    class MaskedLanguageModel(keras.Model):
        def train_step(self, inputs):
            features, labels, sample_weight = inputs
            with tf.GradientTape() as tape:
                predictions = self(features, training=True)
                loss = self.loss_fn(labels, predictions, sample_weight=sample_weight)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            self.tracker.update_state(loss, sample_weight=sample_weight)
            return {"loss": self.tracker.result()}

        @property
        def metrics(self):
            return [self.tracker]

    inputs = keras.Input((6,), dtype="int64")
    hidden = TransformerBlock(4, 1)(TokensAndPositions(6, 9, 4)(inputs))
    model = MaskedLanguageModel(inputs, layers.Dense(9, "softmax")(hidden))
    model.loss_fn = keras.losses.SparseCategoricalCrossentropy(reduction=None)
    model.tracker = keras.metrics.Mean(name="loss")
    model.compile(optimizer="adam")
    tokens = classes(9, 6)
    weights = (np.random.default_rng(2).random(tokens.shape) < 0.5).astype("float32")
    rows = (np.where(weights > 0, 8, tokens), tokens, weights)
    return Program(model, tf.data.Dataset.from_tensor_slices(rows).batch(BATCH))


def sequence_to_sequence() -> Program:
    source, target = keras.Input((None, 4)), keras.Input((None, 5))
    _, *states = layers.LSTM(3, return_state=True)(source)
    decoded, _, _ = layers.LSTM(3, return_sequences=True, return_state=True)(
        target, initial_state=states
    )
    model = keras.Model([source, target], layers.Dense(5, "softmax")(decoded))
    model.compile("rmsprop", "categorical_crossentropy", metrics=["accuracy"])
    labels = keras.utils.to_categorical(classes(5, 6), 5)
    return Program(model, [numbers(3, 4), numbers(6, 5)], labels)


def masked_recurrence() -> Program:
    model = keras.Sequential(
        [
            keras.Input((6,), dtype="int32"),
            layers.Embedding(9, 3, mask_zero=True),
            layers.Bidirectional(layers.GRU(2)),
            layers.Dense(1),
        ]
    )
    model.compile("adam", keras.losses.BinaryCrossentropy(from_logits=True))
    return Program(model, classes(9, 6), classes(2, 1).astype("float32"))


def windows_of_a_time_series() -> Program:
    series = np.sin(np.arange(40.0) / 3)[:, None].astype("float32")
    data = keras.utils.timeseries_dataset_from_array(
        series[:-5], series[5:], sequence_length=5, batch_size=12
    )
    model = keras.Sequential([keras.Input((5, 1)), layers.LSTM(3), layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return Program(model, data)


def memory_network() -> Program:
    story, question = keras.Input((4,), dtype="int32"), keras.Input((3,), dtype="int32")
    memory, answer = layers.Embedding(9, 4)(story), layers.Embedding(9, 3)(story)
    asked = layers.Embedding(9, 4)(question)
    match = layers.Activation("softmax")(layers.Dot(axes=(2, 2))([memory, asked]))
    response = layers.Permute((2, 1))(layers.add([match, answer]))
    joined = layers.LSTM(3)(layers.concatenate([response, asked]))
    model = keras.Model([story, question], layers.Dense(9, "softmax")(joined))
    model.compile("rmsprop", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return Program(model, [classes(9, 4), classes(9, 3, seed=2)], classes(9))
