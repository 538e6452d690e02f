"""Chunks: several batches of one size, stacked: XLA cannot read an iterator."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, final

import tensorflow as tf

_MOST_BATCHES = 128
_MOST_BYTES = 4 * 2**20


def room(batch_spec: Any, size: int) -> int:
    """Return how many batches of `size` examples fit into a chunk.

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
        lambda leaf: tf.zeros([room(batch_spec, size), *element_shape(leaf, size)], leaf.dtype),
        batch_spec,
    )


def zeros(batch_spec: Any, size: int) -> Any:
    """One batch of zeros."""
    return tf.nest.map_structure(
        lambda leaf: tf.zeros([axis or 1 for axis in element_shape(leaf, size)], leaf.dtype),
        batch_spec,
    )


@final
class Pulled(NamedTuple):
    """Batches from an iterator, and the batch of another size that came after them, if any."""

    batches: Any
    chunk: Any
    """While they are pulled, an array for each leaf of a batch."""
    more: Any
    """Whether the next batch may be of this size, too."""
    has_other: Any
    other: Any


def pull(next_optional: Callable[[], Any], batch_spec: Any, size: int, limit: Any) -> Pulled:
    """Pull up to `limit` batches of `size` examples.

    Fewer come if the data ends, or if a batch of another size follows: that one is returned as
    well, for a chunk of its own.
    """
    leaves = tf.nest.flatten(batch_spec)
    is_open = any(leaf.shape[0] is None for leaf in leaves)
    arrays = [
        tf.TensorArray(leaf.dtype, room(batch_spec, size), element_shape=element_shape(leaf, size))
        for leaf in leaves
    ]
    nothing = tf.nest.map_structure(
        lambda leaf: tf.zeros(element_shape(leaf, 0), leaf.dtype), batch_spec
    )

    def body(before: Pulled) -> tuple[Pulled]:
        optional = next_optional()
        has_value = optional.has_value()
        batch = tf.cond(has_value, optional.get_value, lambda: nothing)
        fits = tf.logical_and(has_value, _has_rows(batch, leaves, size)) if is_open else has_value

        def written() -> tuple[Any, Any]:
            flat = zip(before.chunk, tf.nest.flatten(batch), strict=True)
            return nothing, [array.write(before.batches, leaf) for array, leaf in flat]

        other, chunk = tf.cond(fits, written, lambda: (batch, before.chunk))
        has_other = tf.logical_and(has_value, tf.logical_not(fits))
        return (Pulled(before.batches + tf.cast(fits, tf.int32), chunk, fits, has_other, other),)

    scalar = tf.TensorShape([])
    shapes = tf.nest.map_structure(lambda leaf: leaf.shape, batch_spec)
    unknown = [tf.TensorShape(None)] * len(arrays)
    (pulled,) = tf.while_loop(
        lambda before: tf.logical_and(before.more, before.batches < limit),
        body,
        (Pulled(tf.constant(0), arrays, tf.constant(True), tf.constant(False), nothing),),
        shape_invariants=(Pulled(scalar, unknown, scalar, scalar, shapes),),
        parallel_iterations=1,
    )
    stacked = [array.stack() for array in pulled.chunk]
    return pulled._replace(chunk=tf.nest.pack_sequence_as(batch_spec, stacked))


def element_shape(leaf: Any, size: int) -> list[int]:
    """Return the shape of a leaf in batches of `size`; one of known length keeps it.

    Datasets zipped after they were batched may have batches of different sizes.
    """
    return [size if leaf.shape[0] is None else leaf.shape[0], *leaf.shape[1:]]


def _has_rows(batch: Any, leaves: Sequence[Any], size: int) -> Any:
    pairs = zip(tf.nest.flatten(batch), leaves, strict=True)
    return tf.reduce_all([tf.shape(t)[0] == element_shape(leaf, size)[0] for t, leaf in pairs])
