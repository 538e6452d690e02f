"""Gaps in windows of a time series: where values are hidden, and straight lines over them."""

from typing import Any

import keras
import tensorflow as tf


def draw_gaps(windows: Any, seed: Any) -> Any:
    """Where values of windows are hidden: in half of the columns, 6 to 24 hours long."""
    hours, columns = windows.shape[1:]
    shape = (tf.shape(windows)[0], 1, columns)
    begin = keras.random.randint(shape, 1, hours - 12, seed=seed)
    length = keras.random.randint(shape, 6, 25, seed=seed)
    is_cut = keras.random.uniform(shape, seed=seed) < 0.5
    hour = tf.range(hours)[None, :, None]
    return is_cut & (hour >= begin) & (hour < begin + length)


def straight_lines(values: Any, is_seen: Any) -> Any:
    """The windows with straight lines from one seen value to the next, level at both ends."""
    values, is_seen = (tf.transpose(part, (0, 2, 1)) for part in (values, is_seen))
    hours = values.shape[-1]
    hour = tf.range(hours)
    seen = is_seen[:, :, None]
    before = tf.reduce_max(tf.where(seen & (hour <= hour[:, None]), hour, -1), -1)
    after = tf.reduce_min(tf.where(seen & (hour >= hour[:, None]), hour, hours), -1)
    left = tf.where(before < 0, after % hours, before)
    right = tf.where(after == hours, left, after)
    at_left, at_right = (tf.gather(values, i, axis=2, batch_dims=2) for i in (left, right))
    way, whole = (tf.cast(part, tf.float32) for part in (hour - left, right - left))
    lines = at_left + (at_right - at_left) * tf.math.divide_no_nan(way, whole)
    return tf.transpose(lines, (0, 2, 1))
