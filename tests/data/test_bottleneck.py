"""What makes data slow: the part of it that is named, and what is advised."""

import functools
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import loopwright as lw
from loopwright.data.adapter import as_data
from loopwright.data.source import Epochs


def bottleneck(given: Any, *, slower: bool = True) -> str:
    """The cause for data that takes longer than the step, or shorter."""
    data = as_data(given)
    feed = data.training(Epochs(shuffle=False))
    return feed.bottleneck(slower)


def numbers() -> tf.data.Dataset:
    return tf.data.Dataset.range(16).batch(2)


def plain(n: Any) -> Any:
    return n + 1


def in_python(n: Any) -> Any:
    return tf.ensure_shape(tf.numpy_function(plain, [n], tf.int64), (None,))


def line_of(function: Any) -> int:
    return function.__code__.co_firstlineno


def unprefetched(dataset: tf.data.Dataset) -> tf.data.Dataset:
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return dataset.with_options(options)


def test_python_is_named_before_a_map_that_is_not_parallel():
    told = bottleneck(numbers().map(in_python).map(plain))
    at = f"test_bottleneck.py:{line_of(in_python)}"
    assert told.startswith(f"map(in_python) at {at} runs Python (tf.numpy_function)"), told


def test_python_is_named_also_in_a_parallel_map_and_in_a_filter():
    parallel = numbers().map(in_python, num_parallel_calls=tf.data.AUTOTUNE)
    assert "map(in_python)" in bottleneck(parallel)
    filtered = numbers().filter(lambda n: tf.reduce_all(in_python(n) > 0))
    assert bottleneck(filtered).startswith("filter() at test_bottleneck.py:")


def test_a_lambda_and_a_partial_are_named_by_their_line():
    by_lambda = bottleneck(numbers().map(lambda n: n + 1))
    assert by_lambda.startswith("map() at test_bottleneck.py:")
    assert ".map(..., num_parallel_calls=tf.data.AUTOTUNE)" in by_lambda
    by_partial = bottleneck(numbers().map(functools.partial(plain)))
    assert by_partial.startswith(f"map(plain) at test_bottleneck.py:{line_of(plain)}")


def test_a_parallel_pipeline_that_tensorflow_prefetches_has_no_known_cause():
    assert bottleneck(numbers().map(plain, num_parallel_calls=tf.data.AUTOTUNE)) == ""


def test_a_missing_prefetch_is_named_first_where_it_would_hide_the_wait():
    dataset = unprefetched(numbers().map(plain))
    assert ".prefetch(tf.data.AUTOTUNE)" in bottleneck(dataset, slower=False)
    assert "num_parallel_calls" in bottleneck(dataset, slower=True)
    assert "num_parallel_calls" in bottleneck(dataset.prefetch(1), slower=False)


def test_what_lies_before_a_cache_is_not_blamed():
    told = bottleneck(numbers().map(in_python).cache())
    assert told == "the first epoch fills the cache; later epochs read from it"
    assert "map(plain)" in bottleneck(numbers().map(in_python).cache().map(plain))


def test_what_loopwright_adds_to_a_pipeline_is_not_blamed():
    replayed = lw.Stream(numbers().map(plain, num_parallel_calls=2).prefetch(1), replay=True)
    assert bottleneck(replayed) == ""


def test_a_generator_is_named_by_its_line():
    def make_batches() -> Iterator[Any]:
        yield np.ones((2, 1), "float32")

    at = f"test_bottleneck.py:{line_of(make_batches)}"
    assert bottleneck(make_batches()).startswith(f"make_batches at {at} makes one batch")
    signature = tf.TensorSpec((None, 1), tf.float32)
    from_generator = tf.data.Dataset.from_generator(make_batches, output_signature=signature)
    assert bottleneck(from_generator).startswith("Dataset.from_generator runs Python")


def test_a_pydataset_without_workers_is_advised_to_have_some():
    class Rows(keras.utils.PyDataset):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> Any:
            return np.ones((2, 1), "float32")

    assert "Rows(..., workers=4)" in bottleneck(Rows())
    told = bottleneck(Rows(workers=2))
    assert "with 2 workers" in told
    assert "workers=4" not in told


def test_a_map_over_arrays_is_named():
    def flipped(example: Any, seed: int) -> Any:
        return example

    arrays = lw.Arrays(np.ones((4, 1), "float32"), map=flipped)
    assert bottleneck(arrays).startswith("map(flipped) at test_bottleneck.py:")
