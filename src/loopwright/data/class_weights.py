"""Class weights: sample weights that follow from the class of each label."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from loopwright.data import batches
from loopwright.errors import DataError, message


def check_labelled(batch: Any) -> None:
    """Refuses what class weights cannot be given to; takes tensors or their specs."""
    parts = batch if isinstance(batch, tuple) else (batch,)
    if len(parts) == 2 and hasattr(parts[1], "shape"):
        return
    received = {1: "no labels", 2: "labels for several outputs"}.get(len(parts), "sample_weight")
    raise DataError(
        message(
            "class_weight needs one array of labels, and no sample_weight beside it.",
            expected="fit(x, y, class_weight={0: 1.0, 1: 5.0}), or batches of (x, y)",
            received=received,
            do="pass y, and only one of class_weight and sample_weight; for several outputs make "
            "the weights yourself and pass them as sample_weight",
        )
    )


def weighted(batch: Any, class_weight: Mapping[int, float]) -> Any:
    """`(x, y)` with one weight per label, as Keras gives them; classes not named weigh 1."""
    check_labelled(batch)
    x, y = batch
    return x, y, _class_weights(y, class_weight)


def _class_weights(labels: Any, class_weight: Mapping[int, float]) -> Any:
    if len(labels.shape) > 1:
        labels = tf.argmax(labels, -1) if labels.shape[-1] != 1 else tf.squeeze(labels, -1)
    if labels.dtype.is_floating:
        labels = tf.round(labels)
    labels = tf.cast(labels, tf.int64)
    weights = tf.ones_like(labels, tf.float32)
    for number, weight in class_weight.items():
        weights = tf.where(labels == number, tf.constant(weight, tf.float32), weights)
    return batches.to_floatx(weights)
