"""Batches made by Python code: generators, iterables, `keras.utils.PyDataset`."""

import copy
import functools
import itertools
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, final

import keras
import numpy as np
import tensorflow as tf

from loopwright.compat.lines import describe, shape_text
from loopwright.data import batches as nests
from loopwright.data.batches import batch_digest, weighted
from loopwright.data.bottleneck import slow_batches
from loopwright.data.readers import CountedReader, StreamReader, UnsavedReader
from loopwright.data.source import Data, Epochs, Feed, Objection
from loopwright.data.stream import LENGTH, STEPS, endless
from loopwright.errors import DataError
from loopwright.step_warnings import warn_at_call


def order_of(source: keras.utils.PyDataset, seed: int, epoch: int, shuffle: bool) -> Iterable[int]:
    """Return the batch indices of an epoch, in an order that is a function of seed and epoch."""
    count = source.num_batches
    if count is None:
        return itertools.count()
    if not shuffle:
        return range(count)
    return np.random.default_rng([seed & 0xFFFFFFFFFFFFFFFF, epoch]).permutation(count).tolist()


def read_ahead(source: keras.utils.PyDataset, order: Iterable[int]) -> Iterator[Any]:
    """Yield the batches of a PyDataset in `order`; its workers make some of them in advance."""
    if source.workers <= 1:
        yield from (source[index] for index in order)
        return
    pool, ahead = ThreadPoolExecutor(source.workers, "loopwright-data"), deque[Any]()
    try:
        for index in order:
            ahead.append(pool.submit(source.__getitem__, index))
            if len(ahead) > source.max_queue_size:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
    finally:
        # Stopping early does not wait for batches that would be dropped.
        pool.shutdown(wait=False, cancel_futures=True)


def as_epochs(
    passes: Iterator[Iterator[Any]], steps_per_epoch: int | None, first_step: int = 0
) -> Iterator[Iterator[Any]]:
    """Return one epoch per pass, or epochs of `steps_per_epoch` cut from consecutive passes."""
    if steps_per_epoch is None:
        return passes

    def chain() -> Iterator[Any]:
        for batches in passes:
            first = list(itertools.islice(batches, 1))
            if not first:
                # An exhausted generator yields nothing in later passes either.
                return
            yield from itertools.chain(first, batches)

    batches = chain()
    lengths = itertools.chain([steps_per_epoch - first_step], itertools.repeat(steps_per_epoch))
    return (itertools.islice(batches, length) for length in lengths)


