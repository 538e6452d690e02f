"""The TensorFlow world a run lives in: strategy, replicas, how examples are counted and shared."""

from typing import Any

import tensorflow as tf


def replica_count(strategy: tf.distribute.Strategy) -> int:
    """How many replicas take part in each step."""
    return strategy.num_replicas_in_sync


def count_examples(batch: Any) -> Any:
    """How many examples a batch has: the length of its first tensor that has one."""
    for leaf in tf.nest.flatten(batch):
        if isinstance(leaf, tf.SparseTensor):
            return tf.cast(leaf.dense_shape[0], tf.int32)
        if isinstance(leaf, tf.RaggedTensor):
            return tf.cast(leaf.nrows(), tf.int32)
        if leaf.shape.rank != 0:
            return tf.shape(leaf)[0]
    return tf.constant(1)


def share(batch: Any, index: int, count: int) -> Any:
    """The part of a global batch that replica `index` of `count` works on.

    Shares differ by one example at most; a batch with fewer examples than replicas leaves some
    replicas without any.
    """
    examples = count_examples(batch)
    begin, end = examples * index // count, examples * (index + 1) // count

    def cut(leaf: Any) -> Any:
        if isinstance(leaf, tf.SparseTensor):
            begin64, end64 = tf.cast(begin, tf.int64), tf.cast(end, tf.int64)
            zeros = tf.zeros_like(leaf.dense_shape[1:])
            start = tf.concat([[begin64], zeros], axis=0)
            size = tf.concat([[end64 - begin64], leaf.dense_shape[1:]], axis=0)
            return tf.sparse.slice(leaf, start, size)
        return leaf if leaf.shape.rank == 0 else leaf[begin:end]

    return tf.nest.map_structure(cut, batch)


def split(batch: Any, strategy: tf.distribute.Strategy) -> Any:
    """A global batch as one value per replica; with one replica the batch itself."""
    count = replica_count(strategy)
    if count == 1:
        return batch
    shares = [share(batch, index, count) for index in range(count)]
    return strategy.experimental_distribute_values_from_function(
        lambda context: shares[context.replica_id_in_sync_group]
    )


def sum_over_replicas(strategy: tf.distribute.Strategy, value: Any) -> Any:
    """The sum of one scalar per replica."""
    if replica_count(strategy) == 1:
        return value
    return strategy.reduce(tf.distribute.ReduceOp.SUM, value, axis=None)


def made_in_scope(variables: list[Any], strategy: tf.distribute.Strategy) -> bool:
    """Whether every variable was created inside `strategy.scope()`."""
    return all(strategy.extended.variable_created_in_scope(variable) for variable in variables)
