"""Compiled models are built before they train."""

import keras
import numpy as np
import tensorflow as tf

from loopwright.compat import keras_internals
from loopwright.task.keras_model import CompiledModel


def test_a_compiled_model_is_built_with_its_optimizer_and_metrics_and_nothing_is_trained():
    model = keras.Sequential([keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile("adam", "mse", metrics=["mae"])

    keras_internals.build_compiled_model(
        CompiledModel(model), (tf.TensorSpec((None, 3)), tf.TensorSpec((None, 1)))
    )

    assert model.built
    assert model.optimizer.built
    assert len(model.optimizer.variables) == 6  # iterations, rate, two moments of kernel and bias
    assert (
        "mean_absolute_error" in model.get_metrics_result() or "mae" in model.get_metrics_result()
    )
    np.testing.assert_array_equal(model.get_weights()[0], np.ones((3, 1)))
    assert int(model.optimizer.iterations.numpy()) == 0


def test_a_loss_tells_the_arguments_of_its_function():
    assert keras_internals.loss_arguments(keras.losses.Huber(0.25)) == {"delta": 0.25}


def test_metrics_that_are_updated_in_a_scope_are_seen_and_left_as_they_were():
    called, updated, idle = (keras.metrics.Mean(name=name) for name in ("a", "b", "c"))

    with keras_internals.watching_updates([called, updated, idle]) as seen:
        called(1.0)
        updated.update_state(3.0)
        idle.result()

    assert seen == {called, updated}
    assert float(updated.result()) == 3.0
    assert not any("update_state" in vars(metric) for metric in (called, updated, idle))