@final
class Batches(Data):
    """Batches from a generator, an iterable or a `PyDataset`.

    A generator object can be read once; an iterable or a `PyDataset` is read again each epoch.
    """

    def __init__(self, source: Any) -> None:
        self._source: Any = source
        self._class_weight: Mapping[int, float] | None = None
        # A generator object continues where it stopped, also in the next call of fit.
        self._once = source if isinstance(source, Iterator) else None
        self.can_be_read_again = self._once is None
        if isinstance(source, keras.utils.PyDataset) and self._source.use_multiprocessing:
            warn_at_call(
                "PyDataset(use_multiprocessing=True): Loopwright makes batches in threads, which "
                "keeps their order and needs no copies of the dataset."
            )

    def attributes(self) -> dict[str, Any]:
        """Return the attributes of the source."""
        return getattr(self._source, "__dict__", {})

    def weighted_by_class(self, class_weight: Mapping[int, float]) -> "Batches":
        """Return the data with a sample weight for each label, by its class."""
        weighted = copy.copy(self)
        weighted._class_weight = class_weight
        return weighted

    def objection_to_resume(self) -> Objection | None:
        """Return why the batches cannot be read again from any position."""
        source = self._source
        if not isinstance(source, keras.utils.PyDataset):
            kind = f"a {type(source).__name__} (a generator or another iterable)"
            return Objection(
                f"{kind} can only be read from its beginning",
                "pass arrays, a PyDataset or a tf.data.Dataset",
            )
        plain = keras.utils.PyDataset
        hooks = ("on_epoch_begin", "on_epoch_end")
        own = [hook for hook in hooks if getattr(type(source), hook) is not getattr(plain, hook)]
        if own and not getattr(source, "resumable", False):
            return Objection(
                f"{type(source).__name__}.{own[0]} may change the batches",
                f"if it does not, declare that with the attribute {type(source).__name__}.resumable"
                " = True; otherwise pass arrays, or compute each batch from its index alone",
            )
        if self._is_random():
            return Objection(
                f"{type(source).__name__} returns a different batch each time index 0 is read",
                "compute each batch from its index alone: draw with "
                "np.random.default_rng([seed, index]), or augment in the step",
                loses_position=False,
            )
        return None

    def _is_random(self) -> bool:
        """Return whether a PyDataset returns two different batches for one index."""
        try:
            first, second = (batch_digest(self._tensors(self._source[0])) for _ in range(2))
        except Exception:  # an invalid batch is reported when it is trained on
            return False
        return first != second

    def fingerprint(self) -> dict[str, Any]:
        """Return the type of the source and its number of batches."""
        length = getattr(self._source, "num_batches", None)
        return {"source": type(self._source).__name__, "length": length}

    def training(self, epochs: Epochs) -> Feed:
        """Return all epochs to come; the order of a PyDataset is a function of seed and epoch."""
        source, batches = self._source, epochs.after.batches
        if not isinstance(source, keras.utils.PyDataset):
            passes = (self._again() for _ in itertools.count())
            cut = as_epochs(passes, epochs.steps_per_epoch)
            converted = (map(self._tensors, epoch) for epoch in cut)
            return _Pipelines(converted, epochs.steps_per_epoch, source, UnsavedReader).feed()
        count = source.num_batches
        length = epochs.steps_per_epoch or count
        if length is None and not epochs.may_be_endless:
            raise DataError(endless("This PyDataset (num_batches is None)", LENGTH))
        read_passes, first = divmod(batches, count) if count else (0, batches)
        numbers = itertools.count(epochs.first_epoch + read_passes)
        orders = (order_of(source, epochs.seed, number, epochs.shuffle) for number in numbers)
        orders = itertools.chain([itertools.islice(next(orders), first, None)], orders)
        passes = (read_ahead(source, order) for order in orders)
        cut = as_epochs(passes, epochs.steps_per_epoch, batches % (length or 1))

        def begin(epoch: Iterator[Any]) -> Iterator[Any]:
            source.on_epoch_begin()
            return map(self._tensors, epoch)

        return _Pipelines(map(begin, cut), length, source, hook=source.on_epoch_end).feed()

    def one_pass(self, *, steps: int | None) -> Feed:
        """Return the batches of one epoch."""
        batches, length = self._again, None
        if isinstance(self._source, keras.utils.PyDataset):
            length = self._source.num_batches
            if steps is None and length is None:
                raise DataError(endless("This PyDataset (num_batches is None)", STEPS))
            order = itertools.count() if length is None else range(length)
            batches = functools.partial(read_ahead, self._source, itertools.islice(order, steps))
        known = [count for count in (length, steps) if count is not None]
        epoch = map(self._tensors, itertools.islice(batches(), steps))
        return _Pipelines(iter([epoch]), min(known, default=None), self._source).feed()

    def _again(self) -> Iterator[Any]:
        return iter(self._source) if self._once is None else self._once

    def _tensors(self, batch: Any) -> Any:
        if isinstance(batch, tuple | list):
            # Some generators yield (x, y, None) for batches without weights.
            batch = tuple(itertools.takewhile(lambda part: part is not None, batch))
            batch = batch[0] if len(batch) == 1 else batch
        with tf.device("CPU"):
            batch = nests.convert(batch, "batch")
            return batch if self._class_weight is None else weighted(batch, self._class_weight)


