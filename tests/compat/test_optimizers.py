"""Accumulating optimizers of Keras: one update, its accumulators, its counters."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.compat.keras_parts import one_variable

from loopwright.compat import keras_optimizers
from loopwright.task.optimizers import with_rates

SGD = keras.optimizers.SGD


def test_an_update_without_accumulation_is_made_at_once_and_counts_updates_not_calls():
    optimizer, other = SGD(1.0, gradient_accumulation_steps=3), SGD(1.0)
    w, v = one_variable(optimizer), one_variable(other)
    for _ in range(3):
        optimizer.apply([tf.constant(1.0)], [w])
        other.apply([tf.constant(1.0)], [v])
    assert float(w.numpy()) == -1.0
    assert int(keras_optimizers.update_counter(optimizer)) == 3

    with keras_optimizers.without_accumulation(optimizer):
        assert int(optimizer.iterations) == 1
        assert int(other.iterations.numpy()) == 3
        optimizer.apply([tf.constant(1.0)], [w])
    assert float(w.numpy()) == -2.0
    assert optimizer.gradient_accumulation_steps == 3


def test_accumulators_belong_to_the_variables_asked_for():
    optimizer = SGD(1.0, gradient_accumulation_steps=2)
    variables = [keras.Variable(np.zeros(n, "float32")) for n in (1, 2, 3)]
    optimizer.build(variables)
    optimizer.apply([tf.fill((n,), float(n)) for n in (1, 2, 3)], variables)

    third, first = keras_optimizers.accumulators(optimizer, [variables[2], variables[0]])

    assert isinstance(first, tf.Variable)
    np.testing.assert_array_equal(third, [3.0, 3.0, 3.0])
    np.testing.assert_array_equal(first, [1.0])


def test_a_learning_rate_is_a_number_or_what_was_given():
    schedule = keras.optimizers.schedules.CosineDecay(0.1, 10)
    assert keras_optimizers.learning_rate_of(SGD(schedule)) is schedule
    assert float(keras_optimizers.learning_rate_of(SGD(0.5)).numpy()) == 0.5


@pytest.mark.parametrize("given", [0.5, keras.optimizers.schedules.CosineDecay(0.5, 10)])
def test_a_rate_is_replaced_until_the_end_and_the_variables_stay(given):
    optimizer = keras.optimizers.LossScaleOptimizer(SGD(given))
    (inner,) = with_rates(optimizer)
    w = one_variable(inner)
    before, kept = inner.get_config(), list(inner.variables)

    with keras_optimizers.rate_replaced(inner, lambda: tf.constant(0.25)):
        inner.apply([tf.constant(1.0)], [w])

    assert float(w.numpy()) == -0.25
    assert inner.get_config() == before
    assert [id(v) for v in inner.variables] == [id(v) for v in kept]


def test_the_rates_of_a_multi_optimizer_are_those_inside():
    one, other = SGD(0.1), SGD(0.2)
    several = keras.optimizers.MultiOptimizer({"kernel": one, "bias": other})
    assert with_rates(several) == [one, other]
