"""A scratch leg trains in memory and leaves no trace."""

import functools
import random
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.insight.rehearsed import X, Y, bits, trainer

import loopwright as lw
from loopwright.fit.options import FitOptions
from loopwright.insight import scratch
from loopwright.loop.schedule import Every


def train_aside(trainer: lw.Trainer, *data: Any) -> int:
    sizes = {"batch_size": 16} if isinstance(data[0], np.ndarray) else {}
    options = FitOptions(*data, **sizes, until=Every(steps=7))
    request = scratch.request_aside(options, trainer._parts)
    with scratch.scratch_session(trainer._parts, request) as session:
        for _ in scratch.trained_events(session):
            pass
        return int(trainer.task.step_counter.numpy())


class Draws(lw.Supervised):  # pyright: ignore[reportGeneralTypeIssues]
    """Draws from every generator that a step of TensorFlow can draw from."""

    def train_step(self, batch: Any) -> Any:
        x, y = batch
        noise = keras.random.normal(tf.shape(x)) + tf.random.normal(tf.shape(x))
        noise += tf.random.get_global_generator().normal(tf.shape(x))
        return super().train_step((x + noise, y))

    def images(self) -> dict[str, Any]:
        return {"noise": tf.random.uniform((1, 2, 2, 1)) * keras.random.uniform(())}


class Augmented(keras.utils.PyDataset):
    def __init__(self) -> None:
        super().__init__()
        self.noise, self.epoch = np.random.default_rng(3), 0

    def __len__(self) -> int:
        return 3

    def on_epoch_begin(self) -> None:
        self.epoch += 1

    def __getitem__(self, index: int) -> Any:
        part = slice(16 * index, 16 * index + 16)
        more = np.random.normal(size=(16, 4)) * min(self.epoch, 2)
        noise = self.noise.normal(size=(16, 4)) + more
        return X[part] + noise.astype("float32"), Y[part]


def augmented_stream() -> tf.data.Dataset:
    noise = tf.random.Generator.from_seed(4)
    layer = keras.layers.GaussianNoise(0.5, seed=5)

    def augment(x: Any, y: Any) -> Any:
        seeded = tf.random.normal(tf.shape(x), seed=6)
        return layer(x, training=True) + noise.normal(tf.shape(x)) + seeded, y

    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(16).map(augment)


INSIGHTS: dict[str, Any] = {
    "fit alone": lambda one, data: None,
    "find_learning_rate": lambda one, data: one.find_learning_rate(data, steps=20),
    "profile": lambda one, data: one.profile(data, steps=3),
    "rehearse": lambda one, data: one.rehearse(data),
}


@functools.cache
def end_after(name: str, make_data: Any) -> tuple[Any, ...]:
    keras.utils.set_random_seed(0)
    tf.random.set_global_generator(tf.random.Generator.from_seed(1))
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    one, data = lw.Trainer(Draws(model, "mse", "sgd"), plan="graph"), make_data()
    INSIGHTS[name](one, data)
    one.fit(data, epochs=2, verbose=0)
    tensors = [tf.random.uniform(()), keras.random.uniform(())]
    tensors.append(tf.random.get_global_generator().uniform(()))
    return bits(one), random.random(), np.random.random(), [float(one) for one in tensors]


@pytest.mark.parametrize("make_data", [Augmented, augmented_stream])
@pytest.mark.parametrize("name", list(INSIGHTS)[1:])
def test_no_generator_of_the_process_or_of_the_data_is_consumed(name, make_data):
    assert end_after(name, make_data) == end_after("fit alone", make_data)


def test_data_that_can_be_read_only_once_is_refused_before_it_is_read():
    batches = iter([(X[:16], Y[:16])])
    one = trainer()
    with pytest.raises(lw.ConfigurationError, match="can be read only once"):
        train_aside(one, batches)
    assert len(list(batches)) == 1


def test_what_a_refused_generator_is_replaced_by_is_accepted_and_fit_takes_it_too():
    def batches() -> Any:
        yield X[:16], Y[:16]

    class Readable:
        def __iter__(self) -> Any:
            return batches()

    spec = (tf.TensorSpec((None, 4)), tf.TensorSpec((None, 1)))
    stream = tf.data.Dataset.from_generator(batches, output_signature=spec)
    for data in (Readable(), stream):
        one = trainer()
        assert train_aside(one, data) == 7
        assert one.fit(data, verbose=0).history["loss"]
    build = trainer().rehearse(stream).checks[0]
    assert "calls Python code, whose own state is not restored" in build.found
