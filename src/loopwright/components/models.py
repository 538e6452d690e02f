"""Models: one that reuses a block, one that adds its own loss and metric."""

from typing import Any, final

import keras

from loopwright.components.layers import ResidualBlock
from loopwright.components.registration import registered


@final
@registered
class ResidualRegressor(keras.Model):
    """A dense layer, one residual block applied four times, a second block, an output layer.

    >>> ResidualRegressor(1)(keras.ops.ones((4, 8))).shape
    TensorShape([4, 1])
    """

    def __init__(self, output_dim: int = 1, units: int = 30, **options: Any) -> None:
        super().__init__(**options)
        self.output_dim, self.units = output_dim, units
        own = {"dtype": self.dtype_policy}
        self.hidden = keras.layers.Dense(units, "elu", kernel_initializer="he_normal", **own)
        self.block1 = ResidualBlock(2, units, **own)
        self.block2 = ResidualBlock(2, units, **own)
        self.out = keras.layers.Dense(output_dim, **own)

    def build(self, input_shape: Any) -> None:
        """Create the weights of all layers."""
        inner = (*input_shape[:-1], self.units)
        self.hidden.build(input_shape)
        for layer in (self.block1, self.block2, self.out):
            layer.build(inner)

    def call(self, inputs: Any) -> Any:
        """Return the predictions."""
        z = self.hidden(inputs)
        for _ in range(4):
            z = self.block1(z)
        return self.out(self.block2(z))

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        return {**super().get_config(), "output_dim": self.output_dim, "units": self.units}


@final
@registered
class ReconstructionRegressor(keras.Model):
    """Five dense layers that predict a target and reconstruct their input.

    The mean squared error of the reconstruction is added to the loss, times
    `reconstruction_weight`, and reported as `reconstruction_loss`. With weight 0 there is neither.

    >>> model = ReconstructionRegressor(1)
    >>> _ = model(keras.ops.ones((4, 3)))
    >>> len(model.losses), [metric.name for metric in model.metrics]
    (1, ['reconstruction_loss'])
    """

    def __init__(
        self,
        output_dim: int = 1,
        reconstruction_weight: float = 0.05,
        units: int = 10,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.output_dim, self.units = output_dim, units
        self.reconstruction_weight = float(reconstruction_weight)
        own = {"dtype": self.dtype_policy}
        self.hidden = [keras.layers.Dense(units, "relu", **own) for _ in range(5)]
        self.out = keras.layers.Dense(output_dim, **own)
        self.reconstruct: Any = None
        self.reconstruction_loss: Any = None
        if reconstruction_weight:
            self.reconstruction_loss = keras.metrics.Mean(name="reconstruction_loss")

    def build(self, input_shape: Any) -> None:
        """Create the weights of all layers; the reconstruction is as wide as the input."""
        inner = (*input_shape[:-1], self.units)
        for index, layer in enumerate(self.hidden):
            layer.build(inner if index else input_shape)
        self.out.build(inner)
        if self.reconstruction_weight:
            self.reconstruct = keras.layers.Dense(input_shape[-1], dtype=self.dtype_policy)
            self.reconstruct.build(inner)

    def call(self, inputs: Any) -> Any:
        """Return the predictions; add the reconstruction loss and update its metric."""
        z = inputs
        for layer in self.hidden:
            z = layer(z)
        if self.reconstruct is not None:
            # In float32: in half precision, squares overflow at 256.
            error = keras.ops.cast(self.reconstruct(z), "float32")
            error = error - keras.ops.cast(inputs, "float32")
            each = keras.ops.mean(keras.ops.square(error), axis=-1)
            self.add_loss(self.reconstruction_weight * keras.ops.mean(each))
            self.reconstruction_loss.update_state(each)
        return self.out(z)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        return {
            **super().get_config(),
            "output_dim": self.output_dim,
            "reconstruction_weight": self.reconstruction_weight,
            "units": self.units,
        }
