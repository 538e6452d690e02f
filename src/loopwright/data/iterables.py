"""Batches made by Python code: generators, iterables, `keras.utils.PyDataset`."""

import itertools
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, final

import keras
import numpy as np
import tensorflow as tf

from loopwright.data import nests
from loopwright.data.arrays import class_weights
from loopwright.data.source import Data, Feed, mark_epochs
from loopwright.data.stream import endless
from loopwright.errors import DataError, LoopwrightWarning, message
from loopwright.guards import describe


@final
class Batches(Data):
    """Whatever Python code yields batches.

    A generator object can be read once; an iterable or a `PyDataset` is read again each epoch.
    """

    def __init__(self, source: Any, class_weight: Mapping[int, float] | None = None) -> None:
        self._source = source
        self._class_weight = class_weight
        # A generator object goes on where it stopped, also in the next call of fit.
        self._once = iter(source) if isinstance(source, Iterator) else None

    def weighted_by_class(self, class_weight: Mapping[int, float]) -> "Batches":
        """The same batches with sample weights that follow from the class of each label."""
        return Batches(self._source, class_weight)

    def training(
        self, *, seed: int, first_epoch: int, shuffle: bool, steps_per_epoch: int | None
    ) -> Feed:
        """All epochs to come, one after the other."""

        def epoch(number: int) -> Iterator[Any]:
            if isinstance(self._source, keras.utils.PyDataset):
                return _read(self._source, _order(self._source, seed, number, shuffle))
            return self._once or iter(self._source)

        known = steps_per_epoch or _length(self._source)
        if known is None and isinstance(self._source, keras.utils.PyDataset):
            raise DataError(endless("This PyDataset (num_batches is None)", "steps_per_epoch"))
        if known is not None:
            batches = (epoch(number) for number in itertools.count(first_epoch))
            return self._made(_Reader(lambda: _chain(batches)), known)
        numbers = itertools.count(first_epoch)
        return self._made(_Reader(lambda: epoch(next(numbers))), None)

    def one_pass(self, *, steps: int | None) -> Feed:
        """The batches of one epoch."""
        known = _length(self._source)
        if steps is None and known is None and isinstance(self._source, keras.utils.PyDataset):
            raise DataError(endless("This PyDataset (num_batches is None)", "steps"))

        def once() -> Iterator[Any]:
            if isinstance(self._source, keras.utils.PyDataset):
                number = range(known) if known is not None else itertools.count()
                return itertools.islice(_read(self._source, number, ends=False), steps)
            return itertools.islice(self._once or iter(self._source), steps)

        feed = self._made(_Reader(once), known or steps)
        return replace(feed, end="exhausted")

    def _made(self, reader: "_Reader", steps_per_epoch: int | None) -> Feed:
        reader.convert = self._converted
        return reader.feed(reader.first_spec(), steps_per_epoch)

    def _converted(self, batch: Any) -> Any:
        if isinstance(batch, tuple | list):
            # (x, y, None) is how some generators say that there are no weights.
            batch = tuple(itertools.takewhile(lambda part: part is not None, batch))
            batch = batch[0] if len(batch) == 1 else batch
        with tf.device("CPU"):
            batch = nests.convert(batch, "batch")
            if self._class_weight is not None:
                x, y = batch
                batch = (x, y, class_weights(y, self._class_weight))
        return batch


