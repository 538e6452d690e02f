"""Nothing is divided or summed over replicas twice, or by nobody."""

from typing import Any

import keras
import pytest
import tensorflow as tf
from tests.compat.keras_parts import one_variable
from tests.mirrored import mirrored

from loopwright.compat import keras_optimizers
from loopwright.errors import StepError

SGD = keras.optimizers.SGD
Adam = keras.optimizers.Adam
LossScaleOptimizer = keras.optimizers.LossScaleOptimizer


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
