"""Tasks with steps of their own that no guard may object to; Keras has no `fit` for these."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from tests.programs.right.right_program import BATCH, Program, classes, numbers

import loopwright as lw


class _Fitted(lw.Task):
    """Minimizes `loss_of(batch)` over all the layers and variables of `parts`."""

    def __init__(self, *parts: Any) -> None:
        self.parts = list(parts)
        self.optimizer = keras.optimizers.Adam(0.01)

    @property
    def _variables(self) -> list[Any]:
        held = [getattr(part, "trainable_variables", [part]) for part in self.parts]
        return [variable for some in held for variable in some]

    def loss_of(self, batch: Any) -> Any:
        raise NotImplementedError

    def train_step(self, batch: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = self.loss_of(batch)
        self.minimize(loss, self._variables, self.optimizer, tape)
        return {"loss": loss}


def ragged_reductions() -> Program:
    class Ragged(_Fitted):
        def loss_of(self, batch):
            words, weights, labels = batch
            rows = tf.ragged.map_flat_values(tf.gather, self.parts[0], words)
            means, plain = tf.reduce_mean(rows, axis=1), tf.reduce_mean(weights, axis=1)
            scores = tf.reduce_sum(means, axis=1) + plain
            return tf.reduce_mean(tf.square(scores - labels))

    words = tf.ragged.constant([[1, 2], [3], [4, 5, 6], [7]] * 3)
    weights = tf.ragged.constant([[1.0, 2.0], [3.0], [4.0, 5.0, 6.0], [7.0]] * 3)
    rows = tf.data.Dataset.from_tensor_slices((words, weights, numbers()))
    return Program(Ragged(tf.Variable(tf.ones((10, 2)))), rows.batch(BATCH))


def sparse_products() -> Program:
    class Sparse(_Fitted):
        def loss_of(self, batch):
            rows, labels = batch
            found = tf.sparse.sparse_dense_matmul(rows, self.parts[0])
            sums = tf.sparse.reduce_sum(rows, axis=1, keepdims=True)
            return tf.reduce_mean(tf.square(found + 0.1 * tf.reshape(sums, (-1, 1)) - labels))

    rows = tf.sparse.from_dense(np.maximum(numbers(6), 0.0))
    data = tf.data.Dataset.from_tensor_slices((rows, numbers(1))).batch(BATCH)
    return Program(Sparse(tf.Variable(tf.ones((6, 1)))), data)


def attention_with_padding_masks() -> Program:
    class Attending(_Fitted):
        def loss_of(self, batch):
            tokens, labels = batch
            embedding, head = self.parts
            hidden = embedding(tokens)
            present = tf.not_equal(tokens, 0)
            mask = present[:, tf.newaxis, :] & present[:, :, tf.newaxis]
            scores = tf.matmul(hidden, hidden, transpose_b=True)
            scores += tf.where(mask, 0.0, -1e9)
            attended = tf.matmul(tf.nn.softmax(scores), hidden)
            weights = tf.cast(present, tf.float32)[..., tf.newaxis]
            total = tf.reduce_sum(attended * weights, axis=1)
            pooled = tf.math.divide_no_nan(total, tf.reduce_sum(weights, axis=1))
            losses = keras.losses.binary_crossentropy(labels, head(pooled), from_logits=True)
            return tf.reduce_mean(losses)

    task = Attending(layers.Embedding(9, 4), layers.Dense(1))
    return Program(task, classes(9, 6), classes(2, 1).astype("float32"))


def biases_and_scales_that_broadcast() -> Program:
    class Scaled(_Fitted):
        def loss_of(self, batch):
            x, y = batch
            matrix, bias, scale = self.parts
            centred = x - tf.reduce_mean(x, axis=0)
            normed = centred / (tf.math.reduce_std(x, axis=0, keepdims=True) + 1e-3)
            found = tf.matmul(normed * scale, matrix) + bias
            per_example = tf.reduce_mean(tf.square(found - y), axis=1)
            weights = 1.0 / (1.0 + tf.norm(x, axis=1))
            return tf.reduce_sum(per_example * weights) / tf.reduce_sum(weights)

    task = Scaled(tf.Variable(tf.ones((5, 2))), tf.Variable(tf.zeros(2)), tf.Variable(1.0))
    return Program(task, numbers(5), numbers(2))


def all_pairs_with_both_axes_named() -> Program:
    class Pairwise(_Fitted):
        def loss_of(self, batch):
            x, labels = batch
            points = self.parts[0](x)
            lengths = tf.reduce_sum(tf.square(points), axis=1)
            products = tf.matmul(points, points, transpose_b=True)
            far = lengths[:, None] - 2.0 * products + lengths[None, :]
            same = tf.cast(labels[:, None] == labels[None, :], tf.float32)
            return tf.reduce_mean(same * far + (1.0 - same) * tf.nn.relu(1.0 - far))

    return Program(Pairwise(layers.Dense(3)), numbers(5), classes(3))


def strings_looked_up_in_the_step() -> Program:
    class Words(_Fitted):
        lookup: Any

        def loss_of(self, batch):
            words, y = batch
            lookup, embedding = self.lookup, self.parts[0]
            parts = tf.strings.split(words)
            found = embedding(lookup(parts.to_tensor("")))
            return tf.reduce_mean(tf.square(tf.reduce_sum(found, axis=[1, 2])[:, None] - y))

    task = Words(layers.Embedding(5, 2))
    task.lookup = layers.StringLookup(vocabulary=["a", "b", "c"])
    texts = np.array(["a b", "c", "b b"] * 4)
    return Program(task, tf.data.Dataset.from_tensor_slices((texts, numbers(1))).batch(BATCH))


def policy_gradient_without_data() -> Program:
    class Reinforce(lw.Task):
        def __init__(self):
            self.policy = keras.Sequential([keras.Input((2,)), layers.Dense(3)])
            self.critic = keras.Sequential([keras.Input((2,)), layers.Dense(1)])
            self.optimizers = [keras.optimizers.Adam(0.01) for _ in range(2)]
            self.seeds = keras.random.SeedGenerator(2)

        def train_step(self):  # pyright: ignore[reportIncompatibleMethodOverride]
            states = keras.random.normal((8, 2), seed=self.seeds)
            with tf.GradientTape(persistent=True) as tape:
                logits = self.policy(states, training=True)
                actions = keras.random.categorical(logits, 1, seed=self.seeds)[:, 0]
                rewards = tf.cast(actions == 1, tf.float32)
                values = tf.squeeze(self.critic(states, training=True), -1)
                chosen = tf.gather(tf.nn.log_softmax(logits), actions, batch_dims=1)
                policy_loss = -tf.reduce_mean(chosen * tf.stop_gradient(rewards - values))
                value_loss = tf.reduce_mean(tf.square(rewards - values))
            self.minimize(policy_loss, self.policy, self.optimizers[0], tape)
            self.minimize(value_loss, self.critic, self.optimizers[1], tape)
            return {"policy_loss": policy_loss, "value_loss": value_loss}

    return Program(Reinforce(), options={"steps_per_epoch": 3})


def physics_informed_with_collocation_points() -> Program:
    class Oscillator(lw.Task):
        def __init__(self):
            self.model = keras.Sequential(
                [keras.Input((1,)), layers.Dense(4, "tanh"), layers.Dense(1)]
            )
            self.optimizer = keras.optimizers.Adam(0.01)

        def train_step(self, batch):
            inside, (times, values) = batch
            with tf.GradientTape() as tape:
                with tf.GradientTape() as second:
                    second.watch(inside)
                    with tf.GradientTape() as first:
                        first.watch(inside)
                        u = self.model(inside, training=True)
                    speed = first.gradient(u, inside)
                residual = second.gradient(speed, inside) + u
                data_loss = tf.reduce_mean(tf.square(self.model(times, training=True) - values))
                loss = tf.reduce_mean(tf.square(residual)) + data_loss
            self.minimize(loss, self.model, self.optimizer, tape)
            return {"loss": loss, "data_loss": data_loss}

    points = np.linspace(0, 3, 20, dtype="float32")[:, None]
    known = (points[:4], np.cos(points[:4]))
    data = tf.data.Dataset.from_tensors((points, known)).repeat(3)
    return Program(Oscillator(), data)


def gan_as_a_task() -> Program:
    class GAN(lw.Task):
        def __init__(self):
            self.generator = keras.Sequential([keras.Input((2,)), layers.Dense(5)])
            self.discriminator = keras.Sequential([keras.Input((5,)), layers.Dense(1)])
            self.optimizers = {name: keras.optimizers.Adam(1e-3) for name in ("g", "d")}
            self.seeds = keras.random.SeedGenerator(2)

        def train_step(self, batch):
            real = batch
            noise = keras.random.normal((tf.shape(real)[0], 2), seed=self.seeds)
            with tf.GradientTape() as g_tape, tf.GradientTape() as d_tape:
                fake = self.generator(noise, training=True)
                on_fake = self.discriminator(fake, training=True)
                on_real = self.discriminator(real, training=True)
                g_loss = tf.reduce_mean(tf.nn.softplus(-on_fake))
                d_loss = tf.reduce_mean(tf.nn.softplus(on_fake) + tf.nn.softplus(-on_real))
            self.minimize(d_loss, self.discriminator, self.optimizers["d"], d_tape)
            self.minimize(g_loss, self.generator, self.optimizers["g"], g_tape)
            return {"g_loss": g_loss, "d_loss": d_loss}

    return Program(GAN(), numbers(5))


def labelled_and_unlabelled_batches_of_different_sizes() -> Program:
    class SemiSupervised(_Fitted):
        def loss_of(self, batch):
            (x, y), unlabelled = batch
            model = self.parts[0]
            supervised = tf.reduce_mean(tf.square(model(x) - y))
            spread = tf.math.reduce_variance(model(unlabelled))
            return supervised + 0.1 * spread

    labelled = tf.data.Dataset.from_tensor_slices((numbers(5), numbers(1))).batch(2)
    more = tf.data.Dataset.from_tensor_slices(numbers(5, seed=3)).batch(4).repeat()
    data = tf.data.Dataset.zip((labelled, more))
    return Program(SemiSupervised(layers.Dense(1)), data, plan="fused")
