"""Keras models with steps of their own run through `lw.Trainer(model)` as they stand.

The models are written in the manner of the Keras guides: `compile`, `train_step`, `test_step`
and `metrics` are theirs, and nothing in them knows of Loopwright.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops
from sklearn.datasets import load_digits

import loopwright as lw

DIGITS = load_digits()
IMAGES = (DIGITS.images[:200, ..., None] / 16.0).astype("float32")
VECTORS = IMAGES.reshape(200, 64)
LABELS = DIGITS.target[:200].astype("int32")


def dense(*sizes: int, inputs: int = 64, last: str | None = None) -> keras.Model:
    body = [layers.Dense(size, activation="relu") for size in sizes[:-1]]
    return keras.Sequential([keras.Input((inputs,)), *body, layers.Dense(sizes[-1], last)])


# --- two players ------------------------------------------------------------------------------


class GAN(keras.Model):
    def __init__(self):
        super().__init__()
        self.seed_generator = keras.random.SeedGenerator(11)
        self.generator = keras.Sequential(
            [keras.Input((8,)), layers.Dense(64, "sigmoid"), layers.Reshape((8, 8, 1))]
        )
        self.discriminator = keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                layers.Conv2D(4, 3, strides=2, activation="leaky_relu"),
                layers.Flatten(),
                layers.Dense(1),
            ]
        )

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer, self.g_optimizer, self.loss_fn = d_optimizer, g_optimizer, loss_fn
        self.d_loss_tracker = keras.metrics.Mean(name="d_loss")
        self.g_loss_tracker = keras.metrics.Mean(name="g_loss")

    @property
    def metrics(self):
        return [self.d_loss_tracker, self.g_loss_tracker]

    def noise(self, like):
        return keras.random.normal((ops.shape(like)[0], 8), seed=self.seed_generator)

    def train_step(self, real):
        fakes = self.generator(self.noise(real))
        both = ops.concatenate([fakes, real], axis=0)
        truth = ops.concatenate([ops.ones_like(real[:, 0, 0]), ops.zeros_like(real[:, 0, 0])], 0)
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(truth, self.discriminator(both))
        weights = self.discriminator.trainable_weights
        self.d_optimizer.apply_gradients(zip(tape.gradient(d_loss, weights), weights, strict=True))

        noise = self.noise(real)
        with tf.GradientTape() as tape:
            verdict = self.discriminator(self.generator(noise))
            g_loss = self.loss_fn(ops.zeros_like(verdict), verdict)
        weights = self.generator.trainable_weights
        self.g_optimizer.apply_gradients(zip(tape.gradient(g_loss, weights), weights, strict=True))

        self.d_loss_tracker.update_state(d_loss)
        self.g_loss_tracker.update_state(g_loss)
        return {"d_loss": self.d_loss_tracker.result(), "g_loss": self.g_loss_tracker.result()}


def gan() -> keras.Model:
    model = GAN()
    model.compile(
        d_optimizer=keras.optimizers.Adam(3e-3),
        g_optimizer=keras.optimizers.Adam(3e-4),
        loss_fn=keras.losses.BinaryCrossentropy(from_logits=True),
    )
    return model


# --- a latent space ---------------------------------------------------------------------------


class Sampling(layers.Layer):
    def __init__(self, **options):
        super().__init__(**options)
        self.seed_generator = keras.random.SeedGenerator(5)

    def call(self, inputs):
        mean, log_variance = inputs
        epsilon = keras.random.normal(ops.shape(mean), seed=self.seed_generator)
        return mean + ops.exp(0.5 * log_variance) * epsilon


class VAE(keras.Model):
    def __init__(self):
        super().__init__()
        inputs = keras.Input((64,))
        hidden = layers.Dense(16, activation="relu")(inputs)
        mean, log_variance = layers.Dense(2)(hidden), layers.Dense(2)(hidden)
        code = Sampling()([mean, log_variance])
        self.encoder = keras.Model(inputs, [mean, log_variance, code])
        self.decoder = dense(16, 64, inputs=2, last="sigmoid")
        self.total_loss_tracker = keras.metrics.Mean(name="total_loss")
        self.reconstruction_loss_tracker = keras.metrics.Mean(name="reconstruction_loss")
        self.kl_loss_tracker = keras.metrics.Mean(name="kl_loss")

    @property
    def metrics(self):
        return [self.total_loss_tracker, self.reconstruction_loss_tracker, self.kl_loss_tracker]

    def losses_of(self, data):
        mean, log_variance, code = self.encoder(data)
        missed = keras.losses.binary_crossentropy(data, self.decoder(code))
        reconstruction = ops.mean(missed) * 64
        divergence = 1 + log_variance - ops.square(mean) - ops.exp(log_variance)
        kl = ops.mean(ops.sum(-0.5 * divergence, axis=1))
        return reconstruction + kl, reconstruction, kl

    def track(self, losses):
        for tracker, loss in zip(self.metrics, losses, strict=True):
            tracker.update_state(loss)
        return {tracker.name: tracker.result() for tracker in self.metrics}

    def train_step(self, data):
        with tf.GradientTape() as tape:
            losses = self.losses_of(data)
        gradients = tape.gradient(losses[0], self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        return self.track(losses)

    def test_step(self, data):
        return self.track(self.losses_of(data))


def vae() -> keras.Model:
    model = VAE()
    model.compile(optimizer=keras.optimizers.Adam(3e-3))
    return model


# --- a teacher and a student ------------------------------------------------------------------


class Distiller(keras.Model):
    def __init__(self, student, teacher):
        super().__init__()
        self.student, self.teacher = student, teacher

    def compile(
        self, optimizer, metrics, student_loss_fn, distillation_loss_fn, alpha, temperature
    ):
        super().compile(optimizer=optimizer, metrics=metrics)
        self.student_loss_fn, self.distillation_loss_fn = student_loss_fn, distillation_loss_fn
        self.alpha, self.temperature = alpha, temperature
        self.distillation_tracker = keras.metrics.Mean(name="distillation_loss")

    def call(self, inputs, training=False):
        return self.student(inputs, training=training)

    def train_step(self, data):
        x, y = data
        soft_targets = ops.softmax(self.teacher(x, training=False) / self.temperature)
        with tf.GradientTape() as tape:
            logits = self.student(x, training=True)
            soft = ops.softmax(logits / self.temperature)
            distillation = self.distillation_loss_fn(soft_targets, soft) * self.temperature**2
            loss = self.alpha * self.student_loss_fn(y, logits) + (1 - self.alpha) * distillation
        weights = self.student.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        self._loss_tracker.update_state(loss, sample_weight=ops.shape(x)[0])
        self.distillation_tracker.update_state(distillation)
        return self.compute_metrics(x, y, logits)

    def test_step(self, data):
        x, y = data
        logits = self.student(x, training=False)
        self._loss_tracker.update_state(self.student_loss_fn(y, logits))
        results = self.compute_metrics(x, y, logits)
        return {name: results[name] for name in ("loss", "accuracy")}


def distiller() -> keras.Model:
    model = Distiller(student=dense(8, 10), teacher=dense(32, 10))
    model.compile(
        optimizer=keras.optimizers.Adam(0.01),
        metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        student_loss_fn=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        distillation_loss_fn=keras.losses.KLDivergence(),
        alpha=0.3,
        temperature=3.0,
    )
    return model


# --- two views --------------------------------------------------------------------------------


class Contrastive(keras.Model):
    """Pulls two views of a row together, and reads the labels off with a probe beside it."""

    def __init__(self):
        super().__init__()
        self.encoder = dense(16, 16, last="relu")
        self.projection_head = dense(8, inputs=16)
        self.linear_probe = dense(10, inputs=16)

    def compile(self, contrastive_optimizer, probe_optimizer, temperature=0.1, **options):
        super().compile(**options)
        self.contrastive_optimizer, self.probe_optimizer = contrastive_optimizer, probe_optimizer
        self.temperature = temperature
        self.probe_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.contrastive_loss_tracker = keras.metrics.Mean(name="c_loss")
        self.contrastive_accuracy = keras.metrics.SparseCategoricalAccuracy(name="c_acc")
        self.probe_loss_tracker = keras.metrics.Mean(name="p_loss")
        self.probe_accuracy = keras.metrics.SparseCategoricalAccuracy(name="p_acc")

    @property
    def metrics(self):
        return [
            self.contrastive_loss_tracker,
            self.contrastive_accuracy,
            self.probe_loss_tracker,
            self.probe_accuracy,
        ]

    def contrastive_loss(self, left, right):
        left, right = ops.normalize(left, axis=1), ops.normalize(right, axis=1)
        similarities = ops.matmul(left, ops.transpose(right)) / self.temperature
        pairs = ops.arange(ops.shape(left)[0])
        self.contrastive_accuracy.update_state(pairs, similarities)
        self.contrastive_accuracy.update_state(pairs, ops.transpose(similarities))
        there, back = (
            ops.sparse_categorical_crossentropy(pairs, values, from_logits=True)
            for values in (similarities, ops.transpose(similarities))
        )
        return ops.mean(there + back) / 2

    def train_step(self, data):
        x, y = data
        even = ops.cast(ops.arange(64) % 2, "float32")
        with tf.GradientTape() as tape:
            views = [self.projection_head(self.encoder(x * mask)) for mask in (even, 1 - even)]
            loss = self.contrastive_loss(*views)
        weights = self.encoder.trainable_weights + self.projection_head.trainable_weights
        gradients = tape.gradient(loss, weights)
        self.contrastive_optimizer.apply_gradients(zip(gradients, weights, strict=True))
        self.contrastive_loss_tracker.update_state(loss)

        features = self.encoder(x, training=False)
        with tf.GradientTape() as tape:
            logits = self.linear_probe(features)
            probe_loss = self.probe_loss(y, logits)
        weights = self.linear_probe.trainable_weights
        gradients = tape.gradient(probe_loss, weights)
        self.probe_optimizer.apply_gradients(zip(gradients, weights, strict=True))
        self.probe_loss_tracker.update_state(probe_loss)
        self.probe_accuracy.update_state(y, logits)
        return {metric.name: metric.result() for metric in self.metrics}

    def test_step(self, data):
        x, y = data
        logits = self.linear_probe(self.encoder(x, training=False), training=False)
        self.probe_loss_tracker.update_state(self.probe_loss(y, logits))
        self.probe_accuracy.update_state(y, logits)
        return {metric.name: metric.result() for metric in self.metrics[2:]}


def contrastive() -> keras.Model:
    model = Contrastive()
    model.compile(
        contrastive_optimizer=keras.optimizers.SGD(0.1), probe_optimizer=keras.optimizers.SGD(0.5)
    )
    return model


# --- small changes to the usual step ----------------------------------------------------------


class OwnTrainStep(keras.Model):
    """Only the training step is its own; loss, metrics and test step are Keras' own."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x=x, y=y, y_pred=y_pred)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        return {metric.name: metric.result() for metric in self.metrics}


