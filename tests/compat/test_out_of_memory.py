"""A step that does not fit in memory is explained: real allocations that fail."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.tasks import ByHand

import loopwright as lw

X, Y = np.zeros((128, 4), "float32"), np.zeros((128, 1), "float32")


class Wide(ByHand):
    """Makes a tensor that no machine can hold."""

    def __init__(self) -> None:
        super().__init__(keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]))

    def loss_of(self, x: Any, y: Any) -> Any:
        wide = tf.reduce_mean(tf.tile(x, [1, 2**42]))
        return super().loss_of(x, y) + wide

    def predict_step(self, batch: Any) -> Any:
        return tf.reduce_mean(tf.tile(batch, [1, 2**42]), axis=1)


@pytest.mark.parametrize("plan", ["graph", "eager"])
@pytest.mark.parametrize("kind", ["arrays", "dataset"])
def test_the_batch_size_the_tensor_and_the_line_are_named(plan, kind):
    arrays = tf.data.Dataset.from_tensor_slices((X, Y))
    data = {"x": X, "y": Y, "batch_size": 64} if kind == "arrays" else {"x": arrays.batch(64)}
    with pytest.raises(lw.StepError) as caught:
        lw.Trainer(Wide(), plan=plan).fit(**data, verbose=0)
    text = str(caught.value)
    assert "Wide.train_step ran out of memory (file" in text
    assert "wide = tf.reduce_mean(tf.tile(x" in text
    assert "OOM when allocating tensor with shape[64,17592186044416] and type float" in text
    if kind == "arrays" or plan == "eager":  # a graph of a dataset leaves the size open
        assert "batches of 64 examples" in text
        assert "do: lower batch_size: 32 instead of 64" in text
        assert text.endswith("accumulate: gradient_accumulation_steps=2 of the optimizer")
    else:
        assert "do: use smaller batches" in text
    assert isinstance(caught.value.__cause__, tf.errors.ResourceExhaustedError)


def test_predictions_that_do_not_fit_are_explained_too():
    with pytest.raises(lw.StepError, match=r"predict_step ran out of memory"):
        lw.Trainer(Wide(), plan="graph").predict(X, batch_size=64)
