"""Arrays: data in memory, in an order that is a function of seed and epoch."""

from collections.abc import Callable, Mapping
from typing import Any, final

import numpy as np
import tensorflow as tf

from loopwright.data import nests
from loopwright.data.source import Data, Feed, ceil_div
from loopwright.errors import DataError, message

ExampleMap = Callable[[Any, int], Any]
"""f(example, seed) -> example, with a seed that is a function of (seed, epoch, index)."""


@final
class Arrays(Data):
    """NumPy arrays, tensors, pandas frames, in tuples or dicts; all of the same length.

    `map=f` changes every example with NumPy code of one's own: `f(example, seed)` gets one
    example and an integer that depends on the run's seed, the epoch and the example only, so that
    `np.random.default_rng(seed)` in it draws the same again when a run is repeated.

    >>> import numpy as np
    >>> data = Arrays(np.zeros((10, 3)), np.arange(10), map=lambda e, seed: (e[0] + seed % 7, e[1]))
    >>> len(data)
    10
    """

    def __init__(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        map: ExampleMap | None = None,
    ) -> None:
        named = {"x": x, "y": y, "sample_weight": sample_weight}
        named = {name: value for name, value in named.items() if value is not None}
        with tf.device("CPU"):
            converted = {name: nests.convert(value, name) for name, value in named.items()}
        self._batch = nests.pack(**converted)
        self._map = map
        self._begin, self._end = 0, _common_length(converted)
        self._batch_size = 32

    def __len__(self) -> int:
        return self._end - self._begin

    def in_batches_of(self, batch_size: int) -> "Arrays":
        """The same data, in batches of this size; the last one may be smaller."""
        if batch_size < 1:
            raise DataError(
                message(
                    "A batch has at least one example.",
                    expected="batch_size of 1 or more",
                    received=f"batch_size={batch_size}",
                    do="leave batch_size out (32), or set it to a positive number",
                )
            )
        return self._copy(_batch_size=batch_size)

    def split(self, fraction: float) -> "tuple[Arrays, Arrays]":
        """The data without its last `fraction`, and that last part, as Keras splits it."""
        at = self._begin + int(len(self) * (1.0 - fraction))
        if not 0 < fraction < 1 or at in (self._begin, self._end):
            raise DataError(
                message(
                    "validation_split leaves one part empty.",
                    expected="a number between 0 and 1 that leaves examples on both sides",
                    received=f"validation_split={fraction} of {len(self)} examples",
                    do="choose another fraction, or pass validation_data",
                )
            )
        # Validation data is not augmented: the map belongs to training.
        return self._copy(_end=at), self._copy(_begin=at, _map=None)

    def weighted_by_class(self, class_weight: Mapping[int, float]) -> "Arrays":
        """The data with sample weights that follow from the class of each label."""
        if not isinstance(self._batch, tuple) or len(self._batch) != 2:
            raise DataError(
                message(
                    "class_weight needs labels, and no sample_weight beside it.",
                    expected="fit(x, y, class_weight={0: 1.0, 1: 5.0})",
                    received="no labels" if not isinstance(self._batch, tuple) else "sample_weight",
                    do="pass y, and only one of class_weight and sample_weight",
                )
            )
        x, y = self._batch
        return self._copy(_batch=(x, y, class_weights(y, class_weight)))

    def training(
        self, *, seed: int, first_epoch: int, shuffle: bool, steps_per_epoch: int | None
    ) -> Feed:
        """All epochs to come, one after the other."""

        def indices(epoch: Any) -> Any:
            order = tf.range(self._begin, self._end, dtype=tf.int64)
            if not shuffle:
                return order
            pair = tf.stack([tf.constant(seed, tf.int64), epoch])
            return tf.random.experimental.stateless_shuffle(order, seed=pair)

        def batches(epoch: Any) -> tf.data.Dataset:
            order = tf.data.Dataset.from_tensor_slices(indices(epoch)).batch(self._batch_size)
            return order.map(lambda some: (epoch, some))

        epochs = tf.data.Dataset.range(first_epoch, np.iinfo(np.int64).max)
        dataset = self._gathered(epochs.flat_map(batches), seed)
        own_length = ceil_div(len(self), self._batch_size)
        return Feed(dataset, dataset.element_spec, "never", steps_per_epoch or own_length)

    def one_pass(self, *, steps: int | None) -> Feed:
        """The examples in their own order, once."""
        order = tf.data.Dataset.range(self._begin, self._end).batch(self._batch_size)
        order = order.take(-1 if steps is None else steps)
        dataset = self._gathered(order.map(lambda some: (tf.constant(0, tf.int64), some)), 0)
        own_length = ceil_div(len(self), self._batch_size)
        return Feed(
            dataset, dataset.element_spec, "exhausted", min(steps or own_length, own_length)
        )

    def _gathered(self, chosen: tf.data.Dataset, seed: int) -> tf.data.Dataset:
        def gather(_: Any, some: Any) -> Any:
            return tf.nest.map_structure(lambda leaf: nests.gather(leaf, some), self._batch)

        if self._map is not None:
            mapped = _mapped(self._map, self._batch, self._begin, seed)
            chosen = chosen.map(lambda epoch, some: mapped(epoch, some, gather(epoch, some)))
            return chosen.prefetch(2)
        options = tf.data.Options()
        # Gathering is cheap: one thread of its own beats being tuned among all threads.
        options.threading.private_threadpool_size = 1
        options.autotune.enabled = False
        return chosen.map(gather).prefetch(4).with_options(options)

    def _copy(self, **changes: Any) -> "Arrays":
        copy = object.__new__(Arrays)
        copy.__dict__ |= self.__dict__ | changes
        return copy


