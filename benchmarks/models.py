"""The models of the benchmarks; each call creates a new one."""

from typing import Any, final

import keras
from keras import layers


def mlp(width: int, dropout: float = 0.0) -> keras.Model:
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


def lstm() -> keras.Model:
    """64 timesteps of 64 features to a number."""
    return keras.Sequential([keras.Input((64, 64)), layers.LSTM(64), layers.Dense(1)])


def transformer() -> keras.Model:
    """64 tokens of 256 kinds to logits of the next ones."""
    tokens = keras.Input((64,), dtype="int32")
    x = _Positions()(layers.Embedding(256, 64)(tokens))
    for _ in range(2):
        normed = layers.LayerNormalization()(x)
        attention = layers.MultiHeadAttention(num_heads=4, key_dim=16)
        x = layers.Add()([x, attention(normed, normed, use_causal_mask=True)])
        hidden = layers.Dense(128, activation="relu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(64)(hidden)])
    return keras.Model(tokens, layers.Dense(256)(layers.LayerNormalization()(x)))


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
