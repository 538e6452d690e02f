"""Parts of Keras are where they are looked for: models, metrics, counters of callbacks."""

from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from keras import callbacks as kc

from loopwright.compat import keras_internals
from loopwright.task.keras_model import CompiledModel


def test_a_compiled_model_is_built_with_its_optimizer_and_metrics_and_nothing_is_trained():
    model = keras.Sequential([keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile("adam", "mse", metrics=["mae"])

    keras_internals.build_compiled_model(
        CompiledModel(model), (tf.TensorSpec((None, 3)), tf.TensorSpec((None, 1)))
    )

    assert model.built
    assert model.optimizer.built
    assert len(model.optimizer.variables) == 6  # iterations, rate, two moments of kernel and bias
    assert (
        "mean_absolute_error" in model.get_metrics_result() or "mae" in model.get_metrics_result()
    )
    np.testing.assert_array_equal(model.get_weights()[0], np.ones((3, 1)))
    assert int(model.optimizer.iterations.numpy()) == 0


def test_a_loss_tells_the_arguments_of_its_function():
    assert keras_internals.loss_arguments(keras.losses.Huber(0.25)) == {"delta": 0.25}


def test_metrics_that_are_updated_in_a_scope_are_seen_and_left_as_they_were():
    called, updated, idle = (keras.metrics.Mean(name=name) for name in ("a", "b", "c"))

    with keras_internals.watching_updates([called, updated, idle]) as seen:
        called(1.0)
        updated.update_state(3.0)
        idle.result()

    assert seen == {called, updated}
    assert float(updated.result()) == 3.0
    assert not any("update_state" in vars(metric) for metric in (called, updated, idle))


def test_a_callback_that_saves_by_steps_says_how_many_are_left(tmp_path: Path):
    save = kc.ModelCheckpoint(tmp_path / "never.keras", save_freq=3)
    backup = kc.BackupAndRestore(tmp_path / "backup", save_freq=3)
    for callback in (save, backup):
        left = []
        for batch in range(2):
            left.append(keras_internals.steps_to_save(callback))
            callback.on_train_batch_end(batch, {})
        assert [*left, keras_internals.steps_to_save(callback)] == [3, 2, 1]
    assert keras_internals.steps_to_save(kc.ModelCheckpoint(tmp_path / "by_epoch.keras")) is None


def test_tensorboard_says_which_batches_it_writes_and_profiles(tmp_path: Path):
    board = kc.TensorBoard(tmp_path, update_freq=2, profile_batch=(3, 4))
    board.set_model(keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]))
    board._start_trace = board._stop_trace = lambda: None
    board.on_train_begin()
    left, writes = [keras_internals.steps_to_profile(board)], []
    for batch in range(5):
        board.on_train_batch_begin(batch)
        writes.append(keras_internals.writes_batch(board))
        left.append(keras_internals.steps_to_profile(board))
    board.on_train_end()

    assert keras_internals.profiles(board)
    assert left == [2, 1, 2, 1, None, None]
    assert writes == [False, True, False, True, False]
    assert not keras_internals.profiles(kc.TensorBoard(tmp_path))


def test_tensorboard_counts_batches_of_which_it_writes_nothing(tmp_path: Path):
    board = kc.TensorBoard(tmp_path, update_freq=3)
    assert [keras_internals.count_batch(board) for _ in range(3)] == [True, True, False]
    assert board._global_train_batch == 2
