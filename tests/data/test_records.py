"""Damaged files of records: the file is named, whatever the pipeline around it looks like."""

import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.data.recorder import PLANS

import loopwright as lw
from loopwright.compat import tensorflow_internals
from loopwright.data import stream

RECORD_BYTES = 8 + 4 + 12 + 4


def write(path: Path, count: int = 20, compression: str = "") -> str:
    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for number in range(count):
            writer.write(np.full(3, number, "float32").tobytes())
    return str(path)


def flip(path: str, byte: int) -> None:
    content = bytearray(Path(path).read_bytes())
    content[byte] ^= 1
    Path(path).write_bytes(content)


def parse(record: Any) -> tuple[Any, Any]:
    x = tf.ensure_shape(tf.io.decode_raw(record, tf.float32), (3,)) / 20
    return x, x[:1]


def linear() -> lw.Trainer:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    return lw.Trainer(lw.Supervised(model, "mse", "sgd"), plan="graph")


def refusal(act: Callable[[], Any]) -> str:
    """The message of the refusal, which stands alone: no stack of TensorFlow before it."""
    with pytest.raises(lw.DataError, match="A record of the data is damaged") as error:
        act()
    shown = "".join(traceback.format_exception(error.value))
    assert "DataLossError" not in shown
    return str(error.value)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Three files of equal records; of the second, one is damaged."""
    names = [write(tmp_path / f"{name}.tfrecord") for name in "abc"]
    flip(names[1], 5 * RECORD_BYTES + 14)
    return names


@pytest.mark.parametrize("plan", PLANS)
def test_the_file_and_the_byte_are_named_with_what_to_do(files: list[str], plan: str):
    trainer = linear()
    dataset = tf.data.TFRecordDataset(files).map(parse).batch(2)
    told = refusal(lambda: lw.Trainer(trainer.task, plan=plan).fit(dataset, verbose=0))
    byte = 5 * RECORD_BYTES + 12
    assert f"received: corrupted record at {byte} in {files[1]}\n" in told
    assert "create the file again" in told
    assert "skips the rest of the file" in told


def test_it_is_named_in_validation_evaluation_and_prediction_too(files: list[str]):
    trainer, dataset = linear(), tf.data.TFRecordDataset(files).map(parse).batch(2)
    x = np.ones((4, 3), "float32")
    for act in (
        lambda: trainer.fit(x, x[:, :1], validation_data=dataset, verbose=0),
        lambda: trainer.evaluate(dataset),
        lambda: trainer.predict(dataset),
    ):
        assert files[1] in refusal(act)


def interleaved(names: list[str], **options: Any) -> Any:
    whole = tf.data.Dataset.from_tensor_slices(names).shuffle(9, seed=1)
    return whole.interleave(tf.data.TFRecordDataset, cycle_length=2, **options)


def listed(names: list[str]) -> Any:
    pattern = str(Path(names[0]).parent / "*.tfrecord")
    return tf.data.TFRecordDataset(
        tf.data.Dataset.list_files(pattern, shuffle=False), num_parallel_reads=2
    )


@pytest.mark.parametrize("make", [interleaved, listed])
def test_it_is_found_through_interleaved_and_listed_files(
    files: list[str], make: Callable[[list[str]], Any]
):
    told = refusal(lambda: linear().fit(make(files).map(parse).batch(2).prefetch(1), verbose=0))
    assert files[1] in told
    assert not [name for name in (files[0], files[2]) if name in told]


def test_a_file_that_was_cut_is_named_and_one_that_only_ends_earlier_is_not(tmp_path: Path):
    short, cut = write(tmp_path / "short", 4), write(tmp_path / "cut")
    Path(cut).write_bytes(Path(cut).read_bytes()[:-7])
    dataset = tf.data.TFRecordDataset([short, cut]).map(parse).batch(2)
    told = refusal(lambda: linear().fit(dataset, verbose=0))
    assert f"truncated record at {19 * RECORD_BYTES} in {cut}\n" in told


def test_of_two_damaged_files_the_one_that_was_read_is_named(files: list[str]):
    flip(files[2], 3 * RECORD_BYTES + 1)
    told = refusal(lambda: linear().fit(tf.data.TFRecordDataset(files[::-1]).map(parse).batch(2)))
    assert f"at {3 * RECORD_BYTES} in {files[2]}\n" in told
    assert files[1] not in told


def test_of_compressed_files_it_is_only_said_which_they_are(tmp_path: Path):
    names = [write(tmp_path / name, compression="GZIP") for name in "ab"]
    flip(names[1], -10)
    dataset = tf.data.TFRecordDataset(names, compression_type="GZIP").map(parse).batch(2)
    told = refusal(lambda: linear().fit(dataset, verbose=0))
    assert f"in one of 2 files: {names[0]}, {names[1]}" in told
    assert "inflate() failed" in told


def test_a_file_that_the_pipeline_makes_the_name_of_is_not_guessed(files: list[str]):
    parent = str(Path(files[1]).parent)
    numbers = tf.data.Dataset.from_tensors("b")
    dataset = numbers.flat_map(lambda n: tf.data.TFRecordDataset(parent + "/" + n + ".tfrecord"))
    told = refusal(lambda: linear().fit(dataset.map(parse).batch(2), verbose=0))
    assert "in a file whose name is not visible in the pipeline" in told


def test_what_is_advised_goes_on_without_the_rest_of_the_file(files: list[str]):
    dataset = tf.data.TFRecordDataset(files).ignore_errors(log_warning=True)
    assert sum(1 for _ in dataset) == 20 + 5 + 20


READING_AHEAD: list[tuple[int, Callable[[list[str]], Any]]] = [
    (1, lambda names: tf.data.TFRecordDataset(names).prefetch(100)),
    (12, lambda names: tf.data.TFRecordDataset(names).map(parse).batch(2)),
    (20, lambda names: tf.data.TFRecordDataset(names).map(parse, 8, deterministic=True)),
    (6, lambda names: interleaved(names, num_parallel_calls=2, deterministic=True)),
]


@pytest.mark.parametrize(("read", "make"), READING_AHEAD)
def test_a_failure_that_was_read_ahead_is_seen_in_the_state_of_an_iterator(
    files: list[str], read: int, make: Callable[[list[str]], Any]
):
    def opened(names: list[str]) -> Any:
        return iter(stream.with_exact_state(make(names).repeat()))  # as a run opens it

    whole, damaged = opened([files[0], files[2]]), opened(files[:2])
    for _ in range(read):
        next(whole)
        next(damaged)
    while not tensorflow_internals.holds_failure(tensorflow_internals.iterator_state(damaged)):
        time.sleep(0.01)
    assert not tensorflow_internals.holds_failure(tensorflow_internals.iterator_state(whole))


@pytest.mark.parametrize("replay", [False, True])
def test_a_run_whose_file_was_repaired_resumes_with_the_same_bits(
    files: list[str], replay: bool, tmp_path: Path
):
    def fit(run_dir: Path | None) -> list[Any]:
        keras.utils.set_random_seed(0)
        task = linear().task
        trainer = lw.Trainer(task, run_dir=run_dir, plan="graph")
        dataset = tf.data.TFRecordDataset(files).map(parse).batch(2)
        data = lw.Stream(dataset, replay=replay)
        trainer.fit(data, epochs=2, save_every="3 steps", verbose=0)
        return task.model.get_weights()

    run_dir = tmp_path / "run"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*were set aside")
        assert files[1] in refusal(lambda: fit(run_dir))
    assert list((tmp_path / "run/checkpoints").glob("step-*"))
    write(Path(files[1]))
    assert all(map(np.array_equal, fit(tmp_path / "run"), fit(None)))
