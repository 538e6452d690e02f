"""Counters inside Keras callbacks are where they are looked for."""

from pathlib import Path

import keras
from keras import callbacks as kc

from loopwright.compat import keras_internals


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