@final
class _Reader:
    """Reads one iterator after the other into a `tf.data` pipeline.

    The pipeline has one fixed spec. A batch that does not fit it ends the pipeline early; the
    batch is kept, and a new pipeline with a wider spec goes on with it.
    """

    def __init__(self, next_iterator: Callable[[], Iterator[Any]]) -> None:
        self.convert: Callable[[Any], Any] = lambda batch: batch
        self._next_iterator = next_iterator
        self._iterator: Iterator[Any] | None = None
        self._pending: deque[Any] = deque()
        self._read = 0
        self._failure: Exception | None = None
        self._wider: tuple[Any, str] | None = None
        self._pipeline = 0

    def first_spec(self) -> Any:
        """The spec of the first batch, which is read and kept for its turn."""
        try:
            batch = self._next_batch()
        except StopIteration:
            raise DataError(
                message(
                    "The data gave no batch.",
                    expected="at least one batch",
                    received="an iterator that ended at once (a generator can be read only once)",
                    do="make a new generator, or pass an object whose __iter__ makes one",
                )
            ) from None
        self._pending.append(batch)
        for path, leaf in nests.leaves(batch, "batch"):
            if leaf.shape.rank == 0:
                raise DataError(
                    message(
                        "The data was never batched.",
                        expected="batches: the first axis of every array counts examples",
                        received=f"{path} is a single number",
                        do="yield arrays of several examples, not one example at a time",
                    )
                )
        return nests.with_any_batch_size(_spec(batch))

    def feed(self, spec: Any, steps_per_epoch: int | None) -> Feed:
        """A pipeline of batches that fit `spec`."""
        self._pipeline += 1
        number = self._pipeline
        dataset = tf.data.Dataset.from_generator(
            lambda: self._fitting(spec, number), output_signature=spec
        )
        end = "exhausted" if steps_per_epoch is not None else "marked"
        return Feed(
            dataset=(dataset if end == "exhausted" else mark_epochs(dataset)).prefetch(1),
            batch_spec=spec,
            end=end,
            steps_per_epoch=steps_per_epoch,
            failure=lambda: self._failure,
            reopened=lambda: self._reopened(steps_per_epoch),
        )

    def _fitting(self, spec: Any, pipeline: int) -> Iterator[Any]:
        # An abandoned pipeline still reads ahead in its own thread: it must find nothing.
        while pipeline == self._pipeline and self._failure is None and self._wider is None:
            try:
                batch = self._pending.popleft() if self._pending else self._next_batch()
            except StopIteration:
                self._iterator = None
                return
            except Exception as error:
                # Kept for the trainer: raised in here, it would arrive wrapped in TensorFlow's.
                self._failure = DataError(
                    message(
                        f"Batch {self._read + 1} could not be made: "
                        f"{type(error).__name__}: {error}",
                        do="see the error above, raised by the code that makes the batches",
                    )
                )
                self._failure.__cause__ = error
                return
            wider, change = _widen(spec, _spec(batch))
            if change:
                self._pending.appendleft(batch)
                self._wider = (wider, change)
                return
            yield batch

    def _next_batch(self) -> Any:
        if self._iterator is None:
            self._iterator = self._next_iterator()
        batch = next(self._iterator)
        self._read += 1
        return self.convert(batch)

    def _reopened(self, steps_per_epoch: int | None) -> tuple[Feed, str] | None:
        if self._wider is None:
            return None
        spec, change = self._wider
        feed = self.feed(spec, steps_per_epoch)
        self._wider = None
        return feed, change


def _widen(spec: Any, seen: Any) -> tuple[Any, str]:
    """A spec that takes both, and what had to change; raises if nothing could take both."""
    try:
        tf.nest.assert_same_structure(spec, seen)
        pairs = list(zip(tf.nest.flatten(spec), tf.nest.flatten(seen), strict=True))
        if all(a.is_compatible_with(b) for a, b in pairs):
            return spec, ""
        wider = [a.most_specific_common_supertype([b]) for a, b in pairs]
    except (TypeError, ValueError):
        wider = [None]
    if any(leaf is None for leaf in wider):
        raise DataError(
            message(
                "A batch is of another kind than the first one.",
                expected=describe(spec),
                received=describe(seen),
                do="yield batches of the same structure, dtypes and number of axes",
            )
        )
    change = f"was {describe(spec)}; now {describe(seen)}"
    return tf.nest.pack_sequence_as(spec, wider), change


def _spec(batch: Any) -> Any:
    return tf.nest.map_structure(tf.type_spec_from_value, batch)


def _length(source: Any) -> int | None:
    if isinstance(source, keras.utils.PyDataset):
        return source.num_batches
    return None


def _order(source: keras.utils.PyDataset, seed: int, epoch: int, shuffle: bool) -> Iterable[int]:
    count = source.num_batches
    if count is None:
        return itertools.count()
    if not shuffle:
        return range(count)
    return np.random.default_rng([seed & 0xFFFFFFFFFFFFFFFF, epoch]).permutation(count).tolist()


def _read(
    source: keras.utils.PyDataset, order: Iterable[int], *, ends: bool = True
) -> Iterator[Any]:
    """The batches of a PyDataset in `order`, some of them made ahead by its workers."""
    if source.use_multiprocessing:
        warnings.warn(
            "PyDataset(use_multiprocessing=True): batches are made by threads here, which keeps "
            "their order and needs no copies of the dataset.",
            LoopwrightWarning,
            stacklevel=2,
        )
    if source.workers <= 1:
        yield from (source[index] for index in order)
    else:
        with ThreadPoolExecutor(source.workers, "loopwright-data") as pool:
            ahead: deque[Any] = deque()
            for index in order:
                ahead.append(pool.submit(source.__getitem__, index))
                if len(ahead) > source.max_queue_size:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
    if ends:
        source.on_epoch_end()


def _chain(iterators: Iterator[Iterator[Any]]) -> Iterator[Any]:
    for iterator in iterators:
        before = True
        for batch in iterator:
            before = False
            yield batch
        if before:
            return
