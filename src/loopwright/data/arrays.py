"""Arrays: data in memory, in an order that is a function of seed and epoch."""

import copy
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import tensorflow as tf

from loopwright.data import batches as nests
from loopwright.data.batches import check_labelled, sampled_digest, weighted
from loopwright.data.bottleneck import slow_arrays
from loopwright.data.readers import Resident
from loopwright.data.source import Data, Epochs, Feed
from loopwright.distribute import replicas
from loopwright.errors import DataError

ExampleMap = Callable[[Any, int], Any]
"""f(example, seed) -> example, with a seed that is a function of (seed, epoch, index)."""


def require_dense(named: Mapping[str, Any]) -> None:
    """Raise if examples are not dense NumPy arrays, which `map` needs."""
    for name, nest in named.items():
        for path, leaf in nests.leaves(nest, name):
            if not isinstance(leaf, tf.Tensor):
                raise DataError(
                    "map changes one example at a time, as NumPy arrays.",
                    expected="dense arrays",
                    received=f"{path} is a {type(leaf).__name__}",
                    do="convert it to a dense array, or apply the change in a tf.data.Dataset",
                )


def mapped(
    function: ExampleMap, batch: Any, first: int, seed: int, failures: list[DataError]
) -> Callable[..., Any]:
    """Return `run(epoch, indices, examples)`, which calls `function` for each example of a batch.

    `function` is called once with the example `first`, to learn the specs of its results.
    """

    def numpy_examples(examples: Any, count: int) -> list[Any]:
        flat = [np.asarray(leaf) for leaf in tf.nest.flatten(examples)]
        return [tf.nest.pack_sequence_as(batch, [f[i] for f in flat]) for i in range(count)]

    def one(example: Any, epoch: int, index: int) -> Any:
        # SeedSequence takes non-negative integers only.
        seeds = np.random.SeedSequence([seed & 0xFFFFFFFFFFFFFFFF, epoch, index])
        try:
            return function(example, int(seeds.generate_state(1, np.uint64)[0]))
        except Exception as error:
            what = f"map failed for example {index}: {type(error).__name__}: {error}"
            raise DataError(
                what, do="see the error above, raised by the function passed as map"
            ) from error

    def stacked(column: Any, spec: Any) -> Any:
        arrays = [np.asarray(value) for value in column]
        shapes = {array.shape for array in arrays} | {tuple(spec.shape[1:])}
        if len(shapes) > 1:
            raise DataError(
                "map returned examples of different shapes.",
                expected="one shape for all examples, that of the first one",
                received=" and ".join(map(str, sorted(shapes))),
                do="crop, resize or pad them in map",
            )
        return np.stack(arrays).astype(spec.dtype.as_numpy_dtype, copy=False)

    sample = tf.nest.map_structure(lambda leaf: nests.gather(leaf, [first]), batch)
    made = nests.convert(one(numpy_examples(sample, 1)[0], 0, first), "map")
    specs = [tf.TensorSpec([None, *leaf.shape], leaf.dtype) for leaf in tf.nest.flatten(made)]

    def apply(epoch: Any, some: Any, *flat: Any) -> list[Any]:
        examples = numpy_examples(tf.nest.pack_sequence_as(batch, list(flat)), len(some))
        try:
            results = [
                one(e, int(epoch), int(index)) for e, index in zip(examples, some, strict=True)
            ]
            columns = zip(*(tf.nest.flatten(result) for result in results), strict=True)
            return [stacked(column, spec) for column, spec in zip(columns, specs, strict=True)]
        except DataError as failure:
            # Kept for the trainer: raised here, it would arrive wrapped in a TensorFlow error.
            failures.append(failure)
            raise

    def run(epoch: Any, some: Any, examples: Any) -> Any:
        flat = tf.nest.flatten(examples)
        results = tf.numpy_function(apply, [epoch, some, *flat], [spec.dtype for spec in specs])
        for result, spec in zip(results, specs, strict=True):
            result.set_shape(spec.shape)
        return tf.nest.pack_sequence_as(made, results)

    return run


