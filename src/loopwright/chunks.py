"""Chunks: several batches pulled from an iterator at once, for a loop that cannot read from it.

How a batch is run depends on its size alone, never on the batches beside it: a chunk has room for
a number of batches that follows from their size, holds batches of that size only, and is filled up
with zeros that no step sees. So any split of a run into calls gives the same bits.
"""

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from loopwright import runtime

_MOST_BATCHES = 128
_MOST_BYTES = 4 * 2**20


def room(batch_spec: Any, size: int) -> int:
    """How many batches of `size` examples a chunk has room for.

    >>> room(tf.TensorSpec([None, 8], tf.float32), size=32768)
    4
    """
    leaves = tf.nest.flatten(batch_spec)
    values = [math.prod(axis or 1 for axis in leaf.shape[1:]) * leaf.dtype.size for leaf in leaves]
    return max(1, min(_MOST_BATCHES, _MOST_BYTES // max(1, size * sum(values))))


def alone(batch: Any, batch_spec: Any, size: int) -> Any:
    """A chunk of one batch."""
    zeros = room(batch_spec, size) - 1
    return tf.nest.map_structure(
        lambda leaf: tf.pad(leaf[tf.newaxis], [[0, zeros], *[[0, 0]] * leaf.shape.rank]), batch
    )


def empty(batch_spec: Any, size: int) -> Any:
    """A chunk without a batch: to compile with."""
    return tf.nest.map_structure(
        lambda leaf: tf.zeros([room(batch_spec, size), size, *leaf.shape[1:]], leaf.dtype),
        batch_spec,
    )


def pull(next_optional: Callable[[], Any], batch_spec: Any, size: int, limit: Any) -> Any:
    """Pulls up to `limit` batches of `size` examples: how many, the chunk, and what came after.

    Fewer come if the data ends, or if a batch of another size follows: that one is returned as
    well, for a chunk of its own. Otherwise what came after has no rows.
    """
    leaves = tf.nest.flatten(batch_spec)
    is_open = leaves[0].shape[0] is None
    arrays = [
        tf.TensorArray(leaf.dtype, room(batch_spec, size), element_shape=[size, *leaf.shape[1:]])
        for leaf in leaves
    ]
    nothing = tf.nest.map_structure(
        lambda leaf: tf.zeros([0 if is_open else size, *leaf.shape[1:]], leaf.dtype), batch_spec
    )

    def body(count: Any, _: Any, __: Any, *arrays: Any) -> Any:
        optional = next_optional()
        has_value = optional.has_value()
        batch = tf.cond(has_value, optional.get_value, lambda: nothing)
        fits = runtime.count_examples(batch) == size if is_open else has_value

        def taken() -> Any:
            flat = zip(arrays, tf.nest.flatten(batch), strict=True)
            return nothing, *[array.write(count, leaf) for array, leaf in flat]

        other, *written = tf.cond(fits, taken, lambda: (batch, *arrays))
        return count + tf.cast(fits, tf.int32), fits, other, *written

    shapes = tf.nest.map_structure(lambda leaf: leaf.shape, batch_spec)
    unknown = [tf.TensorShape(None)] * len(arrays)
    count, _, other, *arrays = tf.while_loop(
        lambda count, more, *_: tf.logical_and(more, count < limit),
        body,
        (tf.constant(0), tf.constant(True), nothing, *arrays),
        shape_invariants=(tf.TensorShape([]), tf.TensorShape([]), shapes, *unknown),
        parallel_iterations=1,
    )
    stacked = tf.nest.pack_sequence_as(batch_spec, [array.stack() for array in arrays])
    rows = runtime.count_examples(other) if is_open else tf.constant(0)
    return count, stacked, rows, other
