"""Every optimizer of Keras, by hand and by `minimize`, on every plan: as Keras' own loop has it."""

import functools
import inspect
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.tasks import ByHand

import loopwright as lw

random = np.random.default_rng(3)
X = random.normal(size=(12, 3)).astype("float32")
Y = random.normal(size=(12, 1)).astype("float32")
WRAPPED = {
    "LossScaleOptimizer": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Nadam(0.1)),
    "MultiOptimizer": lambda: keras.optimizers.MultiOptimizer(
        keras.optimizers.OptimizerMap(
            keras.optimizers.Adafactor(0.1), {".*bias": keras.optimizers.Nadam(0.1)}
        )
    ),
}
PLAIN = {
    name: functools.partial(kind, learning_rate=0.1)
    for name, kind in inspect.getmembers(keras.optimizers, inspect.isclass)
    if issubclass(kind, keras.optimizers.Optimizer) and name != "Optimizer" and name not in WRAPPED
}
OPTIMIZERS = {**PLAIN, **WRAPPED}


def small_model() -> keras.Model:
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dense(1)])


def gradients_of(task: Any, x: Any, y: Any) -> tuple[Any, list[Any], list[Any]]:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(y - task.model(x, training=True)))
        scaled = task.optimizer.scale_loss(loss)
    variables = task.model.trainable_variables
    return loss, tape.gradient(scaled, variables), variables


class Minimize(ByHand):
    def __init__(self, optimizer: Any):
        super().__init__(small_model(), optimizer)


class ApplyGradients(Minimize):
    def train_step(self, batch):
        loss, gradients, variables = gradients_of(self, *batch)
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return {"loss": loss}


class Apply(Minimize):
    def train_step(self, batch):
        loss, gradients, variables = gradients_of(self, *batch)
        self.optimizer.apply(gradients, variables)
        return {"loss": loss}


def by_keras(optimizer: Any) -> list[np.ndarray]:
    """Return the weights after three updates in a plain loop."""
    task = ApplyGradients(optimizer)
    optimizer.build(task.model.trainable_variables)
    for start in range(0, 12, 4):
        batch = slice(start, start + 4)
        _, gradients, variables = gradients_of(task, X[batch], Y[batch])
        optimizer.apply(gradients, variables)
    return task.model.get_weights()


QUIET: Any = {"batch_size": 4, "shuffle": False, "verbose": 0}


class Several(lw.Task):
    """All optimizers that create more than zeros, in one step, each with a model of its own."""

    def __init__(self):
        super().__init__()
        names = ("Adafactor", "Nadam", "ScheduleFreeAdamW", *WRAPPED)
        self.parts = {name: Minimize(OPTIMIZERS[name]()) for name in names}

    def train_step(self, batch):
        losses = []
        for part in self.parts.values():
            loss, gradients, variables = gradients_of(part, *batch)
            part.optimizer.apply_gradients(zip(gradients, variables, strict=True))
            losses.append(loss)
        return {"loss": tf.reduce_mean(losses)}


def require_equal(ours: list[np.ndarray], theirs: list[np.ndarray], name: str) -> None:
    for mine, own in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, own, rtol=1e-4, atol=1e-5, err_msg=name)


def test_optimizers_that_create_variables_of_their_own_apply_gradients_in_one_step():
    task = Several()
    lw.Trainer(task, plan="graph").fit(X, Y, epochs=1, **QUIET)
    for name, part in task.parts.items():
        require_equal(part.model.get_weights(), by_keras(OPTIMIZERS[name]()), name)


@pytest.mark.parametrize("plan", ["graph", "eager", "xla", "fused"])
@pytest.mark.parametrize("way", [ApplyGradients, Apply, Minimize])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_updates_as_it_does_in_a_plain_loop(name, way, plan):
    task = way(OPTIMIZERS[name]())
    lw.Trainer(task, plan=plan).fit(X, Y, epochs=1, **QUIET)
    require_equal(task.model.get_weights(), by_keras(OPTIMIZERS[name]()), name)


class TwoOptimizers(keras.Model):
    """A Keras model with an optimizer of its own for the second of two layers."""

    def __init__(self, optimizer: Any):
        super().__init__()
        self.first, self.second = keras.layers.Dense(4), keras.layers.Dense(1)
        self.own_optimizer = optimizer

    def call(self, inputs):
        return self.second(self.first(inputs))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_mean(tf.square(y - self(x, training=True)))
        for layer, optimizer in ((self.first, self.optimizer), (self.second, self.own_optimizer)):
            variables = layer.trainable_variables
            gradients = tape.gradient(loss, variables)
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return {"loss": loss}


@pytest.mark.parametrize("name", ["Nadam", "Adafactor", "ScheduleFreeAdamW"])
def test_a_keras_model_may_have_an_optimizer_beside_the_compiled_one(name):
    def weights(*, fit: Any, **compiled: Any) -> list[np.ndarray]:
        keras.utils.set_random_seed(0)
        model = TwoOptimizers(OPTIMIZERS[name]())
        model.compile(OPTIMIZERS[name](), **compiled)
        fit(model)(X, Y, epochs=1, **QUIET)
        return model.get_weights()

    ours = weights(fit=lambda model: lw.Trainer(model, plan="graph").fit)
    # In a graph Keras would begin ScheduleFreeAdamW with zeros in place of the weights.
    theirs = weights(fit=lambda model: model.fit, run_eagerly=True)
    require_equal(ours, theirs, name)
