"""A small GAN in three forms: a Keras model, a task, a hand-written step."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, final

import keras
import tensorflow as tf
from keras import layers

import loopwright as lw

DATA_WIDTH = 64
_NOISE_WIDTH = 16


def keras_model(**options: Any) -> keras.Model:
    """Return a compiled Keras model with a custom `train_step`."""
    model = _Gan(_Parts())
    model.compile(**options)
    return model


def task() -> lw.Task:
    """Return the GAN as a task."""
    return _GanTask(_Parts())


def hand_step() -> Callable[..., Any]:
    """Return the GAN as a function of the batch."""
    parts = _Parts()

    def train_step(real: Any) -> Any:
        with tf.GradientTape() as tape:
            discriminator_loss = _discriminator_loss(parts, real)
        variables = parts.discriminator.trainable_variables
        gradients = tape.gradient(discriminator_loss, variables)
        parts.discriminator_optimizer.apply_gradients(zip(gradients, variables, strict=True))
        with tf.GradientTape() as tape:
            generator_loss = _generator_loss(parts, real)
        variables = parts.generator.trainable_variables
        gradients = tape.gradient(generator_loss, variables)
        parts.generator_optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return discriminator_loss + generator_loss

    return train_step


def _generator() -> keras.Model:
    hidden = layers.Dense(64, activation="relu")
    output = layers.Dense(DATA_WIDTH, activation="sigmoid")
    return keras.Sequential([keras.Input((_NOISE_WIDTH,)), hidden, output])


def _discriminator() -> keras.Model:
    hidden = layers.Dense(64, activation="relu")
    return keras.Sequential([keras.Input((DATA_WIDTH,)), hidden, layers.Dense(1)])


@dataclass(frozen=True)
class _Parts:
    """The models, optimizers and seeds that all three forms share."""

    generator: keras.Model = field(default_factory=_generator)
    discriminator: keras.Model = field(default_factory=_discriminator)
    generator_optimizer: Any = field(default_factory=lambda: keras.optimizers.Adam(2e-4))
    discriminator_optimizer: Any = field(default_factory=lambda: keras.optimizers.Adam(2e-4))
    seeds: Any = field(default_factory=lambda: keras.random.SeedGenerator(0))


def _generated(parts: _Parts, real: Any) -> Any:
    noise = keras.random.normal((tf.shape(real)[0], _NOISE_WIDTH), seed=parts.seeds)
    return parts.generator(noise, training=True)


def _discriminator_loss(parts: _Parts, real: Any) -> Any:
    on_real = parts.discriminator(real, training=True)
    on_generated = parts.discriminator(_generated(parts, real), training=True)
    return tf.reduce_mean(tf.nn.softplus(-on_real)) + tf.reduce_mean(tf.nn.softplus(on_generated))


def _generator_loss(parts: _Parts, real: Any) -> Any:
    return tf.reduce_mean(
        tf.nn.softplus(-parts.discriminator(_generated(parts, real), training=True))
    )


@final
class _GanTask(lw.Task):
    def __init__(self, parts: _Parts) -> None:
        super().__init__()
        self.parts = parts
        self.generator, self.discriminator, self.seeds = (
            parts.generator,
            parts.discriminator,
            parts.seeds,
        )
        self.generator_optimizer = parts.generator_optimizer
        self.discriminator_optimizer = parts.discriminator_optimizer

    def train_step(self, batch: Any) -> Any:
        with tf.GradientTape() as tape:
            discriminator_loss = _discriminator_loss(self.parts, batch)
        self.minimize(discriminator_loss, self.discriminator, self.discriminator_optimizer, tape)
        with tf.GradientTape() as tape:
            generator_loss = _generator_loss(self.parts, batch)
        self.minimize(generator_loss, self.generator, self.generator_optimizer, tape)
        return {"discriminator_loss": discriminator_loss, "generator_loss": generator_loss}


@final
class _Gan(keras.Model):
    def __init__(self, parts: _Parts) -> None:
        super().__init__()
        self.generator, self.discriminator, self.seeds = (
            parts.generator,
            parts.discriminator,
            parts.seeds,
        )
        self.parts = parts
        self.discriminator_mean = keras.metrics.Mean(name="discriminator_loss")
        self.generator_mean = keras.metrics.Mean(name="generator_loss")
        self.built = True

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        return [self.discriminator_mean, self.generator_mean]

    def train_step(self, data: Any) -> Any:
        parts = self.parts
        with tf.GradientTape() as tape:
            discriminator_loss = _discriminator_loss(parts, data)
        variables = parts.discriminator.trainable_variables
        parts.discriminator_optimizer.apply(tape.gradient(discriminator_loss, variables), variables)
        with tf.GradientTape() as tape:
            generator_loss = _generator_loss(parts, data)
        variables = parts.generator.trainable_variables
        parts.generator_optimizer.apply(tape.gradient(generator_loss, variables), variables)
        self.discriminator_mean.update_state(discriminator_loss)
        self.generator_mean.update_state(generator_loss)
        return {metric.name: metric.result() for metric in self.metrics}
