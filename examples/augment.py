"""Data augmentation: handwritten digits learned from ten images of each.

    loopwright train examples/augment.py

The same small model is trained in three ways, in one step: on the original images; on images that
Keras layers shift and rotate inside the compiled step; and on images that a function shifts and
rotates one by one with NumPy and SciPy. If albumentations is installed, it is the fourth.

What to look at: how much augmentation helps on unseen images. Layers draw from seeds that the task
owns, functions from a seed that is derived from epoch and example: a resumed run draws the same
numbers as an uninterrupted one.
"""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, final

import keras
import numpy as np
import tensorflow as tf
from matplotlib.figure import Figure
from scipy import ndimage
from sklearn.model_selection import train_test_split

import figures
import loopwright as lw
from loopwright import digits

IMAGES_PER_DIGIT = 10
SHOWN_PER_EPOCH = 10
"""Repetitions of each image per epoch: otherwise an epoch would have two steps."""
DEGREES = 15.0
"""The largest rotation. The largest shift is one pixel: digits fill their 8x8 pixels."""


def load(seed: int = 0) -> dict[str, Any]:
    """Return ten images per digit to train on, drawn with a seed; 798 to validate, 899 to test."""
    images, labels = digits.load_images()
    pool, test, pool_labels, test_labels = train_test_split(
        images, labels, test_size=0.5, stratify=labels, random_state=0
    )
    random = np.random.default_rng(seed)
    rows = [np.flatnonzero(pool_labels == digit) for digit in range(10)]
    few = np.concatenate([random.permutation(row)[:IMAGES_PER_DIGIT] for row in rows])
    others = np.delete(np.arange(len(pool)), few)
    return {
        "train": (pool[few], pool_labels[few]),
        "validation": (pool[others], pool_labels[others]),
        "test": (test, test_labels),
    }


def changed(image: Any, seed: int) -> Any:
    """Return an image shifted and rotated; the result depends on the seed only.

    >>> image = np.eye(8, dtype="float32")[..., None]
    >>> one, again, other = (changed(image, seed) for seed in (1, 1, 2))
    >>> bool((one == again).all()), bool((one == other).all())
    (True, False)
    """
    random = np.random.default_rng(seed)
    angle = np.deg2rad(random.uniform(-DEGREES, DEGREES))
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    centre = (np.array(image.shape[:2]) - 1) / 2
    offset: Any = centre - turn @ centre + np.round(random.uniform(-1, 1, size=2))
    # Plain "constant" would cut off the border, where these digits start.
    plane = ndimage.affine_transform(image[..., 0], turn, offset, order=1, mode="grid-constant")
    return plane[..., None]


def changed_by_albumentations(image: Any, seed: int) -> Any:
    """Return the same by albumentations, with a new pipeline for each seed."""
    # Optional, and slow to import.
    import albumentations  # pyright: ignore[reportMissingModuleSource]

    limits: dict[str, Any] = {"translate_px": (-1, 1), "rotate": (-DEGREES, DEGREES), "p": 1.0}
    # Its seeds have at most 32 bits.
    pipeline = albumentations.Compose([albumentations.Affine(**limits)], seed=seed % 2**32)
    return pipeline(image=image)["image"].reshape(image.shape)


TITLES = {"plain": "as they are", "layers": "by layers", "function": "by a function"}
FUNCTIONS: dict[str, Callable[[Any, int], Any]] = {"function": changed}
if find_spec("albumentations"):
    TITLES["albumentations"] = "by albumentations"
    FUNCTIONS["albumentations"] = changed_by_albumentations


def with_changes(example: Any, seed: int) -> Any:
    """Return the original image, the image changed by each function, and the label."""
    image, label = example
    return {"plain": image, **{name: f(image, seed) for name, f in FUNCTIONS.items()}}, label