class OwnLoss(keras.Model):
    """`compute_loss` alone, with a metric of the model's own."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.penalty_tracker = keras.metrics.Mean(name="penalty")

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        penalty = 1e-2 * ops.mean(ops.square(y_pred))
        self.penalty_tracker.update_state(penalty)
        return super().compute_loss(x, y, y_pred, sample_weight, training) + penalty


class OwnMetrics(keras.Model):
    """`compute_metrics` adds a number that is no metric: Keras then reports the last batch."""

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        results = super().compute_metrics(x, y, y_pred, sample_weight)
        return {**results, "largest_logit": ops.max(y_pred)}


class RawLosses(keras.Model):
    """Returns numbers that are no metrics: Keras reports those of the last batch."""

    def raw(self, x, y, training):
        logits = self(x, training=training)
        cross = ops.mean(keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True))
        return cross, 1e-3 * ops.mean(ops.square(logits))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            cross, penalty = self.raw(x, y, training=True)
            total = cross + penalty
        gradients = tape.gradient(total, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"total": total, "cross": cross, "penalty": penalty}

    def test_step(self, data):
        cross, penalty = self.raw(*data, training=False)
        return {"cross": cross, "penalty": penalty}


class Watched(layers.Layer):
    """A layer with a metric of its own."""

    def __init__(self, **options):
        super().__init__(**options)
        self.spread = keras.metrics.Mean(name="spread")

    def call(self, inputs):
        self.spread.update_state(ops.std(inputs))
        return inputs


def changed(kind: type[keras.Model], watch: bool = False) -> keras.Model:
    inputs = keras.Input((64,))
    hidden = layers.Dense(16, activation="relu")(inputs)
    model = kind(inputs, layers.Dense(10)(Watched()(hidden) if watch else hidden))
    model.compile(
        optimizer=keras.optimizers.Adam(0.01),
        loss=None
        if issubclass(kind, RawLosses)
        else keras.losses.SparseCategoricalCrossentropy(True),
        metrics=None if issubclass(kind, RawLosses | OwnTrainStep) else ["accuracy"],
    )
    return model


# --- the comparison ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A compiled model, its data, and the number that has to fall."""

    build: Callable[[], keras.Model]
    falls: str
    validation: Any = None


