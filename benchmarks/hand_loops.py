"""Three examples as hand-written loops: the same models, a tape, a `tf.function`, a `for` loop."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

import gan
import seq2seq
import unet
from loopwright.components import Cyclic


def gan_step() -> Callable[..., Any]:
    """Both networks of the example `gan`, updated one after the other."""
    keras.utils.set_random_seed(0)
    generator, discriminator = gan.make_generator(), gan.make_discriminator()
    generator_optimizer = keras.optimizers.Adam(2e-4, beta_1=0.5)
    discriminator_optimizer = keras.optimizers.Adam(2e-4, beta_1=0.5)
    seed = keras.random.SeedGenerator(0)

    def cross_entropy(label: float, logits: Any) -> Any:
        labels = tf.fill(tf.shape(logits), label)
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))

    def train_step(real: Any) -> Any:
        noise = keras.random.normal((tf.shape(real)[0], gan.NOISE_SIZE), seed=seed)
        with tf.GradientTape() as tape:
            on_real = discriminator(real, training=True)
            on_made = discriminator(generator(noise, training=True), training=True)
            d_loss = cross_entropy(0.9, on_real) + cross_entropy(0.0, on_made)
        _apply(tape, d_loss, discriminator, discriminator_optimizer)
        with tf.GradientTape() as tape:
            on_made = discriminator(generator(noise, training=True), training=True)
            g_loss = cross_entropy(1.0, on_made)
        _apply(tape, g_loss, generator, generator_optimizer)
        return d_loss + g_loss

    return train_step


def unet_step() -> Callable[..., Any]:
    """The model of the example `unet`, with its metric."""
    keras.utils.set_random_seed(0)
    model, optimizer = unet.make_model(), keras.optimizers.Adam(2e-3)
    cross_entropy = keras.losses.BinaryCrossentropy(from_logits=True)
    mean_iou = keras.metrics.BinaryIoU([0, 1], threshold=0.0)

    def train_step(image: Any, water: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = model(image, training=True)
            loss = cross_entropy(water, logits)
        _apply(tape, loss, model, optimizer)
        mean_iou.update_state(water, logits)
        return loss

    return train_step


def seq2seq_step() -> Callable[..., Any]:
    """The model of the example `seq2seq`, with less and less teacher forcing."""
    keras.utils.set_random_seed(0)
    model = seq2seq.Writer()
    rate = Cyclic(5e-4, 4e-3, half_cycle_steps=125)
    optimizer = keras.optimizers.Adam(rate, clipnorm=1.0)
    told = keras.optimizers.schedules.PolynomialDecay(1.0, 750, end_learning_rate=0.0)
    seed = keras.random.SeedGenerator(0)

    def train_step(texts: Any, answers: Any) -> Any:
        chance = keras.random.uniform(tf.shape(answers), seed=seed)
        is_told = chance < told(tf.convert_to_tensor(optimizer.iterations))
        with tf.GradientTape() as tape:
            logits = model(texts, answers, is_told, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(answers, logits)
            loss = tf.reduce_mean(losses)
        _apply(tape, loss, model, optimizer)
        return loss

    return train_step


STEPS: dict[str, Callable[[], Callable[..., Any]]] = {
    "gan": gan_step,
    "unet": unet_step,
    "seq2seq": seq2seq_step,
}


def _apply(tape: Any, loss: Any, model: Any, optimizer: Any) -> None:
    variables = model.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
