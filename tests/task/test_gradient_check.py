"""The tape against central differences, on figures that are known."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import loopwright as lw


def f(w1: Any, w2: Any) -> Any:
    return 3 * w1**2 + 2 * w1 * w2


def f2(w1: Any, w2: Any) -> Any:
    return 3 * w1**2 + tf.stop_gradient(2 * w1 * w2)


def tapes(report: Any) -> list[Any]:
    return [None if v.tape is None else v.tape.tolist() for v in report.variables]


def test_36_and_10_by_the_tape_and_by_differences():
    report = lw.check_gradients(f, [5.0, 3.0])
    assert tapes(report) == [[36.0], [10.0]]
    assert [v.numeric[0] for v in report.variables] == pytest.approx([36.0, 10.0], rel=1e-9)
    assert [v.name for v in report.variables] == ["w1", "w2"]
    assert (report.dtype, report.without_gradient) == ("float64", ())
    assert report.worst.relative_error < 1e-9


def test_30_and_none_behind_a_stopped_gradient_are_named():
    report = lw.check_gradients(f2, [tf.Variable(5.0), tf.Variable(3.0)])
    assert tapes(report) == [[30.0], None]
    assert report.without_gradient == ("w2",)
    errors = {v.name: v.relative_error for v in report.variables}
    assert errors == pytest.approx({"w1": 6 / 36, "w2": 1.0})
    assert str(report) == "worst relative error 1.0e+00 in w2, in float64; no gradient: w2"


def test_variables_that_the_function_reads_itself_are_put_back():
    w1, w2 = tf.Variable(5.0, name="w1"), keras.Variable(3.0, name="w2")
    report = lw.check_gradients(lambda: f(w1, w2), [w1, w2])
    assert tapes(report) == [[36.0], [10.0]]
    assert [v.name for v in report.variables] == ["w1", "w2"]
    assert report.dtype == "float32"
    assert report.worst.relative_error < 1e-3
    assert (w1.numpy(), w2.numpy()) == (5.0, 3.0)


def test_variables_are_put_back_when_the_function_fails():
    w, calls = tf.Variable(5.0), []

    def fails() -> Any:
        calls.append(1)
        if len(calls) == 4:
            raise RuntimeError("in the middle")
        return w * 2

    with pytest.raises(RuntimeError, match="in the middle"):
        lw.check_gradients(fails, [w])
    assert w.numpy() == 5.0


def test_a_model_in_float32_is_right_to_three_digits():
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)]
    )
    x = np.random.default_rng(0).normal(size=(5, 3)).astype("float32")
    before = model.get_weights()
    report = lw.check_gradients(lambda: model(x), model.trainable_variables)
    assert report.worst.relative_error < 5e-3
    assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))


def test_a_function_that_is_float32_inside_is_checked_in_float32():
    constant = tf.constant([1.0, 2.0])
    report = lw.check_gradients(lambda w: constant * w**2, [np.array([3.0, -1.0], "float32")])
    assert report.dtype == "float32"
    assert report.worst.relative_error < 1e-3


@tf.custom_gradient
def wrong_in_one_place(z: tf.Tensor) -> Any:
    def gradient(upstream: Any) -> Any:
        return upstream * 2 * z * tf.constant([1.0, 1.01, 1.0], z.dtype)

    return z * z, gradient


def test_a_wrong_gradient_of_ones_own_is_found():
    report = lw.check_gradients(wrong_in_one_place, [np.array([1.0, 2.0, 30.0])])
    assert report.worst.relative_error == pytest.approx(0.01, rel=0.05)
    assert report.worst.name == "z"


def test_mistakes_that_add_up_to_nothing_are_found():
    @tf.custom_gradient
    def swapped(z: tf.Tensor) -> Any:
        return z * 1.0, lambda upstream: upstream[::-1]

    assert lw.check_gradients(swapped, [np.array([1.0, 2.0])]).worst.relative_error > 0.1


def test_a_gradient_that_is_not_a_number_is_infinitely_wrong():
    report = lw.check_gradients(lambda z: tf.math.log(tf.exp(z) + 1), [1000.0])
    assert report.worst.relative_error == np.inf


def test_rows_of_an_embedding_are_compared_as_a_table():
    table = tf.Variable(np.random.default_rng(0).normal(size=(4, 2)), dtype=tf.float64)
    report = lw.check_gradients(lambda: tf.gather(table, [1, 1, 3]) ** 2, [table])
    assert report.dtype == "float64"
    assert report.worst.relative_error < 1e-6


def test_of_a_large_variable_some_elements_are_tried():
    calls = []

    def counted(w: Any) -> Any:
        calls.append(1)
        return w**2

    report = lw.check_gradients(counted, [np.arange(1.0, 1001.0)], most_elements=10)
    assert len(report.variables[0].numeric) == 10
    assert report.worst.relative_error < 1e-8
    assert len(calls) == 2 * 10 + 3


def test_a_function_that_draws_is_refused():
    seed = keras.random.SeedGenerator(0)
    with pytest.raises(lw.StepError, match="different value when it is called again"):
        lw.check_gradients(lambda w: w * keras.random.normal((), seed=seed), [tf.constant(1.0)])


def test_nothing_to_check_is_refused():
    with pytest.raises(lw.ConfigurationError, match="Nothing to check"):
        lw.check_gradients(f, [])
