"""Names in traced functions: they follow from the program, not from what was made before."""

from typing import Any

import keras
import pytest
import tensorflow as tf

from loopwright.compat import function_names
from loopwright.compat.function_names import named


def traced(function: Any) -> Any:
    return tf.function(function).get_concrete_function(tf.TensorSpec((4, 3)))


def test_functions_of_one_program_get_the_same_names_in_every_process():
    def name() -> str:
        return traced(lambda value: value + 1).name.decode().rpartition("_")[2]

    with named("a program of this test"):
        first = name()
    with named("a program of this test", 2):
        second = name()
    assert first.startswith("78835498470591")
    assert len({first, second, name()}) == 3


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


def test_equal_models_have_equal_functions_although_keras_numbers_their_layers():
    models = [keras.Sequential([keras.layers.Dense(2), keras.layers.Dense(1)]) for _ in range(2)]
    for model in models:
        model.build((None, 3))
    assert models[0].layers[0].name != models[1].layers[0].name
    contents = list[str]()
    for model in models:
        with named("equal models"):
            contents.append(function_names.content(traced(looping(model))))
    assert contents[0] == contents[1]


@pytest.mark.parametrize("factor", [3.0, 2.5])
def test_one_other_constant_is_another_content(factor: float):
    contents = list[str]()
    for each in (2.0, factor):
        with named(f"a constant, {factor} {each}"):
            contents.append(function_names.content(traced(lambda v, by=each: v * by)))
    assert contents[0] != contents[1]


def test_variables_that_a_trace_creates_keep_the_numbers_of_their_layers():
    keras.layers.Dense(1)
    layer = keras.layers.Dense(1)
    with named("lazy variables"), tf.Graph().as_default():
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
        with named("a custom gradient"):
            assert float(traced(gradient)(tf.ones((4, 3)))[0, 0]) == 2.0


def test_a_name_that_another_function_has_is_recognized():
    with named("a taken name"):
        kept = traced(lambda value: value * 2)
    with named("a taken name"), pytest.raises(tf.errors.InvalidArgumentError) as caught:
        traced(lambda value: value * 3)
    assert function_names.is_taken(caught.value)
    assert not function_names.is_taken(ValueError("duplicate function with name"))
    assert float(kept(tf.ones((4, 3)))[0, 0]) == 2.0
