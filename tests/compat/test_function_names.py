"""Names in traced functions: they follow from the program, not from what was made before."""

from typing import Any

import keras
import tensorflow as tf

from loopwright.compat.function_names import named, trace_by_name


def traced(function: Any) -> Any:
    return tf.function(function).get_concrete_function(tf.TensorSpec((4, 3)))


def looping(model: Any) -> Any:
    """A loop, whose body captures the variables of the model, as `fit` traces one."""

    def loop(value: tf.Tensor) -> Any:
        total = tf.reduce_sum(value)
        return tf.while_loop(
            lambda index, _: index < 3,
            lambda index, total: (index + 1, total + tf.reduce_sum(model(value))),
            (tf.constant(0), total),
        )

    return loop


def test_equal_models_have_one_name_although_keras_numbers_their_layers():
    models = [keras.Sequential([keras.layers.Dense(2), keras.layers.Dense(1)]) for _ in range(2)]
    for model in models:
        model.build((None, 3))
    assert models[0].layers[0].name != models[1].layers[0].name
    first, second = (
        trace_by_name("equal models", lambda model=model: traced(looping(model)), is_shared=True)
        for model in models
    )
    assert first.name == second.name


def test_a_function_with_another_constant_gets_another_name_while_the_first_is_in_use():
    first, second = (
        trace_by_name("a constant", lambda by=by: traced(lambda v: v * by), is_shared=True)
        for by in (2.0, 3.0)
    )
    assert first.name != second.name
    assert [float(function(tf.ones((4, 3)))[0, 0]) for function in (first, second)] == [2.0, 3.0]


def test_variables_that_a_trace_creates_keep_the_numbers_of_their_layers():
    keras.layers.Dense(1)
    layer = keras.layers.Dense(1)
    with named("lazy variables", 0), tf.Graph().as_default():
        layer(tf.zeros((2, 3)))
    assert layer.kernel.path.startswith(layer.name)


def test_a_custom_gradient_can_be_traced_again_under_its_name():
    @tf.custom_gradient
    def doubled(value: tf.Tensor) -> Any:
        return value * 2, lambda upstream: upstream * 2

    def gradient(value: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(value)
            result = doubled(value)
        return tape.gradient(result, value)

    for _ in range(2):
        with named("a custom gradient", 0):
            assert float(traced(gradient)(tf.ones((4, 3)))[0, 0]) == 2.0
