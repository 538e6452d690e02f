"""Losses, and metrics that accumulate over batches.

The Huber loss has three forms: a function, a function with a threshold, a class. It is
squared for small errors and linear beyond the threshold, which limits the pull of outliers.
"""

from typing import Any, final

import keras
import tensorflow as tf

from loopwright.components.registration import registered
from loopwright.errors import ConfigurationError


@registered
def huber(y_true: Any, y_pred: Any) -> Any:
    """Return the Huber loss of each example, with threshold 1: the shortest form of a loss.

    >>> huber([[0.0], [0.0]], [[0.5], [3.0]]).numpy().tolist()
    [0.125, 2.5]
    """
    return _huber(y_true, y_pred, 1.0)


def huber_with(threshold: float) -> "HuberFunction":
    """Return a Huber loss with a threshold, for code that needs a function.

    A closure would be simpler, but would lose its threshold when it is saved.

    >>> huber_with(2.0)([[0.0], [0.0]], [[0.5], [3.0]]).numpy().tolist()
    [0.125, 4.0]
    """
    return HuberFunction(threshold)


@final
@registered
class HuberFunction:
    """The result of `huber_with`: a callable that saves its threshold."""

    __name__ = "huber"  # the name that Keras reports

    def __init__(self, threshold: float) -> None:
        self.threshold = positive(threshold)

    def __call__(self, y_true: Any, y_pred: Any) -> Any:
        """Return the loss of each example."""
        return _huber(y_true, y_pred, self.threshold)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        return {"threshold": self.threshold}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "HuberFunction":
        """Recreate the function with its threshold."""
        return cls(**config)


@final
@registered
class HuberLoss(keras.losses.Loss):
    """The Huber loss as a Keras class, with a reduction, a name and a config.

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
        """Return the loss of each example."""
        return _huber(y_true, y_pred, self.threshold)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        return {**super().get_config(), "threshold": self.threshold}


def positive(threshold: float) -> float:
    """Return the threshold as a float; raise unless it is positive."""
    if not threshold > 0:
        raise ConfigurationError(
            "The threshold of a Huber loss must be greater than zero.",
            expected="the smallest absolute error that counts as an outlier",
            received=repr(threshold),
            do="write HuberLoss(threshold=1.0), or use mean absolute error",
        )
    return float(threshold)


def _huber(y_true: Any, y_pred: Any, threshold: float) -> Any:
    predictions = tf.convert_to_tensor(y_pred)
    error = tf.abs(predictions - tf.cast(y_true, predictions.dtype))
    # No tf.where of both branches: if the square overflows, the gradient would be NaN.
    small = tf.minimum(error, threshold)
    return tf.reduce_mean(small * small / 2 + threshold * (error - small), axis=-1)


@final
@registered
class HuberMetric(keras.metrics.Metric):
    """The mean Huber loss since the last reset, weighted if there are sample weights.

    >>> metric = HuberMetric(threshold=2.0)
    >>> metric.update_state([[0.0], [0.0]], [[0.5], [3.0]], sample_weight=[1.0, 3.0])
    >>> float(metric.result())
    3.03125
    """

    def __init__(self, threshold: float = 1.0, name: str = "huber", **options: Any) -> None:
        super().__init__(name=name, **options)
        self._huber = HuberFunction(threshold)
        self.total = self.add_weight(name="total", initializer="zeros")
        self.weight = self.add_weight(name="weight", initializer="zeros")

    @property
    def threshold(self) -> float:
        """The absolute error beyond which the loss is linear."""
        return self._huber.threshold

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Add a batch; `sample_weight` has one number per example."""
        losses = keras.ops.cast(self._huber(y_true, y_pred), self.dtype)
        weights = keras.ops.ones_like(losses)
        if sample_weight is not None:
            given = keras.ops.cast(sample_weight, self.dtype)
            # Weights often have shape (n, 1); (n, 1) * (n,) would broadcast to (n, n).
            while len(given.shape) > len(losses.shape):
                given = keras.ops.squeeze(given, axis=-1)
            while len(given.shape) < len(losses.shape):
                given = keras.ops.expand_dims(given, axis=-1)
            weights = weights * given
        self.total.assign_add(keras.ops.sum(losses * weights))
        self.weight.assign_add(keras.ops.sum(weights))

    def result(self) -> Any:
        """Return the mean so far; zero before the first batch."""
        return keras.ops.divide_no_nan(self.total, self.weight)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        return {**super().get_config(), "threshold": self.threshold}


@final
@registered
class Perplexity(keras.metrics.SparseCategoricalCrossentropy):
    """Perplexity: the exponential of the mean cross-entropy.

    It is the number of classes that a model is undecided between. The exponential of the mean is
    not the mean of exponentials, so a mean over batches would be wrong.

    >>> metric = Perplexity(from_logits=True)
    >>> metric.update_state(keras.ops.array([1, 0]), keras.ops.zeros((2, 2)))
    >>> round(float(metric.result()), 4)
    2.0
    """

    def __init__(self, name: str = "perplexity", **options: Any) -> None:
        super().__init__(name=name, **options)

    def result(self) -> Any:
        """Return the perplexity; 1 for a model that is certain and correct."""
        return keras.ops.exp(super().result())