def class_weights(labels: Any, class_weight: Mapping[int, float]) -> Any:
    """One weight per label, as Keras assigns them; classes that are not named weigh 1."""
    if len(labels.shape) > 1:
        labels = tf.argmax(labels, -1) if labels.shape[-1] != 1 else tf.squeeze(labels, -1)
    if labels.dtype.is_floating:
        labels = tf.round(labels)
    labels = tf.cast(labels, tf.int64)
    weights = tf.ones_like(labels, tf.float32)
    for number, weight in class_weight.items():
        weights = tf.where(labels == number, tf.constant(weight, tf.float32), weights)
    return nests.to_floatx(weights)


def example_seed(seed: int, epoch: int, index: int) -> int:
    """The seed of one example in one epoch.

    >>> example_seed(0, 0, 1) == example_seed(0, 0, 1) != example_seed(0, 1, 1)
    True
    """
    # SeedSequence takes non-negative integers only.
    entropy = [seed & 0xFFFFFFFFFFFFFFFF, epoch, index]
    return int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0])


def _mapped(function: ExampleMap, batch: Any, first: int, seed: int) -> Callable[..., Any]:
    def numpy_examples(examples: Any, count: int) -> list[Any]:
        flat = [np.asarray(leaf) for leaf in tf.nest.flatten(examples)]
        return [tf.nest.pack_sequence_as(batch, [f[i] for f in flat]) for i in range(count)]

    sample = tf.nest.map_structure(lambda leaf: nests.gather(leaf, [first]), batch)
    made = nests.convert(
        function(numpy_examples(sample, 1)[0], example_seed(seed, 0, first)), "map"
    )
    specs = [tf.TensorSpec([None, *leaf.shape], leaf.dtype) for leaf in tf.nest.flatten(made)]

    def apply(epoch: Any, some: Any, *flat: Any) -> list[Any]:
        examples = numpy_examples(tf.nest.pack_sequence_as(batch, list(flat)), len(some))
        results = [
            function(example, example_seed(seed, int(epoch), int(index)))
            for example, index in zip(examples, some, strict=True)
        ]
        columns = zip(*(tf.nest.flatten(result) for result in results), strict=True)
        dtypes = [spec.dtype.as_numpy_dtype for spec in specs]
        return [np.stack(c).astype(d, copy=False) for c, d in zip(columns, dtypes, strict=True)]

    def run(epoch: Any, some: Any, examples: Any) -> Any:
        flat = tf.nest.flatten(examples)
        results = tf.numpy_function(apply, [epoch, some, *flat], [spec.dtype for spec in specs])
        for result, spec in zip(results, specs, strict=True):
            result.set_shape(spec.shape)
        return tf.nest.pack_sequence_as(made, results)

    return run


def _common_length(named: Mapping[str, Any]) -> int:
    lengths: dict[str, int] = {}
    for name, nest in named.items():
        for path, leaf in nests.leaves(nest, name):
            if leaf.shape.rank == 0:
                raise DataError(
                    message(
                        f"{path} is a single number, not an array of examples.",
                        expected="arrays whose first axis counts examples",
                        received=f"{path} = {leaf.numpy()!r}",
                        do="pass np.array([...]); lists mean several inputs, as in Keras",
                    )
                )
            lengths[path] = nests.length(leaf)
    if len(set(lengths.values())) > 1:
        raise DataError(
            message(
                "The arrays have different lengths.",
                expected="the same number of examples in each",
                received=", ".join(f"{path}: {count}" for path, count in lengths.items()),
                do="check how they were cut or joined",
            )
        )
    if not any(lengths.values()):
        raise DataError(
            message(
                "The data is empty.",
                expected="at least one example",
                received=", ".join(f"{path}: 0 examples" for path in lengths) or "no arrays",
                do="check the file, filter or split that the arrays come from",
            )
        )
    return next(iter(lengths.values()))
