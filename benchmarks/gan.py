"""A small GAN, written three times: as a Keras model, as a task, as a step by hand."""

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
    """Return a compiled Keras model with its own `train_step`."""
    model = _Gan(_Parts())
    model.compile(**options)
    return model


def task() -> lw.Task:
    """Return the same as a task."""
    return _GanTask(_Parts())


def hand_step() -> Callable[..., Any]:
    """Return the same as a function of the batch."""
    parts = _Parts()

    def train_step(real: Any) -> Any:
        with tf.GradientTape() as tape:
            critic_loss = _critic_loss(parts, real)
        variables = parts.critic.trainable_variables
        gradients = tape.gradient(critic_loss, variables)
        parts.critic_optimizer.apply_gradients(zip(gradients, variables, strict=True))
        with tf.GradientTape() as tape:
            maker_loss = _maker_loss(parts, real)
        variables = parts.maker.trainable_variables
        gradients = tape.gradient(maker_loss, variables)
        parts.maker_optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return critic_loss + maker_loss

    return train_step


def _maker() -> keras.Model:
    hidden = layers.Dense(64, activation="relu")
    output = layers.Dense(DATA_WIDTH, activation="sigmoid")
    return keras.Sequential([keras.Input((_NOISE_WIDTH,)), hidden, output])


def _critic() -> keras.Model:
    hidden = layers.Dense(64, activation="relu")
    return keras.Sequential([keras.Input((DATA_WIDTH,)), hidden, layers.Dense(1)])


@dataclass(frozen=True)
class _Parts:
    """The parts that all three versions share."""

    maker: keras.Model = field(default_factory=_maker)
    critic: keras.Model = field(default_factory=_critic)
    maker_optimizer: Any = field(default_factory=lambda: keras.optimizers.Adam(2e-4))
    critic_optimizer: Any = field(default_factory=lambda: keras.optimizers.Adam(2e-4))
    seeds: Any = field(default_factory=lambda: keras.random.SeedGenerator(0))


def _made(parts: _Parts, real: Any) -> Any:
    noise = keras.random.normal((tf.shape(real)[0], _NOISE_WIDTH), seed=parts.seeds)
    return parts.maker(noise, training=True)


def _critic_loss(parts: _Parts, real: Any) -> Any:
    on_real = parts.critic(real, training=True)
    on_made = parts.critic(_made(parts, real), training=True)
    return tf.reduce_mean(tf.nn.softplus(-on_real)) + tf.reduce_mean(tf.nn.softplus(on_made))


def _maker_loss(parts: _Parts, real: Any) -> Any:
    return tf.reduce_mean(tf.nn.softplus(-parts.critic(_made(parts, real), training=True)))


@final
class _GanTask(lw.Task):
    def __init__(self, parts: _Parts) -> None:
        super().__init__()
        self.parts = parts
        self.maker, self.critic, self.seeds = parts.maker, parts.critic, parts.seeds
        self.maker_optimizer = parts.maker_optimizer
        self.critic_optimizer = parts.critic_optimizer

    def train_step(self, batch: Any) -> Any:
        with tf.GradientTape() as tape:
            critic_loss = _critic_loss(self.parts, batch)
        self.minimize(critic_loss, self.critic, self.critic_optimizer, tape)
        with tf.GradientTape() as tape:
            maker_loss = _maker_loss(self.parts, batch)
        self.minimize(maker_loss, self.maker, self.maker_optimizer, tape)
        return {"critic_loss": critic_loss, "maker_loss": maker_loss}


@final
class _Gan(keras.Model):
    def __init__(self, parts: _Parts) -> None:
        super().__init__()
        self.maker, self.critic, self.seeds = parts.maker, parts.critic, parts.seeds
        self.parts = parts
        self.critic_mean = keras.metrics.Mean(name="critic_loss")
        self.maker_mean = keras.metrics.Mean(name="maker_loss")
        self.built = True

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        return [self.critic_mean, self.maker_mean]

    def train_step(self, data: Any) -> Any:
        parts = self.parts
        with tf.GradientTape() as tape:
            critic_loss = _critic_loss(parts, data)
        variables = parts.critic.trainable_variables
        parts.critic_optimizer.apply(tape.gradient(critic_loss, variables), variables)
        with tf.GradientTape() as tape:
            maker_loss = _maker_loss(parts, data)
        variables = parts.maker.trainable_variables
        parts.maker_optimizer.apply(tape.gradient(maker_loss, variables), variables)
        self.critic_mean.update_state(critic_loss)
        self.maker_mean.update_state(maker_loss)
        return {metric.name: metric.result() for metric in self.metrics}
