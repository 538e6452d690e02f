"""Which layers and losses a step calls, and asks for their losses."""

import keras
import tensorflow as tf

from loopwright import adaptations


def test_a_layer_asked_for_its_losses_is_noted_with_all_it_holds():
    first, second = (keras.layers.Dense(1, kernel_regularizer="l2") for _ in range(2))
    model, other = keras.Sequential([first, second]), keras.layers.Dense(1)
    model.build((None, 1))

    with adaptations.watching_losses() as was_asked:
        assert not was_asked(model)
        assert len(second.losses) == 1
        assert [was_asked(layer) for layer in (model, first, second)] == [False, False, True]
        assert len(model.losses) == 2
        assert [was_asked(layer) for layer in (model, first, other)] == [True, True, False]


def test_outer_calls_of_layers_and_losses_are_noted_with_what_they_were_given():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    x = tf.ones((2, 1))
    with adaptations.watching_calls() as called:
        y = model(x, training=True)
        model(x)
        keras.losses.MeanSquaredError()(x, y)
        keras.losses.mean_absolute_error(x, y)

    assert called.layers == [(model, True), (model, None)]
    assert [name for name, *_ in called.losses] == ["MeanSquaredError", "mean_absolute_error"]
    assert all(first is x and second is y for _, first, second in called.losses)
