"""The workloads in TensorFlow: each as Keras `fit`, as a task of Loopwright, by hand."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

import loopwright as lw
from benchmarks import data, gan, models


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
    ways = _supervised(lambda: models.mlp(width), "mse")
    return Workload(**vars(data.mlp(rows, width)), **ways, epoch_steps=epoch_steps)


def two_networks() -> Workload:
    """Return a GAN: two models, two optimizers, a custom step."""
    return Workload(
        **vars(data.two_networks()),
        keras_model=gan.keras_model,
        task=gan.task,
        hand_step=gan.hand_step,
    )


_SPECIAL: dict[str, dict[str, Any]] = {
    # XLA's convolutions inside a loop take many times as long.
    "cnn": {"plans": ("graph", "xla")},
    "unet": {"plans": ("graph", "xla")},
    "resnet": {"plans": ("graph", "xla")},
    "pipeline": {"is_pipeline": True},
}


def _workload(key: str) -> Workload:
    make_model, loss = models.SUPERVISED[key]
    special = _SPECIAL.get(key, {})
    return Workload(**vars(data.DATA[key]()), **_supervised(make_model, loss()), **special)


WORKLOADS: dict[str, Callable[[], Workload]] = {
    key: two_networks if key == "gan" else functools.partial(_workload, key)
    for key in data.DATA
    if key != "matmul"
}


def by_hand(make_model: Callable[[], keras.Model], loss: Any) -> Callable[[], Callable[..., Any]]:
    """Return what creates the step of a hand-written loop: a tape and Adam."""

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

    return hand_step


def _supervised(make_model: Callable[[], keras.Model], loss: Any) -> dict[str, Any]:
    """Return the three ways to train a model on a loss with Adam."""

    def keras_model(**options: Any) -> keras.Model:
        model = make_model()
        model.compile("adam", loss, **options)
        return model

    return {
        "keras_model": keras_model,
        "task": lambda: lw.Supervised(make_model(), loss, "adam"),
        "hand_step": by_hand(make_model, loss),
    }
