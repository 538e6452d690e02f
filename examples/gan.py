"""GAN that draws digits: two networks, two optimizers, one step.

    loopwright train examples/gan.py

What to look at: the grid of samples, one row per epoch, one column per noise vector. A callback
keeps the rows; they are saved with the run, so a resumed run draws all of them. A classifier that
was trained on real digits then counts how many samples it recognises, and as which digit.
"""

from typing import Any, final

import keras
import numpy as np
import tensorflow as tf
from matplotlib.figure import Figure
from sklearn.datasets import load_digits

import figures
import loopwright as lw
from loopwright import digits
from loopwright.components.callbacks import KeepPredictions

NOISE_SIZE = 32
SIDE = 8
COLUMNS = 12


def load() -> Any:
    """Return the 1,797 images as rows of 64 numbers between -1 and 1."""
    return (load_digits().data / 8.0 - 1.0).astype("float32")


def make_generator() -> keras.Model:
    """Return the generator, from noise to 64 pixels."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((NOISE_SIZE,)),
            layers.Dense(256, "leaky_relu"),
            layers.Dense(256, "leaky_relu"),
            layers.Dense(SIDE * SIDE, "tanh"),
        ]
    )


def make_discriminator() -> keras.Model:
    """Return the discriminator, from 64 pixels to the logit of "real"."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((SIDE * SIDE,)),
            layers.Dense(256, "leaky_relu"),
            layers.Dropout(0.3, seed=1),
            layers.Dense(256, "leaky_relu"),
            layers.Dropout(0.3, seed=2),
            layers.Dense(1),
        ]
    )


@final
class GAN(lw.Task):
    """The discriminator separates real from generated images; the generator deceives it."""

    def __init__(self, generator: keras.Model, discriminator: keras.Model) -> None:
        super().__init__()
        self.generator, self.discriminator = generator, discriminator
        self.callback_model = generator  # the model that callbacks use
        self.generator_optimizer = keras.optimizers.Adam(2e-4, beta_1=0.5)
        self.discriminator_optimizer = keras.optimizers.Adam(2e-4, beta_1=0.5)
        self.seed = keras.random.SeedGenerator(0)

    def train_step(self, batch: Any) -> dict[str, Any]:
        """Update each network once."""
        noise = keras.random.normal((tf.shape(batch)[0], NOISE_SIZE), seed=self.seed)
        with tf.GradientTape() as tape:
            real = self.discriminator(batch, training=True)
            generated = self.discriminator(self.generator(noise, training=True), training=True)
            # Label smoothing: real images count as 0.9, so that the discriminator is never certain.
            d_loss = _cross_entropy(0.9, real) + _cross_entropy(0.0, generated)
        self.minimize(d_loss, self.discriminator, self.discriminator_optimizer, tape)
        with tf.GradientTape() as tape:
            generated = self.discriminator(self.generator(noise, training=True), training=True)
            g_loss = _cross_entropy(1.0, generated)
        self.minimize(g_loss, self.generator, self.generator_optimizer, tape)
        return {"d_loss": d_loss, "g_loss": g_loss}

    def predict_step(self, batch: Any) -> Any:
        """Return images for noise."""
        return self.generator(batch, training=False)

    def images(self) -> dict[str, Any]:
        """Return samples for TensorBoard, always from the same noise."""
        noise = keras.random.normal((16, NOISE_SIZE), seed=0)
        samples = self.generator(noise, training=False).numpy()
        return {"samples": samples.reshape(-1, SIDE, SIDE, 1) / 2 + 0.5}

    def exports(self) -> dict[str, keras.Model]:
        """Return the generator only: the discriminator is needed for training only."""
        return {"serve": self.generator}


def _cross_entropy(label: float, logits: Any) -> Any:
    labels = tf.fill(tf.shape(logits), label)
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))


def make_task(*, seed: int = 0) -> GAN:
    """Return the task."""
    keras.utils.set_random_seed(seed)
    return GAN(make_generator(), make_discriminator())


def make_reader(*, epochs: int) -> lw.Trainer:
    """Train a classifier of real digits, to judge the samples."""
    trainer = lw.Trainer(digits.make_task(), plan="graph")
    trainer.fit(*digits.load()["train"], epochs=epochs, batch_size=64, verbose=0)
    return trainer


def read(reader: lw.Trainer, samples: Any) -> Any:
    """Count the samples recognised as each digit with a confidence above 0.9."""
    logits = reader.predict(samples.reshape(-1, SIDE, SIDE, 1) / 2 + 0.5)
    is_sure = keras.ops.softmax(logits).numpy().max(-1) > 0.9
    return np.bincount(logits.argmax(-1)[is_sure], minlength=10)


def draw(rows: dict[int, Any]) -> Figure:
    """Draw a row of samples per epoch, from the same noise."""
    figure = Figure(figsize=(8, 0.6 + 0.75 * len(rows)), layout="constrained")
    figure.suptitle("Samples from the same noise during training")
    grid = figure.subplots(len(rows), COLUMNS, squeeze=False)
    for line, (epoch, samples) in zip(grid, rows.items(), strict=True):
        for axes, sample in zip(line, samples, strict=False):
            axes.imshow(sample.reshape(SIDE, SIDE), cmap="gray_r", vmin=-1, vmax=1)
            axes.set(xticks=[], yticks=[])
        line[0].set_ylabel(f"epoch {epoch}", rotation=0, ha="right", va="center")
    return figure


def experiment(*, quick: bool = False) -> lw.Experiment:
    """Return the experiment: 1,000 epochs, quick 20; a classifier scores 1,000 samples."""
    noise = np.random.default_rng(0).normal(size=(1000, NOISE_SIZE)).astype("float32")
    samples = KeepPredictions(noise[:COLUMNS], epochs=[5] if quick else [10, 50, 200, 500])

    def conclude(trainer: lw.Trainer, run_dir: str | None) -> dict[str, float]:
        begin, end = lw.Trainer(make_task()).predict(noise), trainer.predict(noise)
        epochs = len(trainer.history.history["g_loss"])
        figures.save(draw({0: begin, **samples.kept, epochs: end}), run_dir, "samples")
        reader = make_reader(epochs=2 if quick else 10)
        counts = read(reader, end)
        share, at_start = (c.sum() / len(noise) for c in (counts, read(reader, begin)))
        print(f"{share:.1%} of {len(noise)} samples are taken for a digit, {at_start:.1%} before")
        print("of each digit: " + ", ".join(f"{digit}: {n}" for digit, n in enumerate(counts)))
        scores = {"recognised": share, "at_start": at_start, "digits": (counts > 0).sum()}
        return {name: float(score) for name, score in scores.items()}

    fit = {"x": load(), "batch_size": 64, "callbacks": [samples]}
    return lw.Experiment(
        make_task,
        fit={**fit, "epochs": 20 if quick else 1000, "save_every": "1 epoch"},
        conclude=conclude,
    )