@final
class Arrays(Data):
    """NumPy arrays, tensors, pandas frames, in tuples or dicts; all of the same length.

    A list is several inputs, as in Keras; a tuple passed alone is `(x, y)` or `(x, y, weights)`.

    `map=f` changes every example with your own NumPy code: `f(example, seed)` gets one example and
    an integer that depends only on the run's seed, the epoch and the example, so that
    `np.random.default_rng(seed)` draws the same numbers when a run is repeated.

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
        if "sample_weight" in named and "y" not in named:
            raise DataError(
                "sample_weight needs y.",
                expected="fit(x, y, sample_weight)",
                received="sample_weight without y",
                do="pass y; for a step without labels put the weights into x: "
                "fit({'x': x, 'weight': sample_weight})",
            )
        with tf.device("CPU"):
            converted = {name: nests.convert(value, name) for name, value in named.items()}
        self._begin, self._end = 0, _common_length(converted)
        # As the step receives it; a list alone is several inputs, not inputs and labels.
        parts = tuple(converted.values())
        self._batch: Any = parts if len(parts) > 1 or isinstance(x, list) else converted["x"]
        if map is not None:
            require_dense(converted)
        self._map = map
        self._class_weight: Mapping[int, float] | None = None
        self._batch_size = 32

    def __len__(self) -> int:
        return self._end - self._begin

    @property
    def batch_size(self) -> int:
        """The number of examples in a batch; the last one of an epoch may have fewer."""
        return self._batch_size

    @property
    def is_mapped(self) -> bool:
        """Whether the step gets the results of `map` instead of the examples."""
        return self._map is not None

    def is_of(self, other: "Arrays") -> bool:
        """Return whether these are examples of the same arrays, as `split` leaves them."""
        return self._batch is other._batch

    def rows(self, places: Any) -> Any:
        """Return the examples at these indices, counted from 0, as one batch."""
        chosen = tf.constant(places, tf.int64) + self._begin
        return tf.nest.map_structure(lambda leaf: nests.gather(leaf, chosen), self._batch)

    @property
    def row_bytes(self) -> int:
        """The approximate size of an example in bytes."""

        def size(leaf: Any) -> int:
            if not isinstance(leaf, tf.Tensor) or leaf.dtype == tf.string:
                return 2**15  # gathering such a row takes as long as this many bytes of numbers
            return leaf.dtype.size * (leaf.shape[1:].num_elements() or 1)

        return max(1, sum(map(size, tf.nest.flatten(self._batch))))

    def in_batches_of(self, batch_size: int) -> "Arrays":
        """Return the same data in batches of this size; the last one may be smaller."""
        if batch_size < 1:
            raise DataError(
                "A batch has at least one example.",
                expected="batch_size of 1 or more",
                received=f"batch_size={batch_size}",
                do="leave batch_size out for the default of 32, or pass a positive number",
            )
        return self._copy(_batch_size=batch_size)

    def split(self, fraction: float) -> "tuple[Arrays, Arrays]":
        """Return the data without its last `fraction`, and that last part, as Keras splits it."""
        at = self._begin + int(len(self) * (1.0 - fraction))
        if not 0 < fraction < 1 or at in (self._begin, self._end):
            raise DataError(
                "validation_split leaves one part empty.",
                expected="a number between 0 and 1 that leaves examples on both sides",
                received=f"validation_split={fraction} of {len(self)} examples",
                do="choose another fraction, or pass validation_data",
            )
        # Map and class weights belong to training; validation uses the unchanged data.
        return self._copy(_end=at), self._copy(_begin=at, _map=None, _class_weight=None)

    def weighted_by_class(self, class_weight: Mapping[int, float]) -> "Arrays":
        """Return the data with a sample weight for each label, by its class."""
        check_labelled(self._batch)
        return self._copy(_class_weight=class_weight)

    def objection_to_resume(self) -> None:
        """Return None: the order is a function of seed and epoch."""

    def fingerprint(self) -> dict[str, Any]:
        """Return counts, specs, and a digest of some rows."""
        leaves = tf.nest.flatten(self._batch, expand_composites=True)
        return {
            "examples": len(self),
            "batch_size": self._batch_size,
            "leaves": [f"{leaf.dtype.name}{tuple(leaf.shape)}" for leaf in leaves],
            "bytes": sampled_digest(leaves),
        }

    def training(self, epochs: Epochs) -> Feed:
        """Return all epochs to come, in an order that is a function of seed and epoch."""
        own_length = math.ceil(len(self) / self._batch_size)
        epochs_read, first_index = divmod(epochs.after.batches, own_length)
        first_epoch = epochs.first_epoch + epochs_read

        def order(epoch: Any) -> Any:
            indices = tf.range(self._begin, self._end, dtype=tf.int64)
            if not epochs.shuffle:
                return indices
            pair = tf.stack([tf.constant(epochs.seed, tf.int64), tf.cast(epoch, tf.int64)])
            with tf.device("CPU"):  # the same order on every device
                return tf.random.experimental.stateless_shuffle(indices, seed=pair)

        def batches(epoch: Any) -> tf.data.Dataset:
            some = tf.data.Dataset.from_tensor_slices(order(epoch)).batch(self._batch_size)
            return some.map(lambda some: (epoch, some))

        failures: list[DataError] = []

        def dataset() -> tf.data.Dataset:
            numbers = tf.data.Dataset.range(first_epoch, np.iinfo(np.int64).max)
            chosen = numbers.flat_map(batches).skip(first_index)
            return self._gathered(chosen, epochs.seed, self._class_weight, failures)

        begin = {"first_epoch": first_epoch, "first_index": first_index}
        resident = self._resident(order, self._class_weight, **begin)
        return _EpochsFeed(
            batch_spec=dataset().element_spec if resident is None else resident.batch_spec,
            steps_per_epoch=epochs.steps_per_epoch or own_length,
            resident=resident,
            dataset=dataset,
            failures=failures,
            order=lambda epoch: order(epochs.first_epoch + epoch),
            data=self,
            in_words=self._in_words,
            map=self._map,
        )

    def _in_words(self, some: Any) -> str:
        """List examples by index, and those among them that hold NaN or infinity."""
        listed = ", ".join(map(str, some[:8])) + (", ..." if len(some) > 8 else "")
        bad: list[str] = []
        names = ("x", "y", "sample_weight")
        parts = self._batch if isinstance(self._batch, tuple) else (self._batch,)
        named = [nests.leaves(part, name) for name, part in zip(names, parts, strict=False)]
        for path, leaf in itertools.chain.from_iterable(named):
            if isinstance(leaf, tf.Tensor) and leaf.dtype.is_floating:
                rows = tf.math.is_finite(tf.gather(leaf, some))
                whole = tf.reduce_all(tf.reshape(rows, [len(some), -1]), axis=1).numpy()
                bad += [f"example {number} of {path}" for number in some[~whole]]
        found = f"; NaN or infinity is in {', '.join(bad[:5])}" if bad else ""
        return f"examples {listed}{found}"

    def one_pass(self, *, steps: int | None) -> Feed:
        """Return the examples in their own order, once."""
        length = math.ceil(len(self) / self._batch_size)
        length = length if steps is None else min(steps, length)

        def dataset() -> tf.data.Dataset:
            order = tf.data.Dataset.range(self._begin, self._end).batch(self._batch_size)
            chosen = order.take(length).map(lambda some: (tf.constant(0, tf.int64), some))
            return self._gathered(chosen, 0, None, [])

        def order(_: int) -> Any:
            return tf.range(self._begin, self._end, dtype=tf.int64)

        resident = self._resident(order, None, batches=length)
        spec = dataset().element_spec if resident is None else resident.batch_spec
        return Feed(batch_spec=spec, dataset=dataset, steps_per_epoch=length, resident=resident)

    def _resident(
        self,
        order: Callable[[int], Any],
        class_weight: Mapping[int, float] | None,
        *,
        first_epoch: int = 0,
        first_index: int = 0,
        batches: int | None = None,
    ) -> Resident | None:
        leaves = tf.nest.flatten(self._batch)
        if self._map is not None or not all(isinstance(leaf, tf.Tensor) for leaf in leaves):
            return None
        if not replicas.fits_on_device(self._batch):
            return None
        batch = self._batch if class_weight is None else weighted(self._batch, class_weight)
        return Resident(
            # With a GPU, this copies them there once.
            tensors=tf.nest.map_structure(tf.identity, batch),
            batch_size=self._batch_size,
            order=order,
            examples=len(self),
            first_epoch=first_epoch,
            first_index=first_index,
            batches=batches,
        )

    def _gathered(
        self,
        chosen: tf.data.Dataset,
        seed: int,
        class_weight: Mapping[int, float] | None,
        failures: list[DataError],
    ) -> tf.data.Dataset:
        change = self._map and mapped(self._map, self._batch, self._begin, seed, failures)

        def gather(epoch: Any, some: Any) -> Any:
            batch = tf.nest.map_structure(lambda leaf: nests.gather(leaf, some), self._batch)
            batch = change(epoch, some, batch) if change else batch
            return batch if class_weight is None else weighted(batch, class_weight)

        if change:
            return chosen.map(gather).prefetch(2)
        options = tf.data.Options()
        # Gathering is cheap: one private thread is faster than autotuning over all threads.
        options.threading.private_threadpool_size = 1
        options.autotune.enabled = False
        return chosen.map(gather).prefetch(4).with_options(options)

    def _copy(self, **changes: Any) -> "Arrays":
        changed = copy.copy(self)
        vars(changed).update(changes)
        return changed


@final
@dataclass(frozen=True, kw_only=True)
class _EpochsFeed(Feed):
    """All epochs of arrays."""

    failures: list[DataError]
    """Errors of `map`, in the order in which they were raised."""
    order: Callable[[int], Any]
    """The indices of all examples, by the number of the epoch in this call of `fit`."""
    data: Arrays
    in_words: Callable[[Any], str]
    """Lists examples by index, and those that hold NaN."""
    map: ExampleMap | None

    def failure(self) -> DataError | None:
        return next(iter(self.failures), None)

    def _place(self, number: int) -> tuple[int, int]:
        return divmod(number, math.ceil(len(self.data) / self.data.batch_size))

    def batch_in_words(self, number: int) -> str:
        epoch, index = self._place(number)
        listed = self.in_words(np.array(self.examples(number)))
        return f"batch {index + 1} of epoch {epoch + 1}: {listed}"

    def examples(self, number: int) -> Sequence[int]:
        epoch, index = self._place(number)
        size = self.data.batch_size
        return self.order(epoch)[index * size :][:size].numpy().tolist()

    def bottleneck(self, is_slower_than_step: bool) -> str:
        return slow_arrays(self.map)


def _common_length(named: Mapping[str, Any]) -> int:
    lengths: dict[str, int] = {}
    for name, nest in named.items():
        for path, leaf in nests.leaves(nest, name):
            if leaf.shape.rank == 0:
                raise DataError(
                    f"{path} is a single number, not an array of examples.",
                    expected="arrays whose first axis counts examples",
                    received=f"{path} = {leaf.numpy()!r}",
                    do="pass np.array([...]); lists mean several inputs, as in Keras",
                )
            lengths[path] = nests.length(leaf)
    if len(set(lengths.values())) > 1:
        raise DataError(
            "The arrays have different lengths.",
            expected="the same number of examples in each",
            received=", ".join(f"{path}: {count}" for path, count in lengths.items()),
            do="check how they were sliced or concatenated",
        )
    if not any(lengths.values()):
        raise DataError(
            "The data is empty.",
            expected="at least one example",
            received=", ".join(f"{path}: 0 examples" for path in lengths) or "no arrays",
            do="check the file, filter or split that the arrays come from",
        )
    return next(iter(lengths.values()))
