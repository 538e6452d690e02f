"""Which layers and losses a step calls, and asks for their losses."""

import keras
import tensorflow as tf

from loopwright.compat import keras_internals, tensorflow_internals


def test_a_layer_asked_for_its_losses_is_noted_with_all_it_holds():
    first, second = (keras.layers.Dense(1, kernel_regularizer="l2") for _ in range(2))
    model, other = keras.Sequential([first, second]), keras.layers.Dense(1)
    model.build((None, 1))

    with keras_internals.watching_losses() as was_asked:
        assert not was_asked(model)
        assert len(second.losses) == 1
        assert [was_asked(layer) for layer in (model, first, second)] == [False, False, True]
        assert len(model.losses) == 2
        assert [was_asked(layer) for layer in (model, first, other)] == [True, True, False]


def test_outer_calls_of_layers_and_losses_are_noted_with_what_they_were_given():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    x = tf.ones((2, 1))
    with keras_internals.watching_calls() as called:
        y = model(x, training=True)
        model(x)
        keras.losses.MeanSquaredError()(x, y)
        keras.losses.mean_absolute_error(x, y)

    assert called.layers == [(model, True), (model, None)]
    assert [each.name for each in called.losses] == ["MeanSquaredError", "mean_absolute_error"]
    assert [each.function for each in called.losses] == [
        "mean_squared_error",
        "mean_absolute_error",
    ]
    assert all(each.labels is x and each.predictions is y for each in called.losses)


def test_updates_of_metrics_are_noted_with_the_function_behind_them():
    x, y = tf.ones((2, 1)), tf.zeros((2, 1))
    with keras_internals.watching_calls() as called:
        keras.metrics.BinaryAccuracy(threshold=0.3).update_state(x, y)
        keras.metrics.Mean().update_state(x)

    (noted,) = called.metrics
    assert (noted.name, noted.function) == ("BinaryAccuracy", "binary_accuracy")
    assert noted.settings == {"threshold": 0.3}


def test_gradients_of_a_tape_are_noted_with_their_targets():
    weight = tf.Variable(2.0)
    with tensorflow_internals.watching_tapes() as seen, tf.GradientTape() as tape:
        loss = 3.0 * weight
        assert float(tape.gradient(loss, weight)) == 3.0

    ((target, source),) = seen
    assert target is loss
    assert source is weight
