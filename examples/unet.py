"""Segmentation: a U-Net finds water in NASA's image of the Earth, from `tf.data`.

    loopwright train examples/unet.py

What to look at: tiles are split by longitude, so that no coast is in two sets; two unseen strips of
the Earth are the test. The pipeline shuffles and mirrors with its own seeds, so a resumed run reads
the same tiles as an uninterrupted one.
"""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from matplotlib.figure import Figure

import figures
import loopwright as lw

TILE = 64
TEST_STRIPS = {"90 to 135° west": (4, 8), "45 to 90° east": (20, 24)}
VALIDATION_COLUMNS = {12, 13, 28, 29}


def load() -> dict[str, Any]:
    """Return tiles of the Earth and their water as uint8: `(columns, rows, 64, 64, channels)`."""
    earth = tf.io.decode_jpeg((figures.DATA / "earth.jpg").read_bytes()).numpy()
    water = (
        tf.io.decode_png((figures.DATA / "earth_water.png").read_bytes(), channels=1).numpy() // 255
    )
    earth, water = _tiles(earth), _tiles(water)
    test = [column for begin, end in TEST_STRIPS.values() for column in range(begin, end)]
    validation = sorted(VALIDATION_COLUMNS)
    train = sorted({*range(len(earth))} - {*test} - {*validation})
    split = {"train": train, "validation": validation, "test": test}
    return {name: (earth[columns], water[columns]) for name, columns in split.items()}


def _tiles(image: Any) -> Any:
    height, width, channels = image.shape
    tiles = image.reshape(height // TILE, TILE, width // TILE, TILE, channels)
    return tiles.transpose(2, 0, 1, 3, 4)


def pipeline(tiles: tuple[Any, Any], *, training: bool) -> tf.data.Dataset:
    """Return batches of 16; for training, shuffled and mirrored at random with seeds."""
    dataset = tf.data.Dataset.from_tensor_slices(
        tuple(part.reshape(-1, *part.shape[2:]) for part in tiles)
    )
    if training:
        coins = tf.data.Dataset.random(seed=1, rerandomize_each_iteration=True).batch(2)
        dataset = tf.data.Dataset.zip(dataset.shuffle(1024, seed=0), coins).map(_mirrored)
    scaled = dataset.map(lambda x, y: (tf.cast(x, tf.float32) / 255, tf.cast(y, tf.float32)))
    return scaled.batch(16).prefetch(2)


def _mirrored(tile: Any, coins: Any) -> tuple[Any, Any]:
    image, water = tile
    both = tf.concat([image, water], -1)
    both = tf.image.stateless_random_flip_left_right(both, coins)
    both = tf.image.stateless_random_flip_up_down(both, coins + 1)
    return both[..., :3], both[..., 3:]


def make_model() -> keras.Model:
    """Return a U-Net with two levels and skip connections."""
    layers = keras.layers

    def convolved(x: Any, filters: int) -> Any:
        for _ in range(2):
            x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
            x = layers.Activation("relu")(layers.BatchNormalization(momentum=0.9)(x))
        return x

    inputs = x = keras.Input((TILE, TILE, 3))
    skips = []
    for filters in (16, 32):
        skips.append(convolved(x, filters))
        x = layers.MaxPooling2D()(skips[-1])
    x = convolved(x, 64)
    for filters, skip in zip((32, 16), reversed(skips), strict=True):
        x = layers.Conv2DTranspose(filters, 2, strides=2)(x)
        x = convolved(layers.Concatenate()([x, skip]), filters)
    return keras.Model(inputs, layers.Conv2D(1, 1)(x))


def make_task(
    *, seed: int = 0, optimizer: Any = None, loss: Any = None, metrics: Any = None
) -> lw.Task:
    """Return the task: cross-entropy per pixel, Adam, mean IoU, unless a config names others."""
    keras.utils.set_random_seed(seed)
    if metrics is None:
        metrics = [keras.metrics.BinaryIoU([0, 1], threshold=0.0, name="mean_iou")]
    return lw.Supervised(
        make_model(),
        loss=loss or keras.losses.BinaryCrossentropy(from_logits=True),
        optimizer=optimizer or keras.optimizers.Adam(2e-3),
        metrics=metrics,
    )


def draw(tiles: tuple[Any, Any], logits: Any) -> Figure:
    """Draw each test strip: the image, and where the model was right and wrong."""
    earth, water = tiles
    found = logits.reshape(water.shape) > 0
    figure = Figure(figsize=(6.4, 7), layout="constrained")
    figure.suptitle("Strips of the Earth that were never seen\nblue: water found, red: wrong")
    panels = figure.subplots(1, 2 * len(TEST_STRIPS))
    for number, (title, (begin, end)) in enumerate(TEST_STRIPS.items()):
        columns = slice(number * (end - begin), (number + 1) * (end - begin))
        picture, is_water, is_found = (_stitched(part[columns]) for part in (earth, water, found))
        overlay = picture * 0.5 + np.where(is_found, [0, 60, 120], [90, 90, 40])
        overlay = np.where(is_found != is_water, [230, 0, 0], overlay)
        for axes, image in zip(panels[2 * number :], (picture, overlay), strict=False):
            axes.imshow(image.astype("uint8"))
            axes.set(xticks=[], yticks=[], title=title)
            axes.title.set_fontsize(9)
    return figure


def _stitched(tiles: Any) -> Any:
    columns, rows, _, _, channels = tiles.shape
    return tiles.transpose(1, 2, 0, 3, 4).reshape(rows * TILE, columns * TILE, channels)


def experiment(*, quick: bool = False) -> lw.Experiment:
    """Return the experiment: 40 epochs; quick: 6, on some of the tiles."""
    data = load()
    if quick:
        few = {"train": np.s_[::3, 4:12], "validation": np.s_[::2, 4:8], "test": np.s_[:, 4:8]}
        data = {name: tuple(part[few[name]] for part in tiles) for name, tiles in data.items()}
    test = pipeline(data["test"], training=False)

    def conclude(trainer: lw.Trainer, run_dir: str | None) -> dict[str, float]:
        scores = trainer.evaluate(test)
        figures.save(draw(data["test"], trainer.predict(test)), run_dir, "overlay")
        print("test: " + ", ".join(f"{name} {value:.4f}" for name, value in scores.items()))
        return scores

    return lw.Experiment(
        make_task,
        fit={
            "x": pipeline(data["train"], training=True),
            "validation_data": pipeline(data["validation"], training=False),
            "epochs": 6 if quick else 40,
            "save_every": "1 epoch",
        },
        test=(test,),
        conclude=conclude,
    )