def make_layers(seed: int) -> keras.Model:
    """Return the same augmentation as layers, each with its own seed."""
    layers = keras.layers
    # Shift by whole pixels: interpolating twice would blur images of this size.
    shift = layers.RandomTranslation(
        1 / 8, 1 / 8, fill_mode="constant", interpolation="nearest", seed=2 * seed
    )
    turn = layers.RandomRotation(DEGREES / 360, fill_mode="constant", seed=2 * seed + 1)
    return keras.Sequential([keras.Input((8, 8, 1)), shift, turn])


@final
class Comparison(lw.Task):
    """One model per kind of augmentation, trained on the same images."""

    def __init__(self, models: dict[str, keras.Model], layers: keras.Model) -> None:
        super().__init__()
        self.models, self.layers = models, layers
        self.optimizers = {way: keras.optimizers.Adam(2e-3) for way in models}
        self.cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def train_step(self, batch: Any) -> dict[str, Any]:
        """Compute a loss and an update for each model."""
        images, labels = batch
        images = {**images, "layers": self.layers(images["plain"], training=True)}
        losses = {}
        for way, model in self.models.items():
            with tf.GradientTape() as tape:
                losses[way] = self.cross_entropy(labels, model(images[way], training=True))
            self.minimize(losses[way], model, self.optimizers[way], tape)
        return losses

    def test_step(self, batch: Any) -> dict[str, Any]:
        """Return the accuracy of each model on original images."""
        images, labels = batch
        read = {way: tf.argmax(m(images), -1, labels.dtype) for way, m in self.models.items()}
        return {way: tf.reduce_mean(tf.cast(r == labels, tf.float32)) for way, r in read.items()}

    def exports(self) -> dict[str, keras.Model]:
        """Return all models by name."""
        return dict(self.models)


def make_task(*, seed: int = 0) -> Comparison:
    """Return the task; the seed sets the initial weights, equal in all models, and the layers."""
    models = {}
    for way in TITLES:
        keras.utils.set_random_seed(seed)
        models[way] = digits.make_model(filters=16)
    return Comparison(models, make_layers(seed))


def make_data(images: Any, labels: Any) -> lw.Arrays:
    """Return the training data: each image several times per epoch, with its changes."""
    rows = np.tile(np.arange(len(images)), SHOWN_PER_EPOCH)
    return lw.Arrays(images[rows], labels[rows], map=with_changes)


def draw(history: dict[str, list[float]]) -> Figure:
    """Draw the accuracy of each model, and examples of changed images."""
    figure = Figure(figsize=(8, 4), layout="constrained")
    parts: Any = figure.subfigures(1, 2, width_ratios=[3, 2])
    left, right = parts
    axes = left.subplots()
    figures.plot_epochs(axes, {title: history[f"val_{way}"] for way, title in TITLES.items()})
    axes.set(title="Ten images of each digit to learn from", ylabel="accuracy, validation images")
    axes.set_ylim(0.8, 1.0)
    axes.legend(title="images", loc="lower right")
    images, _ = load()["train"]
    right.suptitle("As they are, and changed by a function", fontsize=10)
    for row, number in zip(right.subplots(4, 5), range(2, 42, 10), strict=True):
        some = [changed(images[number], seed) for seed in range(4)]
        for panel, image in zip(row, [images[number], *some], strict=True):
            panel.imshow(image[..., 0], cmap="gray_r", vmin=0, vmax=1)
            panel.set_axis_off()
    return figure


def experiment(*, seed: int = 0, quick: bool = False) -> lw.Experiment:
    """Return the experiment: 40 epochs, quick 12; the scores are test accuracies."""
    data = load(seed)

    def conclude(trainer: lw.Trainer, run_dir: str | None) -> dict[str, float]:
        scores = trainer.evaluate(*data["test"])
        figures.save(draw(trainer.history.history), run_dir, "accuracy")
        for way, title in TITLES.items():
            print(f"test: images {title}: accuracy {scores[way]:.4f}")
        return scores

    fit = {"x": make_data(*data["train"]), "validation_data": data["validation"], "batch_size": 50}
    return lw.Experiment(
        make_task,
        fit={**fit, "epochs": 12 if quick else 40, "save_every": "1 epoch"},
        test=data["test"],
        conclude=conclude,
    )
