"""Layers, from one without weights to one made of others."""

import math
import random
from collections.abc import Sequence
from typing import Any, final

import keras
import tensorflow as tf

from loopwright.compat.keras_internals import registered
from loopwright.errors import ConfigurationError, message


@final
@registered
class Exponential(keras.layers.Layer):
    """exp(x): a layer without weights, for targets that are positive and span magnitudes.

    >>> Exponential()(keras.ops.array([0.0])).numpy().tolist()
    [1.0]
    """

    def call(self, inputs: Any) -> Any:
        """exp(x)."""
        return keras.ops.exp(inputs)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """As it came."""
        return input_shape


@final
@registered
class Dense(keras.layers.Layer):
    """x @ kernel + bias: a layer with weights, made when the width of its input is known.

    >>> Dense(3, activation="relu")(keras.ops.ones((2, 5))).shape
    TensorShape([2, 3])
    """

    def __init__(
        self,
        units: int,
        activation: Any = None,
        kernel_initializer: Any = "glorot_normal",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.units = units
        self.activation = keras.activations.get(activation)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.kernel: Any = None
        self.bias: Any = None

    def build(self, input_shape: Any) -> None:
        """Makes kernel and bias."""
        shape = (input_shape[-1], self.units)
        self.kernel = self.add_weight(
            shape=shape, initializer=self.kernel_initializer, name="kernel"
        )
        self.bias = self.add_weight(shape=(self.units,), initializer="zeros", name="bias")

    def call(self, inputs: Any) -> Any:
        """The affine map, activated."""
        return self.activation(keras.ops.matmul(inputs, self.kernel) + self.bias)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The last axis becomes `units`."""
        return (*input_shape[:-1], self.units)

    def get_config(self) -> dict[str, Any]:
        """What `from_config` needs."""
        return {
            **super().get_config(),
            "units": self.units,
            "activation": keras.activations.serialize(self.activation),
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }


@final
@registered
class SumProductQuotient(keras.layers.Layer):
    """Two inputs in, three outputs out: a + b, a * b, a / b.

    >>> two = keras.ops.array([6.0]), keras.ops.array([2.0])
    >>> [float(output[0]) for output in SumProductQuotient()(two)]
    [8.0, 12.0, 3.0]
    """

    def call(self, inputs: Sequence[Any]) -> list[Any]:
        """Sum, product, quotient."""
        a, b = inputs
        return [a + b, a * b, a / b]

    def compute_output_shape(self, input_shape: Any) -> list[Any]:
        """Three times the shape of the first."""
        return [tuple(input_shape[0])] * 3


@final
@registered
class TrainingNoise(keras.layers.Layer):
    """Adds normal noise while training, and nothing otherwise.

    The noise comes from a generator whose state is saved: a training that was interrupted goes on
    with the noise it would have had. With `tf.random.normal` it would begin from the start.

    >>> layer = TrainingNoise(0.1, seed=3)
    >>> layer(keras.ops.ones((1, 2))).numpy().tolist()
    [[1.0, 1.0]]
    """

    def __init__(self, stddev: float = 1.0, seed: int | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.stddev, self.seed = float(stddev), seed
        self.seed_generator = keras.random.SeedGenerator(seed)

    def call(self, inputs: Any, training: bool = False) -> Any:
        """With noise or as it is."""
        if not training:
            return inputs
        shape = keras.ops.shape(inputs)
        return inputs + keras.random.normal(
            shape, stddev=self.stddev, dtype=self.compute_dtype, seed=self.seed_generator
        )

    def compute_output_shape(self, input_shape: Any) -> Any:
        """As it came."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """What `from_config` needs."""
        return {**super().get_config(), "stddev": self.stddev, "seed": self.seed}


@final
@registered
class ResidualBlock(keras.layers.Layer):
    """Some dense layers and a way around them: x + layers(x).

    >>> ResidualBlock(depth=2, units=30)(keras.ops.ones((4, 30))).shape
    TensorShape([4, 30])
    """

    def __init__(
        self, depth: int = 2, units: int = 30, activation: Any = "elu", **options: Any
    ) -> None:
        super().__init__(**options)
        self.depth, self.units = depth, units
        self.activation = keras.activations.get(activation)
        self.hidden = [
            keras.layers.Dense(
                units,
                activation=self.activation,
                kernel_initializer="he_normal",
                dtype=self.dtype_policy,
            )
            for _ in range(depth)
        ]

    def build(self, input_shape: Any) -> None:
        """Makes the weights of all layers: a block that is loaded has to have them at once."""
        if input_shape[-1] != self.units:
            raise ConfigurationError(
                message(
                    "A residual block adds its input to its output: both need the same width.",
                    expected=f"inputs of width {self.units}, as units says",
                    received=f"inputs of width {input_shape[-1]}",
                    do=f"put Dense({self.units}) before it, or set units={input_shape[-1]}",
                )
            )
        for layer in self.hidden:
            layer.build(input_shape)

    def call(self, inputs: Any) -> Any:
        """What the layers make of it, added to it."""
        z = inputs
        for layer in self.hidden:
            z = layer(z)
        return inputs + z

    def compute_output_shape(self, input_shape: Any) -> Any:
        """As it came."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """What `from_config` needs."""
        return {
            **super().get_config(),
            "depth": self.depth,
            "units": self.units,
            "activation": keras.activations.serialize(self.activation),
        }


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


@final
@registered
class GlorotNormal(keras.initializers.Initializer):
    """Normal numbers whose spread keeps signals the same size on their way in and back.

    The standard deviation is sqrt(2 / (fan_in + fan_out)), after Glorot and Bengio, 2010. As with
    Keras' own, a seed gives the same numbers at every call.

    >>> layer = keras.layers.Dense(30, kernel_initializer=GlorotNormal(seed=1))
    """

    def __init__(self, seed: int | None = None) -> None:
        self.seed = seed
        # From Python's generator, so that keras.utils.set_random_seed decides it.
        self._drawn = random.randint(1, 10**9) if seed is None else seed

    def __call__(self, shape: Sequence[int], dtype: Any = None) -> Any:
        """New numbers for weights of this shape."""
        fan_in, fan_out = _fans(shape)
        stddev = math.sqrt(2.0 / max(fan_in + fan_out, 1))
        return keras.random.normal(shape, stddev=stddev, dtype=dtype, seed=self._drawn)

    def get_config(self) -> dict[str, Any]:
        """What `from_config` needs."""
        return {"seed": self.seed}


@final
@registered
class L1(keras.regularizers.Regularizer):
    """Costs `factor` times the sum of the weights' sizes, which drives many of them to zero.

    >>> float(L1(0.01)(keras.ops.array([[1.0, -3.0]])))
    0.03999999910593033
    """

    def __init__(self, factor: float = 0.01) -> None:
        self.factor = float(factor)

    def __call__(self, x: Any) -> Any:
        """What these weights cost."""
        return self.factor * keras.ops.sum(keras.ops.abs(x))

    def get_config(self) -> dict[str, Any]:
        """What `from_config` needs."""
        return {"factor": self.factor}


@final
@registered
class NonNegative(keras.constraints.Constraint):
    """Puts weights below zero back to zero after each update.

    >>> NonNegative()(keras.ops.array([1.0, -3.0])).numpy().tolist()
    [1.0, 0.0]
    """

    def __call__(self, w: Any) -> Any:
        """The weights as they may be."""
        return keras.ops.maximum(w, 0)


def _fans(shape: Sequence[int]) -> tuple[int, int]:
    """How many numbers flow into one output, and out of one input; kernels of convolutions too.

    >>> _fans((3, 3, 8, 16)), _fans((5,))
    ((72, 144), (5, 5))
    """
    if len(shape) < 2:
        size = math.prod(shape)
        return size, size
    field = math.prod(shape[:-2])
    return field * shape[-2], field * shape[-1]
