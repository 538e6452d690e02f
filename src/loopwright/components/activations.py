"""Activations."""

from typing import Any

import tensorflow as tf

from loopwright.components.registration import registered


@registered
def softplus(z: Any) -> Any:
    """log(1 + exp(z)) with a gradient of its own; neither overflows, at any size of `z`.

    >>> softplus([-1000.0, 1000.0]).numpy().tolist()
    [0.0, 1000.0]
    """
    return _softplus(tf.convert_to_tensor(z))


@tf.custom_gradient
def _softplus(z: tf.Tensor) -> Any:
    def gradient(upstream: Any) -> Any:
        return upstream * tf.sigmoid(z)

    return tf.maximum(z, 0) + tf.math.log1p(tf.exp(-tf.abs(z))), gradient
