# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Tutorial
#
# From a classifier in fifteen lines to a GAN with a custom step. It takes less than a minute on
# two cores and downloads nothing: the data is scikit-learn's 1,797 handwritten digits.
#
# Building this page runs every cell. The page is also a [notebook](tutorial.ipynb) for Jupyter.

# %% [markdown]
# ## Fifteen lines

# %%
import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import loopwright as lw

keras.utils.set_random_seed(0)
layers = keras.layers

digits = load_digits()
x, y = (digits.data / 16).astype("float32"), digits.target
train, test = (x[:1500], y[:1500]), (x[1500:], y[1500:])

model = keras.Sequential([keras.Input((64,)), layers.Dense(64, "relu"), layers.Dense(10)])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
classifier = lw.Trainer(lw.Supervised(model, loss, "adam", metrics=["accuracy"]))
history = classifier.fit(*train, validation_data=test, epochs=8)

# %% [markdown]
# `fit`, `evaluate` and `predict` have the same names and arguments as in Keras. `fit` shows the
# curves while it trains; to stop, interrupt the cell: the next call of `fit` continues. It returns
# the history: the metrics of each epoch, which `history.plot()` draws for a paper.

# %%
[round(value, 3) for value in history.history["val_accuracy"]]

# %%
history.plot(["loss", "accuracy"])

# %% [markdown]
# A trainer says what it holds:

# %%
classifier

# %%
classifier.evaluate(*test)


# %% [markdown]
# ## A custom step
#
# `Supervised` is a ready-made task. A task holds models, optimizers and metrics as attributes, and
# its step processes one batch in plain TensorFlow. The trainer compiles the step, runs it for every
# batch, averages the returned values, and resets the metrics.


# %%
class Classifier(lw.Task):
    def __init__(self):
        super().__init__()
        self.model = keras.Sequential(
            [keras.Input((64,)), layers.Dense(64, "relu"), layers.Dense(10)]
        )
        self.optimizer = keras.optimizers.Adam()
        self.accuracy = keras.metrics.SparseCategoricalAccuracy(name="accuracy")

    def train_step(self, batch):
        x, y = batch
        with tf.GradientTape() as tape:
            logits = self.model(x, training=True)
            value = loss(y, logits)
        self.minimize(value, self.model, self.optimizer, tape)
        self.accuracy.update_state(y, logits)
        return {"loss": value}

    def test_step(self, batch):
        x, y = batch
        logits = self.model(x, training=False)
        self.accuracy.update_state(y, logits)
        return {"loss": loss(y, logits)}


trainer = lw.Trainer(Classifier())
history = trainer.fit(*train, validation_data=test, epochs=3)

# %% [markdown]
# Mistakes are reported before the first step. Labels of shape `(n,)` with predictions of shape
# `(n, 1)` raise no error in TensorFlow; the model just does not learn:

# %%
one_number = keras.Sequential([keras.Input((64,)), layers.Dense(1)])
mistaken = lw.Supervised(one_number, lambda y, p: tf.square(y - p), "adam")
try:
    lw.Trainer(mistaken).fit(train[0], train[1].astype("float32"), verbose=0)
except lw.StepError as error:
    print(error)

# %% [markdown]
# ## Iterating over events
#
# `events` is `fit` one event at a time. `break` stops the training, and the end of the `with` block
# finishes it. Without `with`, a run directory keeps it open, and the next `fit` continues it.

# %%
with trainer.events(*train, validation_data=test, epochs=50) as events:
    for event in events:
        if isinstance(event, lw.Validated) and event.metrics["accuracy"] > 0.88:
            print(f"step {event.step}: accuracy {event.metrics['accuracy']:.3f} is enough")
            break

# %% [markdown]
# ## Crash and resume
#
# With a run directory, training can be killed at any moment. Here it crashes in its second epoch; a
# new trainer with the same directory resumes it. It ends with the same numbers as an uninterrupted
# training.

# %%
import tempfile


