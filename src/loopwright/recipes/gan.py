"""A GAN that writes digits: two networks, two optimizers, one step.

    python -m loopwright.recipes.gan

What to look at: the grid of samples, one row for each moment of the training, one column for each
noise. Every row is the end of a call of `fit`; when the program is started again, finished calls
are skipped and the rows are drawn from their checkpoints. A classifier that was trained on real
digits then says how many samples it takes for a digit, and for which.
"""

from typing import Any, final

import keras
import numpy as np
import tensorflow as tf
from matplotlib.figure import Figure
from sklearn.datasets import load_digits

import loopwright as lw
from loopwright.recipes import _figures, digits

NOISE_SIZE = 32
SIDE = 8


def load() -> Any:
    """The 1,797 images as rows of 64 numbers between -1 and 1."""
    return (load_digits().data / 8.0 - 1.0).astype("float32")


def make_generator() -> keras.Model:
    """From noise to 64 numbers."""
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
    """From 64 numbers to the logit of "this is a real one"."""
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
    """The discriminator learns to tell real from made, the generator to be taken for real."""

    def __init__(self, generator: keras.Model, discriminator: keras.Model) -> None:
        super().__init__()
        self.generator, self.discriminator = generator, discriminator
        self.generator_optimizer = keras.optimizers.Adam(2e-4, beta_1=0.5)
        self.discriminator_optimizer = keras.optimizers.Adam(2e-4, beta_1=0.5)
        self.seed = keras.random.SeedGenerator(0)

    def train_step(self, batch: Any) -> dict[str, Any]:
        """One update of each network."""
        noise = keras.random.normal((tf.shape(batch)[0], NOISE_SIZE), seed=self.seed)
        with tf.GradientTape() as tape:
            real = self.discriminator(batch, training=True)
            made = self.discriminator(self.generator(noise, training=True), training=True)
            # Real ones count as 0.9: a discriminator that is never quite sure stays useful.
            d_loss = _cross_entropy(0.9, real) + _cross_entropy(0.0, made)
        self.minimize(d_loss, self.discriminator, self.discriminator_optimizer, tape)
        with tf.GradientTape() as tape:
            made = self.discriminator(self.generator(noise, training=True), training=True)
            g_loss = _cross_entropy(1.0, made)
        self.minimize(g_loss, self.generator, self.generator_optimizer, tape)
        return {"d_loss": d_loss, "g_loss": g_loss}

    def predict_step(self, batch: Any) -> Any:
        """Images for noise."""
        return self.generator(batch, training=False)


def _cross_entropy(label: float, logits: Any) -> Any:
    labels = tf.fill(tf.shape(logits), label)
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))


def make_task() -> GAN:
    """The GAN, from a fixed seed."""
    keras.utils.set_random_seed(0)
    return GAN(make_generator(), make_discriminator())


def make_reader(*, epochs: int) -> lw.Trainer:
    """A classifier of real digits, to judge the samples by."""
    trainer = lw.Trainer(digits.make_task(), plan="graph")
    trainer.fit(*digits.load()["train"], epochs=epochs, batch_size=64, verbose=0)
    return trainer


def read(reader: lw.Trainer, samples: Any) -> Any:
    """How many samples are taken for each digit with a confidence above 0.9."""
    logits = reader.predict(samples.reshape(-1, SIDE, SIDE, 1) / 2 + 0.5)
    is_sure = keras.ops.softmax(logits).numpy().max(-1) > 0.9
    return np.bincount(logits.argmax(-1)[is_sure], minlength=10)


def draw(rows: dict[int, Any]) -> Figure:
    """A row of samples for each moment, from the same noise."""
    figure = Figure(figsize=(8, 0.6 + 0.75 * len(rows)), layout="constrained")
    figure.suptitle("Samples from the same noise, as the training goes on")
    grid = figure.subplots(len(rows), 12, squeeze=False)
    for line, (epoch, samples) in zip(grid, rows.items(), strict=True):
        for axes, sample in zip(line, samples, strict=False):
            axes.imshow(sample.reshape(SIDE, SIDE), cmap="gray_r", vmin=-1, vmax=1)
            axes.set(xticks=[], yticks=[])
        line[0].set_ylabel(f"epoch {epoch}", rotation=0, ha="right", va="center")
    return figure


def main(
    run_dir: str | None = "runs/gan",
    *,
    plan: str = "auto",
    quick: bool = False,
    save_every: str = "1 epoch",
) -> dict[str, float]:
    """Trains, and prints what the samples look like to a classifier. Called again, it goes on."""
    images = load()
    noise = np.random.default_rng(0).normal(size=(1000, NOISE_SIZE)).astype("float32")
    trainer = lw.Trainer(make_task(), run_dir=run_dir, plan=plan)
    rows = {0: trainer.predict(noise)}
    for epochs in (5, 15) if quick else (10, 40, 150, 300, 500):
        trainer.fit(images, epochs=epochs, batch_size=64, save_every=save_every)
        rows[max(rows) + epochs] = trainer.predict(noise)
    _figures.save(draw(rows), run_dir, "samples")
    reader = make_reader(epochs=2 if quick else 10)
    counts = read(reader, rows[max(rows)])
    share, at_start = counts.sum() / len(noise), read(reader, rows[0]).sum() / len(noise)
    print(
        f"{share:.1%} of {len(noise)} samples are taken for a digit ({at_start:.1%} at the start)"
    )
    print("of each digit: " + ", ".join(f"{digit}: {n}" for digit, n in enumerate(counts)))
    return {
        "recognised": float(share),
        "at_start": float(at_start),
        "digits": float((counts > 0).sum()),
    }


if __name__ == "__main__":
    main()
