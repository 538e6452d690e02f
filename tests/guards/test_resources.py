"""Resources of a step: state that no checkpoint holds is refused by name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.guards.changed_step import Regression
from tests.guards.regression_step import X, Y, fit, refused
from tests.tasks import ByHand

# --- state that is no variable ------------------------------------------------------------------


class Held(Regression):
    """A task that holds something else than variables."""

    def __init__(self, held: Any, change: Callable[..., Any]):
        super().__init__(change)
        self.held = held


def queue() -> tf.queue.FIFOQueue:
    filled = tf.queue.FIFOQueue(100, tf.float32)
    filled.enqueue_many(np.linspace(0, 1, 50).astype("float32"))
    return filled


def dequeued(task, x, y):
    scale = task.held.dequeue()
    scale.set_shape(())
    return x * scale, y


def table() -> Any:
    return tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)


def counted(task, x, y):
    key = tf.constant(1, tf.int64)
    task.held.insert(key, task.held.lookup(key) + 1.0)
    return x * tf.reshape(task.held.lookup(key), ()), y


def dense_table() -> Any:
    return tf.lookup.experimental.DenseHashTable(
        tf.int64, tf.float32, 0.0, empty_key=-1, deleted_key=-2
    )


def iterator() -> Any:
    return iter(tf.data.Dataset.range(1000).map(lambda n: tf.cast(n, tf.float32)))


def advanced(task, x, y):
    return x * next(task.held), y


def in_a_branch(task, x, y):
    if tf.reduce_sum(x) > 1e9:
        y += task.held.dequeue()
    return x, y


def in_a_function(task, x, y):
    @tf.function
    def take(queue_ref):
        return tf.raw_ops.QueueDequeueV2(handle=queue_ref, component_types=[tf.float32])[0]

    return x, y + tf.reshape(take(task.held.queue_ref), ())


STATES = {
    "queue": (queue, dequeued, "QueueDequeueV2"),
    "table": (table, counted, "LookupTableFindV2, LookupTableInsertV2"),
    "dense table": (dense_table, counted, "LookupTableFindV2, LookupTableInsertV2"),
    "iterator": (iterator, advanced, "IteratorGetNext"),
    "branch": (queue, in_a_branch, "QueueDequeueV2"),
    "function": (queue, in_a_function, "QueueDequeueV2"),
}


@pytest.mark.parametrize("kind", STATES)
def test_a_run_directory_refuses_state_that_no_checkpoint_holds(kind: str, tmp_path: Path):
    make, change, used = STATES[kind]
    text = refused(Held(make(), change), run_dir=tmp_path / "run")
    assert text.startswith("Held.train_step uses a state that no checkpoint holds")
    assert f"received: a resource used by {used}" in text
    fit(Held(make(), change))  # without a run directory it trains


def test_a_table_made_in_the_step_is_refused(tmp_path: Path):
    def own(task, x, y):
        made, key = table(), tf.constant(1, tf.int64)
        made.insert(key, made.lookup(key) + 1.0)
        return x, y + tf.reshape(made.lookup(key), ())

    text = refused(Regression(own), run_dir=tmp_path / "run")
    assert "MutableHashTableV2, created inside the step (" in text


def test_tables_that_are_only_read_and_summary_writers_are_no_state_of_the_training(tmp_path: Path):
    keys, values = tf.range(4, dtype=tf.int64), tf.linspace(0.0, 1.0, 4)
    static = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, values), 0.0)
    filled = table()
    filled.insert(keys, values)
    writer = tf.summary.create_file_writer(str(tmp_path / "summaries"))

    def read(task, x, y):
        with writer.as_default(step=task.step):
            tf.summary.scalar("mean", tf.reduce_mean(x))
        key = tf.cast(x[:1, 0] > 0, tf.int64)
        array = tf.TensorArray(tf.float32, 1).write(0, static.lookup(key))
        return x * tf.reshape(array.read(0) + filled.lookup(key), ()), y

    fit(Held([static, filled, writer], read), run_dir=tmp_path / "run")


def test_a_keras_lookup_layer_trains_in_a_run_directory(tmp_path: Path):
    words = np.array(["a", "b", "c", "a"] * 4)

    class Words(ByHand):
        def __init__(self):
            super().__init__(
                keras.Sequential([keras.layers.Embedding(4, 2), keras.layers.Dense(1)])
            )
            self.lookup = keras.layers.StringLookup(vocabulary=["a", "b", "c"])

        def loss_of(self, x, y):
            return super().loss_of(self.lookup(x), y)

    fit(Words(), words, Y, run_dir=tmp_path / "run")


class Scored(Held):
    def test_step(self, batch):
        x, y = self.change(self, *batch)
        return super().test_step((x, y))

    def train_step(self, batch):
        change, self.change = self.change, lambda task, x, y: (x, y)
        try:
            return super().train_step(batch)
        finally:
            self.change = change


def test_a_test_step_with_state_of_its_own_is_refused_in_a_run_directory(tmp_path: Path):
    text = refused(Scored(queue(), dequeued), run_dir=tmp_path / "run", validation_data=(X, Y))
    assert text.startswith("Scored.test_step uses a state that no checkpoint holds")
    fit(Scored(queue(), dequeued), validation_data=(X, Y))


@pytest.mark.parametrize(
    ("draw", "named"),
    [
        (lambda: keras.random.normal((4,)), "uses variables that the task does not hold"),
        (lambda: tf.random.normal((4,)), "draws random numbers that cannot be repeated"),
    ],
    ids=["keras", "tf"],
)
def test_a_test_step_that_cannot_be_repeated_is_refused_in_a_run_directory(
    draw: Any, named: str, tmp_path: Path
):
    task = Scored(None, lambda task, x, y: (x + draw(), y))
    text = refused(task, run_dir=tmp_path / "run", validation_data=(X, Y))
    assert text.startswith("Scored.test_step")
    assert named in text


def test_validation_that_would_take_from_the_queue_of_the_training_is_refused():
    class Both(Held):
        def test_step(self, batch):
            x, y = self.change(self, *batch)
            return super().test_step((x, y))

    task = Both(queue(), dequeued)
    text = refused(task, validation_data=(X, Y))
    assert "validation would change the training" in text


def test_a_queue_cannot_be_put_back_when_a_step_is_skipped():
    text = refused(Held(queue(), dequeued), on_nan="skip")
    assert "a skipped step cannot restore" in text