CASES = {
    "a distiller": Case(distiller, "loss", (VECTORS, LABELS)),
    "a contrastive model": Case(contrastive, "c_loss", (VECTORS, LABELS)),
    "a train step of its own": Case(functools.partial(changed, OwnTrainStep), "loss"),
    "a loss of its own": Case(functools.partial(changed, OwnLoss), "loss"),
    "metrics of its own": Case(functools.partial(changed, OwnMetrics), "loss", (VECTORS, LABELS)),
    "raw losses": Case(functools.partial(changed, RawLosses), "total", (VECTORS, LABELS)),
    "a plainly compiled model with a metric inside a layer": Case(
        functools.partial(changed, keras.Model, watch=True), "loss", (VECTORS, LABELS)
    ),
}
QUIET: dict[str, Any] = {"batch_size": 48, "epochs": 3, "shuffle": False, "verbose": 0}


@pytest.mark.parametrize("name", CASES)
def test_a_keras_model_reports_and_learns_what_it_does_in_keras(name: str):
    case = CASES[name]
    copies = []
    for _ in range(2):
        keras.utils.set_random_seed(1)
        copies.append(case.build())
    reference, model = copies
    arguments = {**QUIET, "x": VECTORS, "y": LABELS, "validation_data": case.validation}
    expected = reference.fit(**arguments).history

    history = lw.Trainer(model).fit(**arguments).history

    assert set(history) == set(expected)
    assert history[case.falls][-1] < history[case.falls][0]
    for key, values in expected.items():
        np.testing.assert_allclose(history[key], values, rtol=1e-5, err_msg=key)
    for got, wanted in zip(model.get_weights(), reference.get_weights(), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-6)


