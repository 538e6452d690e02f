"""An activation that never overflows, and what is done to weights."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import loopwright as lw
from loopwright import components


@pytest.mark.parametrize("xla", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_softplus_and_its_gradient_are_finite_at_any_size(dtype: str, xla: bool):
    z = tf.constant([-1000.0, -20.0, 0.0, 20.0, 1000.0], dtype)

    @tf.function(jit_compile=xla)
    def both(z: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(z)
            value = components.softplus(z)
        return value, tape.gradient(value, z)

    value, gradient = both(z)
    assert value.dtype == gradient.dtype == dtype
    tolerance = {"float16": 1e-3, "float32": 1e-6, "float64": 1e-12}[dtype]
    exact = np.logaddexp(0.0, z.numpy().astype("float64"))
    np.testing.assert_allclose(value.numpy(), exact, rtol=tolerance, atol=tolerance)
    slope = [0.0, 1 / (1 + np.exp(20)), 0.5, 1 / (1 + np.exp(-20)), 1.0]
    np.testing.assert_allclose(gradient.numpy(), slope, rtol=tolerance, atol=tolerance)


def test_softplus_has_a_second_derivative():
    z = tf.constant(0.0)
    with tf.GradientTape() as outer:
        outer.watch(z)
        with tf.GradientTape() as inner:
            inner.watch(z)
            value = components.softplus(z)
        slope = inner.gradient(value, z)
    assert float(outer.gradient(slope, z)) == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("shape", "stddev"), [((300, 200), np.sqrt(2 / 500)), ((3, 3, 40, 60), np.sqrt(2 / 900))]
)
def test_glorot_numbers_have_the_spread_that_fans_ask_for(shape: Any, stddev: float):
    drawn = components.GlorotNormal(seed=1)(shape).numpy()
    assert drawn.shape == shape
    assert np.std(drawn) == pytest.approx(stddev, rel=0.02)
    assert np.mean(drawn) == pytest.approx(0.0, abs=3 * stddev / np.sqrt(drawn.size))
    # Not cut off at two deviations, as Keras' own are.
    assert np.max(np.abs(drawn)) > 3 * stddev


def test_a_seed_decides_the_numbers_and_none_leaves_them_to_the_random_seed_of_keras():
    def drawn(seed: int | None) -> Any:
        return components.GlorotNormal(seed)((4, 5)).numpy()

    np.testing.assert_array_equal(drawn(1), drawn(1))
    assert not np.array_equal(drawn(1), drawn(2))
    keras.utils.set_random_seed(7)
    first, second = drawn(None), drawn(None)
    assert not np.array_equal(first, second)
    keras.utils.set_random_seed(7)
    np.testing.assert_array_equal(drawn(None), first)


def test_l1_and_non_negative_weights_act_in_a_training():
    x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
    y = x @ np.array([[2.0], [-3.0], [0.0], [1.0]], "float32")
    dense = keras.layers.Dense(
        1,
        kernel_initializer=components.GlorotNormal(seed=0),
        kernel_regularizer=components.L1(0.5),
        kernel_constraint=components.NonNegative(),
    )
    task = lw.Supervised(keras.Sequential([keras.Input((4,)), dense]), "mse", "sgd")
    history = lw.Trainer(task, plan="graph").fit(x, y, epochs=40, batch_size=16, verbose=0).history
    kernel = dense.kernel.numpy()
    assert np.all(kernel >= 0)
    assert kernel[1] == 0
    # What is left of 2: the cost pulls all weights towards zero.
    assert 1.0 < kernel[0] < 1.9
    assert history["regularization_loss"][-1] == pytest.approx(
        0.5 * np.sum(np.abs(kernel)), rel=0.1
    )
