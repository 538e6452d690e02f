"""The Huber loss three ways: a function, a function with a threshold, a class.

Squared for small errors, linear beyond the threshold: an outlier pulls no harder than its sign.
"""

from typing import Any, final

import keras
import tensorflow as tf

from loopwright.compat.keras_internals import registered
from loopwright.errors import ConfigurationError, message


@registered
def huber(y_true: Any, y_pred: Any) -> Any:
    """The Huber loss of each example, with threshold 1: the shortest way to write a loss.

    >>> huber([[0.0], [0.0]], [[0.5], [3.0]]).numpy().tolist()
    [0.125, 2.5]
    """
    return _huber(y_true, y_pred, 1.0)


def huber_with(threshold: float) -> "HuberFunction":
    """Makes a Huber loss with another threshold, for where a function is wanted.

    A function inside a function would be simpler, and would lose its threshold when it is saved.

    >>> huber_with(2.0)([[0.0], [0.0]], [[0.5], [3.0]]).numpy().tolist()
    [0.125, 4.0]
    """
    return HuberFunction(threshold)


@final
@registered
class HuberFunction:
    """What `huber_with` makes: a function that knows its threshold, and says it when saved."""

    __name__ = "huber"  # Keras names the loss of an output after it

    def __init__(self, threshold: float) -> None:
        self.threshold = positive(threshold)

    def __call__(self, y_true: Any, y_pred: Any) -> Any:
        """The loss of each example."""
        return _huber(y_true, y_pred, self.threshold)

    def get_config(self) -> dict[str, Any]:
        """What `from_config` needs."""
        return {"threshold": self.threshold}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "HuberFunction":
        """The function again, with its threshold."""
        return cls(**config)


@final
@registered
class HuberLoss(keras.losses.Loss):
    """The Huber loss as Keras has its own: with a reduction, a name, a config.

    >>> loss = HuberLoss(threshold=2.0)
    >>> float(loss([[0.0], [0.0]], [[0.5], [3.0]]))
    2.0625
    >>> HuberLoss.from_config(loss.get_config()).threshold
    2.0
    """

    def __init__(
        self,
        threshold: float = 1.0,
        reduction: str = "sum_over_batch_size",
        name: str = "huber_loss",
        **options: Any,
    ) -> None:
        super().__init__(reduction=reduction, name=name, **options)
        self.threshold = positive(threshold)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """The loss of each example."""
        return _huber(y_true, y_pred, self.threshold)

    def get_config(self) -> dict[str, Any]:
        """What `from_config` needs."""
        return {**super().get_config(), "threshold": self.threshold}


def positive(threshold: float) -> float:
    """The threshold as a number; refuses one that no error is below."""
    if not threshold > 0:
        raise ConfigurationError(
            message(
                "The threshold of a Huber loss has to be greater than zero.",
                expected="the size of an error from which on it counts as an outlier",
                received=repr(threshold),
                do="write HuberLoss(threshold=1.0), or use mean absolute error",
            )
        )
    return float(threshold)


def _huber(y_true: Any, y_pred: Any, threshold: float) -> Any:
    predictions = tf.convert_to_tensor(y_pred)
    error = tf.abs(predictions - tf.cast(y_true, predictions.dtype))
    # Not a tf.where of both branches: a square that overflows would make the gradient NaN.
    small = tf.minimum(error, threshold)
    return tf.reduce_mean(small * small / 2 + threshold * (error - small), axis=-1)
