"""Handwritten digits: a small convolutional classifier for 1,797 images of 8x8 pixels.

    loopwright train digits

What to look at: the validation accuracy rises above 0.97 within a few epochs; the final scores are
measured on images that were used neither for training nor for validation.
"""

import io
from pathlib import Path
from typing import Any

import keras
import matplotlib
import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import loopwright as lw
from loopwright import disk

# matplotlib reads a matplotlibrc in the current directory, whose settings can start LaTeX. The
# directory may be a run directory from an untrusted source.
if Path(matplotlib.matplotlib_fname()).resolve().parent == Path.cwd():
    matplotlib.rcdefaults()


def load_images() -> tuple[Any, Any]:
    """Return all images, scaled to 0..1, and their labels."""
    digits = load_digits()
    return (digits.images[..., None] / 16.0).astype("float32"), digits.target.astype("int32")


def load() -> dict[str, Any]:
    """Return the images, split into train, validation and test by class."""
    images, labels = load_images()
    rest, test, rest_labels, test_labels = train_test_split(
        images, labels, test_size=0.2, stratify=labels, random_state=0
    )
    train, validation, train_labels, validation_labels = train_test_split(
        rest, rest_labels, test_size=0.15, stratify=rest_labels, random_state=0
    )
    return {
        "train": (train, train_labels),
        "validation": (validation, validation_labels),
        "test": (test, test_labels),
    }


def make_model(dropout: float = 0.3, filters: int = 32) -> keras.Model:
    """Return two convolutions and a dropout: enough for 8x8 pixels."""
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(filters, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(2 * filters, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dropout(dropout, seed=1),
            keras.layers.Dense(10),
        ]
    )


def make_task(
    *,
    seed: int = 0,
    optimizer: Any = None,
    loss: Any = None,
    metrics: Any = None,
    dropout: float = 0.3,
) -> lw.Task:
    """Return the task: cross-entropy on logits, Adam, accuracy, unless a config names others."""
    keras.utils.set_random_seed(seed)
    return lw.Supervised(
        make_model(dropout),
        loss=loss or keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=optimizer or keras.optimizers.Adam(2e-3),
        metrics=["accuracy"] if metrics is None else metrics,
    )


def draw_readings(images: Any, labels: Any, read: Any) -> Figure:
    """Draw test images and their predicted digits, errors first."""
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    figure.suptitle("Test images and how they were read, the wrong ones first")
    order = np.argsort(read == labels, kind="stable")
    for axes, index in zip(figure.subplots(3, 8).flat, order, strict=False):
        is_right = read[index] == labels[index]
        axes.imshow(images[index, ..., 0], cmap="gray_r", vmin=0, vmax=1)
        title = f"{read[index]}" if is_right else f"{read[index]}, is {labels[index]}"
        axes.set_title(title, fontsize=9, color="black" if is_right else "crimson")
        axes.set_axis_off()
    return figure


def save_figure(figure: Figure, run_dir: str | None, name: str) -> None:
    """Write `run_dir/figures/name.png`; do nothing without a run directory."""
    if run_dir is None:
        return
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=100)
    disk.make_run_directory(Path(run_dir))
    disk.make_directory(Path(run_dir), "figures")
    disk.write_whole(Path(run_dir), f"figures/{name}.png", drawn.getvalue())


def experiment(*, quick: bool = False) -> lw.Experiment:
    """Return the experiment: 15 epochs, quick 3; scores on the test images."""
    data = load()
    x, y = data["train"]
    images, labels = data["test"]

    def conclude(trainer: lw.Trainer, run_dir: str | None) -> dict[str, float]:
        scores = trainer.evaluate(images, labels)
        read = np.argmax(trainer.predict(images), -1)
        wrong = int(np.sum(read != labels))
        save_figure(draw_readings(images, labels, read), run_dir, "readings")
        print("test: " + ", ".join(f"{name} {value:.4f}" for name, value in scores.items()))
        print(f"{wrong} of {len(labels)} test images were read wrong")
        return scores

    fit = {"x": x, "y": y, "validation_data": data["validation"], "batch_size": 64}
    return lw.Experiment(
        make_task,
        fit={**fit, "epochs": 3 if quick else 15, "save_every": "1 epoch"},
        test=(images, labels),
        conclude=conclude,
    )
