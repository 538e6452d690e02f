"""The models of the benchmarks in Keras, for any backend; each call creates a new one."""

from collections.abc import Callable
from typing import Any, final

import keras
from keras import layers


def mlp(width: int = 64, dropout: float = 0.0) -> keras.Model:
    """20-width-width-1, with dropout before the last layer if there is any."""
    made: list[Any] = [keras.Input((20,))]
    made += [layers.Dense(width, activation="relu") for _ in range(2)]
    made += [layers.Dropout(dropout)] if dropout else []
    return keras.Sequential([*made, layers.Dense(1)])


def cnn() -> keras.Model:
    """28x28 images to ten classes."""
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(10, activation="softmax"),
        ]
    )


def unet() -> keras.Model:
    """64x64 images to logits of a mask: three levels of 8, 16 and 32 filters."""
    image = keras.Input((64, 64, 1))
    shallow = _two_convolutions(image, 8)
    middle = _two_convolutions(layers.MaxPooling2D()(shallow), 16)
    deep = _two_convolutions(layers.MaxPooling2D()(middle), 32)
    middle = _joined(deep, middle, 16)
    shallow = _joined(middle, shallow, 8)
    return keras.Model(image, layers.Conv2D(1, 1)(shallow))


def resnet() -> keras.Model:
    """ResNet-18 with the stem of the paper: 64x64 images to logits of 100 classes."""
    image = keras.Input((64, 64, 3))
    x = layers.Activation("relu")(_normed_convolution(image, 64, 7, strides=2))
    x = layers.MaxPooling2D(3, strides=2, padding="same")(x)
    for stage, filters in enumerate((64, 128, 256, 512)):
        for block in range(2):
            x = _residual(x, filters, strides=2 if stage and not block else 1)
    return keras.Model(image, layers.Dense(100)(layers.GlobalAveragePooling2D()(x)))


def lstm(unroll: bool = False) -> keras.Model:
    """64 timesteps of 64 features to a number."""
    hidden = layers.LSTM(64, unroll=unroll)
    return keras.Sequential([keras.Input((64, 64)), hidden, layers.Dense(1)])


def transformer(
    length: int = 64, blocks: int = 2, width: int = 64, heads: int = 4, hidden: int = 128
) -> keras.Model:
    """Tokens of 256 kinds to logits of the next ones."""
    tokens = keras.Input((length,), dtype="int32")
    x = _Positions()(layers.Embedding(256, width)(tokens))
    for _ in range(blocks):
        normed = layers.LayerNormalization()(x)
        attention = layers.MultiHeadAttention(num_heads=heads, key_dim=width // heads)
        x = layers.Add()([x, attention(normed, normed, use_causal_mask=True)])
        inner = layers.Dense(hidden, activation="relu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(width)(inner)])
    return keras.Model(tokens, layers.Dense(256)(layers.LayerNormalization()(x)))


def transformer_large() -> keras.Model:
    """Six blocks of width 256 on 128 tokens."""
    return transformer(length=128, blocks=6, width=256, heads=8, hidden=1024)


def _sparse_logits() -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


SUPERVISED: dict[str, tuple[Callable[[], keras.Model], Callable[[], Any]]] = {
    "cnn": (cnn, lambda: "sparse_categorical_crossentropy"),
    "unet": (unet, lambda: keras.losses.BinaryCrossentropy(from_logits=True)),
    "resnet": (resnet, _sparse_logits),
    "lstm": (lstm, lambda: "mse"),
    "transformer": (transformer, _sparse_logits),
    "transformer_large": (transformer_large, _sparse_logits),
    "mlp": (mlp, lambda: "mse"),
    "dropout": (lambda: mlp(dropout=0.2), lambda: "mse"),
    "pipeline": (mlp, lambda: "mse"),
}
"""The model and the loss of each workload with one model and one optimizer."""


@final
class _Positions(layers.Layer):
    """Add a learned embedding to each position of a sequence."""

    def build(self, input_shape: Any) -> None:
        self.places = self.add_weight(shape=tuple(input_shape[1:]), initializer="random_normal")

    def call(self, inputs: Any) -> Any:
        return inputs + self.places


def _two_convolutions(x: Any, filters: int) -> Any:
    for _ in range(2):
        x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
    return x


def _joined(below: Any, beside: Any, filters: int) -> Any:
    above = layers.Conv2DTranspose(filters, 2, strides=2)(below)
    return _two_convolutions(layers.Concatenate()([above, beside]), filters)


def _normed_convolution(x: Any, filters: int, size: int, strides: int = 1) -> Any:
    convolution = layers.Conv2D(filters, size, strides, padding="same", use_bias=False)
    return layers.BatchNormalization()(convolution(x))


def _residual(x: Any, filters: int, strides: int) -> Any:
    shortcut = x if strides == 1 else _normed_convolution(x, filters, 1, strides)
    inner = layers.Activation("relu")(_normed_convolution(x, filters, 3, strides))
    return layers.Activation("relu")(
        layers.Add()([shortcut, _normed_convolution(inner, filters, 3)])
    )
