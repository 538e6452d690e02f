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
# From a classifier in fifteen lines to a GAN whose step is your own. It takes less than a minute
# on two cores and fetches nothing: the data is scikit-learn's 1,797 handwritten digits of 8x8.
#
# Every cell is run when this page is built. It is also a [notebook](tutorial.ipynb) for Jupyter.

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
# `fit`, `evaluate` and `predict` are those of Keras: the same arguments, the same names. What
# `fit` returns has the numbers of each epoch.

# %%
[round(value, 3) for value in history.history["val_accuracy"]]

# %%
classifier.evaluate(*test)


# %% [markdown]
# ## The step, written out
#
# `Supervised` is one task among others. A task holds models, optimizers and metrics as
# attributes, and says in plain TensorFlow what happens with a batch. The trainer compiles it,
# repeats it, averages what it returns, and resets the metrics.


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
# A mistake is told before the first step. Labels of shape `(n,)` against predictions of `(n, 1)`
# give no error in TensorFlow, only a curve that stays flat:

# %%
one_number = keras.Sequential([keras.Input((64,)), layers.Dense(1)])
mistaken = lw.Supervised(one_number, lambda y, p: tf.square(y - p), "adam")
try:
    lw.Trainer(mistaken).fit(train[0], train[1].astype("float32"), verbose=0)
except lw.StepError as error:
    print(error)

# %% [markdown]
# ## Owning the loop
#
# `events` is `fit` one event at a time. To stop, stop iterating.

# %%
for event in trainer.events(*train, validation_data=test, epochs=50):
    if isinstance(event, lw.Validated) and event.metrics["accuracy"] > 0.88:
        print(f"step {event.step}: accuracy {event.metrics['accuracy']:.3f} is enough")
        break

# %% [markdown]
# ## Stopped, and going on
#
# With a run directory a training can be killed at any moment. Here it breaks down in its second
# epoch; a new trainer finds the directory and goes on. It ends with the numbers of a training
# that nobody disturbed.

# %%
import tempfile


def train_in(run_dir, break_down=False):
    keras.utils.set_random_seed(0)
    trainer = lw.Trainer(Classifier(), run_dir=run_dir, plan="graph")
    for event in trainer.events(*train, epochs=3, save_every="10 steps"):
        if break_down and isinstance(event, lw.EpochEnded) and event.epoch == 1:
            raise RuntimeError("the power is gone")
    return trainer.history.history["loss"]


with tempfile.TemporaryDirectory() as directory:
    undisturbed = train_in(f"{directory}/undisturbed")
    try:
        train_in(f"{directory}/broken", break_down=True)
    except RuntimeError as error:
        print(error)
    resumed = train_in(f"{directory}/broken")

print("the same numbers:", resumed == undisturbed)


# %% [markdown]
# ## A GAN
#
# Two networks, two optimizers, one step. The discriminator learns to tell real digits from made
# ones, the generator to be taken for real. The noise comes from a seed that the task owns, so
# that the training could be resumed like the one above.


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
gan = lw.Trainer(GAN(), plan="graph")  # too short to look for a faster plan
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
# The classifier from the beginning is the judge. What does it take for a digit, more than half
# sure? The samples before, those after, and real digits that it was not trained on:


# %%
def taken_for_digits(images):
    logits = classifier.predict(images)
    return float(np.mean(keras.ops.softmax(logits).numpy().max(-1) > 0.5))


[round(taken_for_digits(images), 2) for images in ((before + 1) / 2, (after + 1) / 2, test[0])]

# %% [markdown]
# Longer training gives better digits: the [recipe](recipes/gan.md) has the numbers.
#
# ## Where to go next
#
# - [A step of your own](own_step.md) and [several optimizers](several_optimizers.md), in detail.
# - [Recipes](recipes/README.md): worked examples on real data.
# - [Plans](plans.md): how steps are run, and how fast.
