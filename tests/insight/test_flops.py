"""Floating-point operations of traced steps, compared with those counted by hand."""

import functools
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from benchmarks.workloads import by_hand

from loopwright.insight import flops


def test_dense_layers_are_counted_forwards_and_backwards():
    def model() -> keras.Model:
        return keras.Sequential([keras.Input((20,)), keras.layers.Dense(64), keras.layers.Dense(1)])

    batch = [np.zeros((32, 20), "float32"), np.zeros((32, 1), "float32")]
    # Each layer: the product, the gradient of its weights, and that of its input if needed.
    by_pen = 2 * 32 * (2 * 20 * 64 + 3 * 64 * 1)
    assert flops.of_step(by_hand(model, "mse")(), batch).flops == by_pen


def test_convolutions_are_counted_forwards_and_backwards():
    def model() -> keras.Model:
        first, second = (keras.layers.Conv2D(c, 3, padding="same") for c in (4, 5))
        return keras.Sequential([keras.Input((8, 8, 3)), first, second])

    batch = [np.zeros((2, 8, 8, 3), "float32"), np.zeros((2, 8, 8, 5), "float32")]
    positions = 2 * 8 * 8
    by_pen = 2 * positions * 9 * (2 * 3 * 4 + 3 * 4 * 5)
    assert flops.of_step(by_hand(model, "mse")(), batch).flops == by_pen


def test_products_in_batches_and_sums_over_indices_are_counted():
    def step(x: Any) -> Any:
        doubled = tf.matmul(x, x, transpose_a=True)
        return tf.reduce_sum(doubled) + tf.reduce_sum(tf.einsum("bij,bkj->bik", x, x))

    batch = [np.zeros((3, 5, 7), "float32")]
    assert flops.of_step(step, batch).flops == 2 * 3 * 7 * 5 * 7 + 2 * 3 * 5 * 5 * 7


def test_a_loop_of_unknown_length_is_named_and_not_counted_as_one_turn():
    def step(x: Any) -> Any:
        return tf.while_loop(lambda x: tf.reduce_sum(x) < 1, lambda x: x @ x, [x])[0]

    counted = flops.of_step(step, [np.zeros((2, 2), "float32")])
    assert counted.flops == 0
    assert counted.uncounted == ("while",)


def test_a_loop_over_time_is_counted_as_often_as_it_runs():
    def model(unroll: bool) -> keras.Model:
        layer = keras.layers.LSTM(6, unroll=unroll, use_cudnn=False)
        return keras.Sequential([keras.Input((5, 3)), layer])

    batch = [np.zeros((2, 5, 3), "float32"), np.zeros((2, 6), "float32")]
    looped, unrolled = (
        flops.of_step(by_hand(functools.partial(model, unroll), "mse")(), batch)
        for unroll in (False, True)
    )
    assert not looped.uncounted
    # The gradient by the first state is computed in a loop, and dropped where it is unrolled.
    assert 1 <= looped.flops / unrolled.flops < 1.3


def test_a_size_that_is_left_open_is_named():
    @tf.function(input_signature=[tf.TensorSpec([None, 4])])
    def step(x: Any) -> Any:
        return tf.matmul(x, x, transpose_a=True)

    counted = flops.of_graph(step.get_concrete_function().graph)
    assert (counted.flops, counted.uncounted) == (0, ("MatMul",))


def test_the_larger_branch_of_a_condition_is_counted():
    def step(x: Any) -> Any:
        return tf.cond(tf.reduce_sum(x) > 0, lambda: x @ x @ x, lambda: x @ x)

    assert flops.of_step(step, [np.zeros((4, 4), "float32")]).flops == 2 * 2 * 4**3


def test_what_the_machine_reaches_is_a_positive_rate():
    ticks = iter(range(100))
    assert flops.of_machine(seconds=3, clock=lambda: next(ticks)) == 2 * 2048**3