@final
class _Pipelines:
    """Epochs of Python batches as `tf.data` pipelines, at least one for each epoch.

    A pipeline has one fixed spec. A batch that does not match ends the pipeline early; the batch is
    kept, and a new pipeline with a wider spec continues with it. No pipeline reads beyond its
    epoch: the next batch of a generator is still there for the next call of fit.
    """

    def __init__(
        self,
        epochs: Iterator[Iterator[Any]],
        steps_per_epoch: int | None,
        source: Any,
        reader: Callable[..., StreamReader] = CountedReader,
        hook: Callable[[], None] = lambda: None,
    ) -> None:
        self._epochs, self.steps_per_epoch, self.source = epochs, steps_per_epoch, source
        self.reader, self.hook = reader, hook
        self._begun: Iterator[Any] | None = None
        self._given = 0
        self.failure: Exception | None = None
        self._wider: tuple[Any, str] | None = None

    def feed(self) -> Feed:
        """Return a feed with the spec of the first batch, which is read now and kept."""
        try:
            epoch = next(self._epochs)
            batch = next(epoch)
        except StopIteration:
            raise DataError(
                "The data gave no batch.",
                expected="at least one batch",
                received="an iterator that ended at once (a generator can be read only once)",
                do="create a new generator, or pass an object whose __iter__ creates one",
            ) from None
        except Exception as error:
            raise self._failed(error) from error
        for path, leaf in nests.leaves(batch, "batch"):
            if leaf.shape.rank == 0:
                raise DataError(
                    "The data was never batched.",
                    expected="batches: the first axis of every array counts examples",
                    received=f"{path} is a single number",
                    do="yield arrays of several examples, not one example at a time",
                )
        self._begun = itertools.chain([batch], epoch)
        return self._feed(nests.with_any_batch_size(_spec(batch)))

    def reopened(self) -> tuple[Feed, str] | None:
        """Return the feed with the wider spec, and what changed, if a batch did not match."""
        if self._wider is None:
            return None
        (spec, change), self._wider = self._wider, None
        return self._feed(spec), change

    def _feed(self, spec: Any) -> Feed:
        # TensorFlow never releases this function; the data and its workers have to be released
        # with the feed.
        pipelines = weakref.proxy(self)
        pipeline = tf.data.Dataset.from_generator(
            lambda: pipelines._matching(spec), output_signature=spec
        )
        return _BatchesFeed(
            batch_spec=spec,
            end="each epoch",
            steps_per_epoch=self.steps_per_epoch,
            dataset=lambda: pipeline.prefetch(1),
            pipelines=self,
        )

    def _matching(self, spec: Any) -> Iterator[Any]:
        try:
            epoch, self._begun = self._begun or next(self._epochs), None
            for batch in epoch:
                wider, change = _widen(spec, _spec(batch))
                if change:
                    self._begun = itertools.chain([batch], epoch)
                    self._wider = (wider, change)
                    return
                self._given += 1
                yield batch
        except Exception as error:
            # Kept for the trainer: raised here, it would arrive wrapped in a TensorFlow error.
            self.failure = self._failed(error)

    def _failed(self, error: Exception) -> DataError:
        number = self._given + 1
        if isinstance(error, DataError):
            failure = DataError(f"Batch {number}: {error}")
        else:
            failure = DataError(
                f"Batch {number} could not be made: {type(error).__name__}: {error}",
                expected="a batch",
                received="an exception from the code that makes the batches",
                do="see the error above, with the line that raised it",
            )
        failure.__cause__ = error
        return failure


@final
@dataclass(frozen=True, kw_only=True)
class _BatchesFeed(Feed):
    """Python batches of one spec."""

    pipelines: _Pipelines

    def open(self) -> StreamReader:
        return self.pipelines.reader(iter(self.dataset()), self.batch_spec, self.end)

    def epoch_ended(self) -> None:
        self.pipelines.hook()

    def failure(self) -> Exception | None:
        return self.pipelines.failure

    def reopened(self) -> tuple[Feed, str] | None:
        return self.pipelines.reopened()

    def bottleneck(self, is_slower_than_step: bool) -> str:
        return slow_batches(self.pipelines.source)


def _widen(spec: Any, seen: Any) -> tuple[Any, str]:
    """Return a spec that matches both, and what had to change; raise if there is none."""
    pairs: list[tuple[Any, Any]] = []
    try:
        tf.nest.assert_same_structure(spec, seen)
        pairs = list(zip(tf.nest.flatten(spec), tf.nest.flatten(seen), strict=True))
        if all(a.is_compatible_with(b) for a, b in pairs):
            return spec, ""
        wider = [
            a.most_specific_common_supertype([b]) if a.shape.rank == b.shape.rank else None
            for a, b in pairs
        ]
    except (TypeError, ValueError):
        wider = [None]
    if any(leaf is None for leaf in wider):
        raise DataError(
            "structure, dtype or rank differs from earlier batches.",
            expected=describe(spec),
            received=describe(seen),
            do="yield batches of the same structure, dtypes and number of axes",
        )
    paths = {id(leaf): path for path, leaf in nests.leaves(spec, "batch")}
    changed = [
        f"{describe(a, paths[id(a)])} became {shape_text(b.shape)}"
        for a, b in pairs
        if not a.is_compatible_with(b)
    ]
    return tf.nest.pack_sequence_as(spec, wider), ", ".join(changed)


def _spec(batch: Any) -> Any:
    return tf.nest.map_structure(tf.type_spec_from_value, batch)
