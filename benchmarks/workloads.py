"""The workloads: models, losses, and data from seeded NumPy."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import loopwright as lw
from benchmarks import gan, models


@dataclass(frozen=True)
class Workload:
    """One workload, written three times: for Keras `fit`, for Loopwright, by hand."""

    key: str
    name: str
    keras_model: Callable[..., keras.Model]
    """Create a model compiled with the given options."""
    task: Callable[[], lw.Task]
    hand_step: Callable[[], Callable[..., Any]]
    """Create a step that takes the batch's parts and returns the loss; not yet a `tf.function`."""
    x: Any
    y: Any = None
    batch_size: int = 32
    is_pipeline: bool = False
    """Whether all contenders get a `tf.data` pipeline instead of arrays."""
    plans: tuple[str, ...] = ("graph", "xla", "fused")
    """The plans that work here."""
    epoch_steps: int | None = None
    """Epochs shorter than the data."""

    @property
    def steps_per_epoch(self) -> int:
        return self.epoch_steps or -(-len(self.x) // self.batch_size)

    def given(self) -> dict[str, Any]:
        """The arguments for both Keras' and Loopwright's `fit`."""
        shorter = {} if self.epoch_steps is None else {"steps_per_epoch": self.epoch_steps}
        if self.is_pipeline:
            return {"x": self.pipeline(), **shorter}
        return {"x": self.x, "y": self.y, "batch_size": self.batch_size, **shorter}

    def pipeline(self) -> tf.data.Dataset:
        """Return the data in a typical `tf.data` pipeline."""
        arrays = (self.x,) if self.y is None else (self.x, self.y)
        dataset = tf.data.Dataset.from_tensor_slices(arrays)
        dataset = dataset.shuffle(min(8192, len(self.x)), seed=0)
        return dataset.batch(self.batch_size).prefetch(tf.data.AUTOTUNE)


def mlp(rows: int = 8192, width: int = 64, epoch_steps: int | None = None) -> Workload:
    """Return an mlp whose step costs less than the Python around it."""
    return Workload(
        key="mlp",
        name=f"mlp 20-{width}-{width}-1, batch 32",
        **_supervised(lambda: models.mlp(width), "mse"),
        **_table(rows),
        epoch_steps=epoch_steps,
    )


def mlp_dropout() -> Workload:
    """Return the mlp with random numbers in every step."""
    return Workload(
        key="dropout",
        name="the mlp with dropout",
        **_supervised(lambda: models.mlp(64, dropout=0.2), "mse"),
        **_table(8192),
    )


def pipeline() -> Workload:
    """Return the mlp with a `tf.data` pipeline, which costs more than the step."""
    return Workload(
        key="pipeline",
        name="the mlp from tf.data",
        **_supervised(lambda: models.mlp(64), "mse"),
        **_table(8192),
        is_pipeline=True,
    )


def cnn() -> Workload:
    """Return a small CNN on 28x28 images, whose step dominates."""
    rng = np.random.default_rng(0)
    return Workload(
        key="cnn",
        name="cnn 28x28, batch 64",
        **_supervised(models.cnn, "sparse_categorical_crossentropy"),
        x=rng.normal(size=(2048, 28, 28, 1)).astype("float32"),
        y=rng.integers(0, 10, size=2048),
        batch_size=64,
        plans=("graph", "xla"),
    )


def unet() -> Workload:
    """Return a U-Net of three levels: images to masks."""
    rng = np.random.default_rng(0)
    images = rng.normal(size=(512, 64, 64, 1)).astype("float32")
    return Workload(
        key="unet",
        name="U-Net 64x64, batch 16",
        **_supervised(models.unet, keras.losses.BinaryCrossentropy(from_logits=True)),
        x=images,
        y=(images > 0).astype("float32"),
        batch_size=16,
        plans=("graph", "xla"),
    )


def lstm() -> Workload:
    """Return an LSTM: a loop within the step."""
    rng = np.random.default_rng(0)
    return Workload(
        key="lstm",
        name="LSTM 64x64, batch 32",
        **_supervised(models.lstm, "mse"),
        x=rng.normal(size=(1024, 64, 64)).astype("float32"),
        y=rng.normal(size=(1024, 1)).astype("float32"),
    )


def transformer() -> Workload:
    """Return a transformer of two blocks of width 64 that predicts the next of 256 tokens."""
    tokens = np.random.default_rng(0).integers(0, 256, size=(1024, 65)).astype("int32")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return Workload(
        key="transformer",
        name="transformer 2x64, batch 32",
        **_supervised(models.transformer, loss),
        x=tokens[:, :-1],
        y=tokens[:, 1:],
    )


def two_networks() -> Workload:
    """Return a GAN: two models, two optimizers, a custom step."""
    data = np.random.default_rng(0).random(size=(8192, gan.DATA_WIDTH)).astype("float32")
    return Workload(
        key="gan",
        name="GAN on 64 numbers, batch 32",
        keras_model=gan.keras_model,
        task=gan.task,
        hand_step=gan.hand_step,
        x=data,
    )


WORKLOADS: dict[str, Callable[[], Workload]] = {
    "cnn": cnn,
    "unet": unet,
    "lstm": lstm,
    "transformer": transformer,
    "mlp": mlp,
    "dropout": mlp_dropout,
    "pipeline": pipeline,
    "gan": two_networks,
}


def _table(rows: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "x": rng.normal(size=(rows, 20)).astype("float32"),
        "y": rng.normal(size=(rows, 1)).astype("float32"),
    }


def _supervised(make_model: Callable[[], keras.Model], loss: Any) -> dict[str, Any]:
    """Return the three ways to train a model on a loss with Adam."""

    def keras_model(**options: Any) -> keras.Model:
        model = make_model()
        model.compile("adam", loss, **options)
        return model

    def hand_step() -> Callable[..., Any]:
        model, optimizer = make_model(), keras.optimizers.Adam()
        loss_function = keras.losses.get(loss)

        def train_step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                value = tf.reduce_mean(loss_function(y, model(x, training=True)))
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(value, variables), variables, strict=True))
            return value

        return train_step

    return {
        "keras_model": keras_model,
        "task": lambda: lw.Supervised(make_model(), loss, "adam"),
        "hand_step": hand_step,
    }
