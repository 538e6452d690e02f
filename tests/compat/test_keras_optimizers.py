"""Optimizers and losses of Keras: accumulation, rates, and what replicas sum and divide."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.mirrored import mirrored

from loopwright.compat import keras_optimizers, tensorflow_internals
from loopwright.errors import StepError
from loopwright.task.optimizers import with_rates

SGD = keras.optimizers.SGD
Adam = keras.optimizers.Adam
LossScaleOptimizer = keras.optimizers.LossScaleOptimizer


def one_variable(optimizer: Any) -> keras.Variable:
    """A variable in reach of the optimizer, which is built for it."""
    w = keras.Variable(0.0)
    optimizer.build([w])
    return w


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


# --- losses ---------------------------------------------------------------------------------------


def keras_losses() -> list[float]:
    """A loss object, and a compiled loss with a regulariser: 1 and 1 + 1 on one device."""
    loss = keras.losses.MeanSquaredError()
    ones = tf.ones((4, 1))
    dense = keras.layers.Dense(1, kernel_initializer="ones", kernel_regularizer="l2")
    model = keras.Sequential([keras.Input((100,)), dense])  # 100 x 0.01
    model.compile(loss=loss)
    both = model.compute_loss(x=None, y=tf.zeros_like(ones), y_pred=ones)
    return [float(loss(tf.zeros_like(ones), ones)), float(both)]


def test_keras_losses_weigh_as_on_one_device():
    with mirrored().scope():
        divided = keras_losses()
        with keras_optimizers.losses_as_for_one_device():
            whole = keras_losses()

    assert whole == pytest.approx([1.0, 2.0])
    assert divided == pytest.approx([0.5, 1.0])


# --- optimizers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [SGD, lambda rate: LossScaleOptimizer(SGD(rate), 1.0)])
def test_gradients_that_are_reduced_already_are_not_summed_again(make: Any):
    strategy = mirrored()
    with strategy.scope():
        optimizer = make(1.0)
        w = one_variable(optimizer)

    def update():
        optimizer.apply([tf.constant(1.0)], [w])

    with keras_optimizers.optimizers_reduce_nothing():
        strategy.run(update)
    assert float(w.numpy()) == -1.0

    strategy.run(update)
    assert float(w.numpy()) == -3.0  # by itself, Keras adds the two


@pytest.mark.parametrize("make", [SGD, Adam, lambda: LossScaleOptimizer(SGD())])
@pytest.mark.parametrize("method", ["apply", "apply_gradients"])
def test_a_plain_apply_is_refused_where_nobody_would_divide(make: Any, method: str):
    optimizer = make()
    w = one_variable(optimizer)
    gradient = tf.constant(1.0)

    def update() -> None:
        if method == "apply":
            optimizer.apply([gradient], [w])
        else:
            optimizer.apply_gradients([(gradient, w)])

    with keras_optimizers.plain_apply_refused() as reduced:
        with reduced():
            update()
        with pytest.raises(StepError) as caught:
            update()

    assert str(caught.value) == (
        f"The step calls {type(optimizer).__name__}.apply itself, with several replicas.\n"
        "  expected: self.minimize(...) or self.apply(...), which average over replicas\n"
        "  received: optimizer.apply or optimizer.apply_gradients\n"
        "  do: write self.apply(gradients, variables, optimizer)"
    )
    assert int(optimizer.iterations.numpy()) == 1


def test_two_strategies_in_one_process_do_not_meet_in_their_collectives():
    def summed(strategy: Any, size: int) -> Any:
        @tf.function
        def every() -> Any:
            return strategy.reduce("SUM", strategy.run(lambda: tf.ones([size])), axis=None)

        return every().numpy().tolist()

    one, other = (tensorflow_internals.mirrored_strategy(["CPU:0", "CPU:1"]) for _ in range(2))
    assert summed(one, 3) == [2.0] * 3
    assert summed(other, 5) == [2.0] * 5
    assert summed(one, 4) == [2.0] * 4
