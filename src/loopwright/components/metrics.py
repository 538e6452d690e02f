"""Metrics that add up over batches."""

from typing import Any, final

import keras

from loopwright.compat.keras_internals import registered
from loopwright.components.losses import HuberFunction


@final
@registered
class HuberMetric(keras.metrics.Metric):
    """The mean Huber loss over everything seen since the last reset, weighted if weights came.

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
        """From which size on an error counts linearly."""
        return self._huber.threshold

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds a batch; `sample_weight` has one number for each example."""
        losses = keras.ops.cast(self._huber(y_true, y_pred), self.dtype)
        weights = keras.ops.ones_like(losses)
        if sample_weight is not None:
            given = keras.ops.cast(sample_weight, self.dtype)
            # One axis too many is usual, (n, 1) for n examples; (n, 1) * (n,) would be (n, n).
            while len(given.shape) > len(losses.shape):
                given = keras.ops.squeeze(given, axis=-1)
            while len(given.shape) < len(losses.shape):
                given = keras.ops.expand_dims(given, axis=-1)
            weights = weights * given
        self.total.assign_add(keras.ops.sum(losses * weights))
        self.weight.assign_add(keras.ops.sum(weights))

    def result(self) -> Any:
        """The mean so far; zero before anything was seen."""
        return keras.ops.divide_no_nan(self.total, self.weight)

    def get_config(self) -> dict[str, Any]:
        """What `from_config` needs."""
        return {**super().get_config(), "threshold": self.threshold}


@final
@registered
class Perplexity(keras.metrics.SparseCategoricalCrossentropy):
    """Between how many classes a model is undecided: the exponential of the mean cross-entropy.

    The mean comes first: that of exponentials would be another number.

    >>> metric = Perplexity(from_logits=True)
    >>> metric.update_state(keras.ops.array([1, 0]), keras.ops.zeros((2, 2)))
    >>> round(float(metric.result()), 4)
    2.0
    """

    def __init__(self, name: str = "perplexity", **options: Any) -> None:
        super().__init__(name=name, **options)

    def result(self) -> Any:
        """1 where the model is sure and right."""
        return keras.ops.exp(super().result())
