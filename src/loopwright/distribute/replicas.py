"""Replicas: split batches, reduce values, restore state on more or fewer of them.

Metrics, seeds and the statistics of batch norm have one variable for each replica of all workers:
`accuracy.total.replicas[1]`.
"""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from loopwright.compat import tensorflow_internals
from loopwright.errors import ConfigurationError

_NAME = re.compile(r"(.*)\.replicas\[(\d+)\]")


def is_of_one(name: str, variable: Any) -> bool:
    """Return whether a variable belongs to one of several replicas; others are the same on all."""
    is_one = not isinstance(variable, tf.distribute.DistributedValues)
    return is_one and _NAME.fullmatch(name) is not None


def renumbered(name: str, by: int) -> str:
    """Return the variable name of the replica that is `by` further.

    >>> renumbered("accuracy.total.replicas[1]", 2)
    'accuracy.total.replicas[3]'
    """
    return _NAME.sub(lambda found: f"{found[1]}.replicas[{int(found[2]) + by}]", name)


def without_numbers(table: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a table of variables with one row for the variables of all replicas."""
    rows = {_variable(row["name"]): row for row in table}
    return [{**row, "name": name} for name, row in rows.items()]


def shared_out(saved: Mapping[str, Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Return saved tensors for the current number of replicas, by the names of `named`.

    The same number: each replica gets its own. A different number: the first replica gets sums,
    and zeros go to the others; means go to all; other values, like seeds, are those of the first.

    >>> total = tf.Variable(0.0, aggregation=tf.VariableAggregation.SUM)
    >>> two = {f"total.replicas[{i}]": tf.constant(float(i + 1)) for i in (0, 1)}
    >>> float(shared_out(two, {"total": total})["total"])
    3.0
    """
    before, found = _grouped(saved), dict(saved)
    for variable, names in _grouped(named).items():
        values = [saved[name] for name in before.get(variable, ())]
        if not values or len(values) == len(names):
            continue
        kind = getattr(named[names[0]], "aggregation", None)
        if kind == tf.VariableAggregation.SUM:
            rest = [tf.zeros_like(values[0])] * (len(names) - 1)
            found |= dict(zip(names, [tf.add_n(values), *rest], strict=True))
        else:
            is_mean = kind == tf.VariableAggregation.MEAN
            found |= dict.fromkeys(names, tf.add_n(values) / len(values) if is_mean else values[0])
    return found


def _grouped(names: Mapping[str, Any]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(_variable(name), []).append(name)
    # By number, where there is one: `[10]` comes after `[9]`.
    return {of: sorted(group, key=lambda name: (len(name), name)) for of, group in groups.items()}


def _variable(name: str) -> str:
    found = _NAME.fullmatch(name)
    return name if found is None else found[1]


RESIDENT_SHARE = 0.25
"""The share of the device's memory that a data set may take; larger ones are streamed."""


def local_replicas(strategy: tf.distribute.Strategy) -> int:
    """Return how many replicas are in this process."""
    return strategy.num_replicas_in_sync // tensorflow_internals.workers(strategy)[0]


def fits_on_device(tensors: Any) -> bool:
    """Return whether tensors take at most `RESIDENT_SHARE` of the device's memory."""
    bytes_needed = sum(
        leaf.shape.num_elements() * leaf.dtype.size for leaf in tf.nest.flatten(tensors)
    )
    return bytes_needed <= RESIDENT_SHARE * device_memory_bytes()


def device_memory_bytes() -> int:
    """Return the memory of the GPU that steps run on, or of the machine."""
    return tensorflow_internals.gpu_memory_bytes() or os.sysconf("SC_PAGE_SIZE") * os.sysconf(
        "SC_PHYS_PAGES"
    )


def count_examples(batch: Any) -> Any:
    """Return how many examples a batch has: the length of its first tensor that has one."""
    for leaf in tf.nest.flatten(batch):
        if isinstance(leaf, tf.SparseTensor):
            return tf.cast(leaf.dense_shape[0], tf.int32)
        if isinstance(leaf, tf.RaggedTensor):
            return tf.cast(leaf.nrows(), tf.int32)
        if leaf.shape.rank != 0:
            return tf.shape(leaf)[0]
    return tf.constant(1)


def known_example_count(batch_spec: Any) -> int | None:
    """Return how many examples every batch of this spec has; None if batches may differ."""
    for spec in tf.nest.flatten(batch_spec):
        if spec.shape.rank != 0:
            return spec.shape[0]
    return None


def share(batch: Any, index: int, count: int) -> Any:
    """Return the part of a global batch that replica `index` of `count` works on.

    Shares differ by one example at most; a batch with fewer examples than replicas leaves some
    replicas without any.
    """

    def cut(leaf: Any) -> Any:
        # Each by its own length: datasets zipped after they were batched may have different ones.
        examples = count_examples(leaf)
        begin, end = examples * index // count, examples * (index + 1) // count
        if isinstance(leaf, tf.SparseTensor):
            begin64, end64 = tf.cast(begin, tf.int64), tf.cast(end, tf.int64)
            zeros = tf.zeros_like(leaf.dense_shape[1:])
            start = tf.concat([[begin64], zeros], axis=0)
            size = tf.concat([[end64 - begin64], leaf.dense_shape[1:]], axis=0)
            return tf.sparse.slice(leaf, start, size)
        return leaf if leaf.shape.rank == 0 else leaf[begin:end]

    return tf.nest.map_structure(cut, batch)


def part_here(batch: Any, strategy: tf.distribute.Strategy) -> Any:
    """Return the part of a global batch that the replicas of this process work on."""
    workers, worker = tensorflow_internals.workers(strategy)
    return batch if workers == 1 else share(batch, worker, workers)


def split(batch: Any, strategy: tf.distribute.Strategy, *, here: bool = False) -> Any:
    """Return a global batch as one value per replica; with one replica the batch itself.

    `here`: the batch is only for the replicas of this process.
    """
    count = local_replicas(strategy) if here else strategy.num_replicas_in_sync
    if count == 1:
        return batch
    return strategy.experimental_distribute_values_from_function(
        lambda context: share(batch, context.replica_id_in_sync_group % count, count)
    )


def sums_over_replicas(strategy: tf.distribute.Strategy, values: Any) -> Any:
    """Return the sum of each scalar of a nest over all replicas."""
    leaves, total = tf.nest.flatten(values), tf.distribute.ReduceOp.SUM
    if tensorflow_internals.workers(strategy)[0] > 1:
        # In one message: a message costs as much as thousands of numbers in it.
        reduced = strategy.extended.batch_reduce_to(total, [(leaf, leaf) for leaf in leaves])
        summed = [strategy.experimental_local_results(leaf)[0] for leaf in reduced]
    else:
        summed = [strategy.reduce(total, leaf, axis=None) for leaf in leaves]
    return tf.nest.pack_sequence_as(values, summed)


def mean_over_replicas(strategy: tf.distribute.Strategy, value: Any) -> Any:
    """Return the mean of one tensor per replica."""
    if tensorflow_internals.workers(strategy)[0] > 1:
        return strategy.reduce(tf.distribute.ReduceOp.MEAN, value, axis=None)
    return tf.reduce_mean(tf.stack(strategy.experimental_local_results(value)), axis=0)


def require_tensorflow_backend() -> None:
    """Raise if Keras runs on another backend."""
    backend = keras.backend.backend()
    if backend != "tensorflow":
        raise ConfigurationError(
            "Loopwright trains with TensorFlow.",
            expected="Keras with the TensorFlow backend",
            received=f"the {backend} backend",
            do="set KERAS_BACKEND=tensorflow before importing keras",
        )