def train_in(run_dir, crash=False):
    keras.utils.set_random_seed(0)
    trainer = lw.Trainer(Classifier(), run_dir=run_dir, plan="graph")
    for event in trainer.events(*train, epochs=3, save_every="10 steps"):
        if crash and isinstance(event, lw.EpochEnded) and event.epoch == 1:
            raise RuntimeError("power failure")
    return trainer.history.history["loss"]


with tempfile.TemporaryDirectory() as directory:
    undisturbed = train_in(f"{directory}/undisturbed")
    try:
        train_in(f"{directory}/crashed", crash=True)
    except RuntimeError as error:
        print(error)
    resumed = train_in(f"{directory}/crashed")

print("the same numbers:", resumed == undisturbed)


# %% [markdown]
# ## A GAN
#
# Two networks, two optimizers, one step. The discriminator learns to distinguish real digits from
# generated ones, the generator to deceive it. The noise comes from a seed that the task owns, so
# that this training is resumable too.


# %%
def cross_entropy(label, logits):
    labels = tf.fill(tf.shape(logits), label)
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))


class GAN(lw.Task):
    def __init__(self):
        super().__init__()
        self.generator = keras.Sequential(
            [
                keras.Input((32,)),
                layers.Dense(128, "leaky_relu"),
                layers.Dense(128, "leaky_relu"),
                layers.Dense(64, "tanh"),
            ]
        )
        self.discriminator = keras.Sequential(
            [
                keras.Input((64,)),
                layers.Dense(128, "leaky_relu"),
                layers.Dropout(0.3),
                layers.Dense(1),
            ]
        )
        self.generator_optimizer = keras.optimizers.Adam(1e-3, beta_1=0.5)
        self.discriminator_optimizer = keras.optimizers.Adam(1e-3, beta_1=0.5)
        self.seed = keras.random.SeedGenerator(0)

    def train_step(self, batch):
        noise = keras.random.normal((tf.shape(batch)[0], 32), seed=self.seed)
        with tf.GradientTape() as tape:
            real = self.discriminator(batch, training=True)
            made = self.discriminator(self.generator(noise, training=True), training=True)
            d_loss = cross_entropy(0.9, real) + cross_entropy(0.0, made)
        self.minimize(d_loss, self.discriminator, self.discriminator_optimizer, tape)
        with tf.GradientTape() as tape:
            made = self.discriminator(self.generator(noise, training=True), training=True)
            g_loss = cross_entropy(1.0, made)
        self.minimize(g_loss, self.generator, self.generator_optimizer, tape)
        return {"d_loss": d_loss, "g_loss": g_loss}

    def predict_step(self, batch):
        return self.generator(batch, training=False)


noise = np.random.default_rng(0).normal(size=(500, 32)).astype("float32")
gan = lw.Trainer(GAN(), plan="graph")  # too short to search for a faster plan
before = gan.predict(noise)
gan.fit(x * 2 - 1, batch_size=64, epochs=50, verbose=0)
after = gan.predict(noise)


# %% [markdown]
# Samples from the same noise, before and after:


# %%
def picture(rows):
    tiles = [[np.pad(image.reshape(8, 8), 1, constant_values=-1) for image in row] for row in rows]
    image = keras.utils.array_to_img(-np.block(tiles)[..., None])
    return image.resize((image.width * 5, image.height * 5), resample=0)


picture([before[:12], after[:12], after[12:24]])

# %% [markdown]
# The first classifier evaluates the samples: the share that it recognizes as a digit with a
# probability above 0.5, before training, after training, and for real test digits:


# %%
def share_of_digits(images):
    logits = classifier.predict(images)
    return float(np.mean(keras.ops.softmax(logits).numpy().max(-1) > 0.5))


[round(share_of_digits(images), 2) for images in ((before + 1) / 2, (after + 1) / 2, test[0])]

# %% [markdown]
# Longer training gives better digits: see the [example](examples/gan.md).
#
# ## Where to go next
#
# - [Custom training steps](own_step.md) and [multiple optimizers](several_optimizers.md) in detail.
# - [Examples](examples/README.md): worked examples on real data.
# - [Plans](plans.md): how steps are executed, and how fast.
