"""Metrics that accumulate over batches."""

from typing import Any, final

import keras

from loopwright.compat.keras_internals import registered
from loopwright.components.losses import HuberFunction


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
