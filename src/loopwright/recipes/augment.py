"""Few images, changed at random: handwritten digits learned from ten images of each.

    python -m loopwright.recipes.augment

The same small model is trained three ways: on the images as they are; on images that layers of
Keras shift and turn inside the compiled step; and on images that a function shifts and turns with
NumPy and SciPy, one by one. Where albumentations is installed, it is the fourth.

What to look at: how much this helps on images that were never seen. Layers draw from seeds that
the task holds, functions from one that follows from epoch and example: a run that goes on draws
what it would have drawn.
"""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, final

import keras
import numpy as np
import tensorflow as tf
from matplotlib.figure import Figure
from scipy import ndimage
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import loopwright as lw
from loopwright.recipes import _figures

IMAGES_PER_DIGIT = 10
SHOWN_PER_EPOCH = 10
"""How many times an epoch shows each image: ten of a digit would make an epoch of two steps."""
DEGREES = 15.0
"""The most that an image is turned. It is shifted by one pixel at most: digits fill their 8x8."""


def load(seed: int = 0) -> dict[str, Any]:
    """Ten images of each digit to train on, drawn with this seed; 798 to watch, 899 to test."""
    digits = load_digits()
    images = (digits.images[..., None] / 16.0).astype("float32")
    labels = digits.target.astype("int32")
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


def changed(example: Any, seed: int) -> Any:
    """One image shifted and turned; what is drawn follows from the seed alone.

    >>> image = np.eye(8, dtype="float32")[..., None]
    >>> one, again, other = (changed((image, 7), seed)[0] for seed in (1, 1, 2))
    >>> bool((one == again).all()), bool((one == other).all())
    (True, False)
    """
    image, label = example
    random = np.random.default_rng(seed)
    angle = np.deg2rad(random.uniform(-DEGREES, DEGREES))
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    centre = (np.array(image.shape[:2]) - 1) / 2
    offset: Any = centre - turn @ centre + np.round(random.uniform(-1, 1, size=2))
    # Plain "constant" would cut off the border, where these digits begin.
    plane = ndimage.affine_transform(image[..., 0], turn, offset, order=1, mode="grid-constant")
    return plane[..., None], label


def changed_by_albumentations(example: Any, seed: int) -> Any:
    """The same with albumentations: a pipeline is made for each image, from its seed."""
    # Optional, and slow to import.
    import albumentations  # pyright: ignore[reportMissingModuleSource]

    image, label = example
    limits: dict[str, Any] = {"translate_px": (-1, 1), "rotate": (-DEGREES, DEGREES), "p": 1.0}
    # Its seeds are at most 32 bits long.
    pipeline = albumentations.Compose([albumentations.Affine(**limits)], seed=seed % 2**32)
    return pipeline(image=image)["image"].reshape(image.shape), label


MAPS: dict[str, Callable[[Any, int], Any]] = {
    "by a function": changed,
    "by albumentations": changed_by_albumentations,
}


def ways() -> list[str]:
    """How the images can be changed here."""
    known = ["as they are", "by layers", "by a function"]
    return [*known, *(["by albumentations"] if find_spec("albumentations") else [])]


def make_layers(seed: int) -> keras.Model:
    """The same as layers, each with a seed of its own."""
    layers = keras.layers
    # Shifted by whole pixels: to interpolate twice would blur images as small as these.
    shift = layers.RandomTranslation(
        1 / 8, 1 / 8, fill_mode="constant", interpolation="nearest", seed=2 * seed
    )
    turn = layers.RandomRotation(DEGREES / 360, fill_mode="constant", seed=2 * seed + 1)
    return keras.Sequential([keras.Input((8, 8, 1)), shift, turn])


def make_model() -> keras.Model:
    """Two convolutions and a dropout, as in the recipe `digits`, half as wide."""
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.3, seed=1),
            keras.layers.Dense(10),
        ]
    )


