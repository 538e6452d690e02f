"""Layers, an activation, an initializer, a regularizer and a constraint."""

import math
import random
from collections.abc import Sequence
from typing import Any, final

import keras
import tensorflow as tf

from loopwright.components.registration import registered
from loopwright.errors import ConfigurationError


@final
@registered
class Exponential(keras.layers.Layer):
    """exp(x): a layer without weights, for positive targets of very different sizes.

    >>> Exponential()(keras.ops.array([0.0])).numpy().tolist()
    [1.0]
    """

    def call(self, inputs: Any) -> Any:
        """Return exp(x)."""
        return keras.ops.exp(inputs)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return the input shape unchanged."""
        return input_shape


@final
@registered
class Dense(keras.layers.Layer):
    """x @ kernel + bias: a layer that creates its weights when the input width is known.

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
        """Create kernel and bias."""
        shape = (input_shape[-1], self.units)
        self.kernel = self.add_weight(
            shape=shape, initializer=self.kernel_initializer, name="kernel"
        )
        self.bias = self.add_weight(shape=(self.units,), initializer="zeros", name="bias")

    def call(self, inputs: Any) -> Any:
        """Return activation(x @ kernel + bias)."""
        return self.activation(keras.ops.matmul(inputs, self.kernel) + self.bias)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return the input shape with `units` as its last axis."""
        return (*input_shape[:-1], self.units)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        return {
            **super().get_config(),
            "units": self.units,
            "activation": keras.activations.serialize(self.activation),
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }


@final
@registered
class SumProductQuotient(keras.layers.Layer):
    """A layer with two inputs and three outputs: a + b, a * b, a / b.

    >>> two = keras.ops.array([6.0]), keras.ops.array([2.0])
    >>> [float(output[0]) for output in SumProductQuotient()(two)]
    [8.0, 12.0, 3.0]
    """

    def call(self, inputs: Sequence[Any]) -> list[Any]:
        """Return sum, product and quotient."""
        a, b = inputs
        return [a + b, a * b, a / b]

    def compute_output_shape(self, input_shape: Any) -> list[Any]:
        """Return the shape of the first input, three times."""
        return [tuple(input_shape[0])] * 3


@final
@registered
class TrainingNoise(keras.layers.Layer):
    """Adds normal noise during training only.

    The noise comes from a generator whose state is saved, so a resumed training draws the same
    noise as an uninterrupted one. With `tf.random.normal` it would draw different noise.

    >>> layer = TrainingNoise(0.1, seed=3)
    >>> layer(keras.ops.ones((1, 2))).numpy().tolist()
    [[1.0, 1.0]]
    """

    def __init__(self, stddev: float = 1.0, seed: int | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.stddev, self.seed = float(stddev), seed
        self.seed_generator = keras.random.SeedGenerator(seed)

    def call(self, inputs: Any, training: bool = False) -> Any:
        """Return the inputs, with noise during training."""
        if not training:
            return inputs
        shape = keras.ops.shape(inputs)
        return inputs + keras.random.normal(
            shape, stddev=self.stddev, dtype=self.compute_dtype, seed=self.seed_generator
        )

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return the input shape unchanged."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        return {**super().get_config(), "stddev": self.stddev, "seed": self.seed}


@final
@registered
class ResidualBlock(keras.layers.Layer):
    """Dense layers with a skip connection: x + layers(x).

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
        """Create the weights of all layers: loading a saved block needs them at once."""
        if input_shape[-1] != self.units:
            raise ConfigurationError(
                "The input and output of a residual block must have the same width.",
                expected=f"inputs of width {self.units}, the value of units",
                received=f"inputs of width {input_shape[-1]}",
                do=f"put Dense({self.units}) before it, or set units={input_shape[-1]}",
            )
        for layer in self.hidden:
            layer.build(input_shape)

    def call(self, inputs: Any) -> Any:
        """Return x + layers(x)."""
        z = inputs
        for layer in self.hidden:
            z = layer(z)
        return inputs + z

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return the input shape unchanged."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        return {
            **super().get_config(),
            "depth": self.depth,
            "units": self.units,
            "activation": keras.activations.serialize(self.activation),
        }


@registered
def softplus(z: Any) -> Any:
    """log(1 + exp(z)) with a custom gradient; neither overflows for any `z`.

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
    """Normal weights with standard deviation sqrt(2 / (fan_in + fan_out)).

    After Glorot and Bengio, 2010: it preserves the variance of signals and gradients. As with
    Keras' own initializers, the same seed gives the same numbers at every call.

    >>> layer = keras.layers.Dense(30, kernel_initializer=GlorotNormal(seed=1))
    """

    def __init__(self, seed: int | None = None) -> None:
        self.seed = seed
        # From Python's generator, which keras.utils.set_random_seed seeds.
        self._drawn = random.randint(1, 10**9) if seed is None else seed

    def __call__(self, shape: Sequence[int], dtype: Any = None) -> Any:
        """Return initial weights of this shape."""
        fan_in, fan_out = _fans(shape)
        stddev = math.sqrt(2.0 / max(fan_in + fan_out, 1))
        return keras.random.normal(shape, stddev=stddev, dtype=dtype, seed=self._drawn)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        return {"seed": self.seed}


@final
@registered
class L1(keras.regularizers.Regularizer):
    """L1 penalty: `factor` times the sum of absolute weights, which makes them sparse.

    >>> float(L1(0.01)(keras.ops.array([[1.0, -3.0]])))
    0.03999999910593033
    """

    def __init__(self, factor: float = 0.01) -> None:
        self.factor = float(factor)

    def __call__(self, x: Any) -> Any:
        """Return the penalty of these weights."""
        return self.factor * keras.ops.sum(keras.ops.abs(x))

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        return {"factor": self.factor}


@final
@registered
class NonNegative(keras.constraints.Constraint):
    """Sets negative weights to zero after each update.

    >>> NonNegative()(keras.ops.array([1.0, -3.0])).numpy().tolist()
    [1.0, 0.0]
    """

    def __call__(self, w: Any) -> Any:
        """Return the weights, negative ones set to zero."""
        return keras.ops.maximum(w, 0)


def _fans(shape: Sequence[int]) -> tuple[int, int]:
    """Return fan-in and fan-out of a kernel, also of a convolution.

    >>> _fans((3, 3, 8, 16)), _fans((5,))
    ((72, 144), (5, 5))
    """
    if len(shape) < 2:
        size = math.prod(shape)
        return size, size
    field = math.prod(shape[:-2])
    return field * shape[-2], field * shape[-1]