def test_a_gan_with_two_optimizers_trains_as_it_stands():
    model = gan()
    before = model.generator.get_weights()

    history = lw.Trainer(model).fit(IMAGES, **QUIET).history

    assert set(history) == {"d_loss", "g_loss"}
    assert history["d_loss"][-1] < history["d_loss"][0]
    assert np.all(np.isfinite(history["g_loss"]))
    assert not np.array_equal(model.generator.get_weights()[0], before[0])


def test_a_vae_with_loss_trackers_trains_as_it_stands():
    history = lw.Trainer(vae()).fit(VECTORS, validation_data=VECTORS, **QUIET).history

    losses = {"total_loss", "reconstruction_loss", "kl_loss"}
    assert set(history) == losses | {f"val_{name}" for name in losses}
    for prefix in ("", "val_"):
        total = np.array(history[f"{prefix}total_loss"])
        assert total[-1] < total[0]
        parts = [history[f"{prefix}{name}"] for name in ("reconstruction_loss", "kl_loss")]
        np.testing.assert_allclose(total, np.sum(parts, axis=0), rtol=1e-4)


class RawLossNamedLoss(RawLosses):
    def train_step(self, data):
        return {"loss": super().train_step(data)["total"]}


def test_a_raw_number_named_like_a_metric_is_reported_as_keras_reports_it():
    """Keras takes the metric then, which nothing updated: 0. Surprising, but the same."""
    reference, model = changed(RawLossNamedLoss), changed(RawLossNamedLoss)
    arguments = {**QUIET, "x": VECTORS, "y": LABELS, "epochs": 2}

    history = lw.Trainer(model).fit(**arguments).history

    assert history == reference.fit(**arguments).history == {"loss": [0.0, 0.0]}


def test_an_optimizer_that_makes_variables_of_tensors_trains_as_it_does_in_keras():
    def fitted(fit: Any) -> Any:
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(1)])
        model.compile("nadam", "mse")
        x = np.linspace(0, 1, 96, dtype="float32").reshape(32, 3)
        return fit(model, x, x[:, :1])

    options: Any = {"epochs": 2, "batch_size": 8, "shuffle": False, "verbose": 0}
    ours = fitted(lambda model, x, y: lw.Trainer(model).fit(x, y, **options).history)
    theirs = fitted(lambda model, x, y: model.fit(x, y, **options).history)
    assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