@final
class Classifier(lw.Task):
    """Cross-entropy on logits; the images go through `layers` first, if there are any."""

    def __init__(self, model: keras.Model, layers: keras.Model | None) -> None:
        super().__init__()
        self.model, self.layers = model, layers
        self.optimizer = keras.optimizers.Adam(2e-3)
        self.cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.accuracy = keras.metrics.SparseCategoricalAccuracy(name="accuracy")

    def train_step(self, batch: Any) -> dict[str, Any]:
        """Changes the images, predicts, updates."""
        images, labels = batch
        if self.layers is not None:
            images = self.layers(images, training=True)
        with tf.GradientTape() as tape:
            logits = self.model(images, training=True)
            loss = self.cross_entropy(labels, logits)
        self.minimize(loss, self.model, self.optimizer, tape)
        self.accuracy.update_state(labels, logits)
        return {"loss": loss}

    def test_step(self, batch: Any) -> dict[str, Any]:
        """Images are scored as they are."""
        images, labels = batch
        logits = self.model(images, training=False)
        self.accuracy.update_state(labels, logits)
        return {"loss": self.cross_entropy(labels, logits)}


def make_task(way: str = "by layers", seed: int = 0) -> Classifier:
    """The task for one way; the seed decides on weights and changes."""
    keras.utils.set_random_seed(seed)
    return Classifier(make_model(), make_layers(seed) if way == "by layers" else None)


def make_data(way: str, images: Any, labels: Any) -> lw.Arrays:
    """The training images for one way."""
    rows = np.tile(np.arange(len(images)), SHOWN_PER_EPOCH)
    return lw.Arrays(images[rows], labels[rows], map=MAPS.get(way))


def train(way: str, seed: int, run_dir: str | None, **options: Any) -> tuple[list[float], float]:
    """One training: the accuracy of each epoch on validation images, and that on test images."""
    data = load(seed)
    own_dir = run_dir and str(Path(run_dir) / f"{way.replace(' ', '_')}-{seed}")
    trainer = lw.Trainer(make_task(way, seed), run_dir=own_dir, plan=options.pop("plan"))
    history = trainer.fit(
        make_data(way, *data["train"]),
        validation_data=data["validation"],
        batch_size=50,
        verbose=0,
        **options,
    )
    accuracy = trainer.evaluate(*data["test"])["accuracy"]
    print(f"images {way}, seed {seed}: test accuracy {accuracy:.4f}")
    return history.history["val_accuracy"], accuracy


def draw(curves: dict[str, Any]) -> Figure:
    """The accuracy of every way, the mean over the seeds; and what the changes look like."""
    figure = Figure(figsize=(8, 4), layout="constrained")
    parts: Any = figure.subfigures(1, 2, width_ratios=[3, 2])
    left, right = parts
    axes = left.subplots()
    for way, curve in curves.items():
        axes.plot(np.arange(1, len(curve) + 1), curve, label=way)
    axes.set(title="Ten images of each digit to learn from", ylabel="accuracy, validation images")
    axes.set_ylim(0.8, 1.0)
    _figures.count_epochs(axes)
    axes.legend(title="images", loc="lower right")
    images, labels = load()["train"]
    right.suptitle("As they are, and changed by a function", fontsize=10)
    for row, number in zip(right.subplots(4, 5), range(2, 42, 10), strict=True):
        some = [changed((images[number], labels[number]), seed)[0] for seed in range(4)]
        for panel, image in zip(row, [images[number], *some], strict=True):
            panel.imshow(image[..., 0], cmap="gray_r", vmin=0, vmax=1)
            panel.set_axis_off()
    return figure


def main(
    run_dir: str | None = "runs/augment",
    *,
    plan: str = "auto",
    quick: bool = False,
    save_every: str = "1 epoch",
) -> dict[str, float]:
    """Trains every way with three seeds, and prints the mean scores. Called again, it goes on."""
    options: dict[str, Any] = {"plan": plan, "epochs": 12 if quick else 40}
    curves, scores = {}, {}
    for way in ways():
        trained = [
            train(way, seed, run_dir, save_every=save_every, **options)
            for seed in range(1 if quick else 3)
        ]
        curves[way] = np.mean([curve for curve, _ in trained], axis=0)
        scores[way] = float(np.mean([accuracy for _, accuracy in trained]))
    _figures.save(draw(curves), run_dir, "accuracy")
    for way, accuracy in scores.items():
        print(f"test: images {way}: accuracy {accuracy:.4f}")
    return scores


if __name__ == "__main__":
    main()
