"""Batches made by Python code: generators, iterables, `keras.utils.PyDataset`."""

import copy
import functools
import itertools
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, final

import keras
import numpy as np
import tensorflow as tf

from loopwright.compat.error_messages import describe, shape_text
from loopwright.data import batches as nests
from loopwright.data.batches import batch_digest, weighted
from loopwright.data.bottleneck import slow_batches
from loopwright.data.source import NOTHING_READ, Data, Feed, Objection, Read, cannot_go_on
from loopwright.data.stream import STEPS, endless
from loopwright.errors import DataError, message
from loopwright.step_warnings import warn_at_call


def order_of(source: keras.utils.PyDataset, seed: int, epoch: int, shuffle: bool) -> Iterable[int]:
    """The batches of an epoch by number, in a function of seed and epoch."""
    count = source.num_batches
    if count is None:
        return itertools.count()
    if not shuffle:
        return range(count)
    return np.random.default_rng([seed & 0xFFFFFFFFFFFFFFFF, epoch]).permutation(count).tolist()


def read_ahead(source: keras.utils.PyDataset, order: Iterable[int]) -> Iterator[Any]:
    """The batches of a PyDataset in `order`, some of them made ahead by its workers."""
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
        # Somebody who stops in the middle does not wait for batches that nobody will see.
        pool.shutdown(wait=False, cancel_futures=True)


def with_hooks(
    source: keras.utils.PyDataset, epochs: Iterator[Iterator[Any]]
) -> Iterator[Iterator[Any]]:
    """The epochs, each announced to the PyDataset before it is read."""
    for epoch in epochs:
        source.on_epoch_begin()
        yield epoch


def as_epochs(
    passes: Iterator[Iterator[Any]], steps_per_epoch: int | None, first_step: int = 0
) -> Iterator[Iterator[Any]]:
    """Each pass as an epoch, or epochs of `steps_per_epoch` that go on where the last stopped."""
    if steps_per_epoch is None:
        return passes
    batches = _chain(passes)
    lengths = itertools.chain([steps_per_epoch - first_step], itertools.repeat(steps_per_epoch))
    return (itertools.islice(batches, length) for length in lengths)


def written_by_person(source: keras.utils.PyDataset) -> set[str]:
    """The attributes that the person's own classes define."""
    own = type(source).__mro__[: type(source).__mro__.index(keras.utils.PyDataset)]
    return {name for cls in own for name in vars(cls)}


def _chain(passes: Iterator[Iterator[Any]]) -> Iterator[Any]:
    for batches in passes:
        first = True
        for batch in batches:
            first = False
            yield batch
        if first:
            # A generator that was read to its end gives nothing, however often it is asked.
            return


@final
class Batches(Data):
    """Whatever Python code yields batches.

    A generator object can be read once; an iterable or a `PyDataset` is read again each epoch.
    """

    def __init__(self, source: Any) -> None:
        self._source: Any = source
        self._class_weight: Mapping[int, float] | None = None
        # A generator object goes on where it stopped, also in the next call of fit.
        self._once = source if isinstance(source, Iterator) else None
        if isinstance(source, keras.utils.PyDataset) and self._source.use_multiprocessing:
            warn_at_call(
                "PyDataset(use_multiprocessing=True): batches are made by threads here, which "
                "keeps their order and needs no copies of the dataset."
            )

    @property
    def can_be_read_again(self) -> bool:
        """Not a generator object."""
        return self._once is None

    def weighted_by_class(self, class_weight: Mapping[int, float]) -> "Batches":
        """The same batches with sample weights that follow from the class of each label."""
        weighted = copy.copy(self)
        weighted._class_weight = class_weight
        return weighted

    def objection_to_resume(self) -> Objection | None:
        """What cannot be read again from any place."""
        source = self._source
        if not isinstance(source, keras.utils.PyDataset):
            kind = f"a {type(source).__name__} (a generator or another iterable)"
            return cannot_go_on(
                f"{kind} gives its batches one after the other, from the beginning",
                "give arrays, a PyDataset or a tf.data.Dataset",
            )
        own = [n for n in ("on_epoch_begin", "on_epoch_end") if n in written_by_person(source)]
        if own and not getattr(source, "resumable", False):
            return cannot_go_on(
                f"{type(source).__name__}.{own[0]} may change what batches it gives",
                f"if it does not, say so with the attribute {type(source).__name__}.resumable = "
                "True; else give arrays, or compute each batch from its index alone",
            )
        if self._is_random():
            return cannot_go_on(
                f"{type(source).__name__} gives another batch each time index 0 is read",
                "compute each batch from its index alone: draw with "
                "np.random.default_rng([seed, index]), or augment in the step",
                loses_position=False,
            )
        return None

    def _is_random(self) -> bool:
        """Return whether a PyDataset gives two batches for one index."""
        try:
            first, second = (batch_digest(self._tensors(self._source[0])) for _ in range(2))
        except Exception:  # what is wrong with a batch is reported when it is trained on
            return False
        return first != second

    def fingerprint(self) -> dict[str, Any]:
        """What it is, and how many batches it has."""
        length = getattr(self._source, "num_batches", None)
        return {"source": type(self._source).__name__, "length": length}

    def training(
        self,
        *,
        seed: int,
        first_epoch: int,
        shuffle: bool,
        steps_per_epoch: int | None,
        after: Read = NOTHING_READ,
    ) -> Feed:
        """All epochs to come, one after the other."""
        numbers = itertools.count(first_epoch)
        source = self._source
        if not isinstance(source, keras.utils.PyDataset):
            epochs = as_epochs((self._again() for _ in numbers), steps_per_epoch)
            converted = map(self._converted, epochs)
            return _Reader(converted, steps_per_epoch, source, position="none").feed()
        length = steps_per_epoch or source.num_batches
        if length is None:
            raise DataError(endless("This PyDataset (num_batches is None)", "steps_per_epoch"))
        count = source.num_batches
        read_passes, first = divmod(after.batches, count) if count else (0, after.batches)
        numbers = itertools.count(first_epoch + read_passes)
        orders = (order_of(source, seed, number, shuffle) for number in numbers)
        orders = itertools.chain([itertools.islice(next(orders), first, None)], orders)
        passes = (read_ahead(source, order) for order in orders)
        cut = as_epochs(passes, steps_per_epoch, after.batches % max(length, 1))
        epochs = map(self._converted, with_hooks(source, cut))
        return _Reader(epochs, length, source, epoch_ended=source.on_epoch_end).feed()

    def one_pass(self, *, steps: int | None) -> Feed:
        """The batches of one epoch."""
        batches, length = self._again, None
        if isinstance(self._source, keras.utils.PyDataset):
            length = self._source.num_batches
            if steps is None and length is None:
                raise DataError(endless("This PyDataset (num_batches is None)", STEPS))
            order = itertools.count() if length is None else range(length)
            batches = functools.partial(read_ahead, self._source, itertools.islice(order, steps))
        known = [count for count in (length, steps) if count is not None]
        epoch = self._converted(itertools.islice(batches(), steps))
        return _Reader(iter([epoch]), min(known, default=None), self._source).feed()

    def _again(self) -> Iterator[Any]:
        return iter(self._source) if self._once is None else self._once

    def _converted(self, epoch: Iterator[Any]) -> Iterator[Any]:
        return map(self._tensors, epoch)

    def _tensors(self, batch: Any) -> Any:
        if isinstance(batch, tuple | list):
            # (x, y, None) is how some generators say that there are no weights.
            batch = tuple(itertools.takewhile(lambda part: part is not None, batch))
            batch = batch[0] if len(batch) == 1 else batch
        with tf.device("CPU"):
            batch = nests.convert(batch, "batch")
            return batch if self._class_weight is None else weighted(batch, self._class_weight)


@final
class _Reader:
    """Reads epochs of Python batches into `tf.data` pipelines, at least one for each.

    A pipeline has one fixed spec. A batch that does not fit it ends the pipeline early; the
    batch is kept, and a new pipeline with a wider spec goes on with it. None reads beyond its
    epoch: what a generator would have given next is still there for the next call of fit.
    """

    def __init__(
        self,
        epochs: Iterator[Iterator[Any]],
        steps_per_epoch: int | None,
        source: Any,
        epoch_ended: Callable[[], None] = lambda: None,
        position: Literal["index", "none"] = "index",
    ) -> None:
        self._epochs, self._bottleneck = epochs, functools.partial(slow_batches, source)
        self._position: Literal["index", "none"] = position
        self._steps_per_epoch = steps_per_epoch
        self._epoch_ended = epoch_ended
        self._begun: Iterator[Any] | None = None
        self._given = 0
        self._failure: Exception | None = None
        self._wider: tuple[Any, str] | None = None

    def feed(self) -> Feed:
        """The batches, in pipelines that fit the first one, which is read and kept for its turn."""
        try:
            epoch = next(self._epochs)
            batch = next(epoch)
        except StopIteration:
            raise DataError(
                message(
                    "The data gave no batch.",
                    expected="at least one batch",
                    received="an iterator that ended at once (a generator can be read only once)",
                    do="make a new generator, or pass an object whose __iter__ makes one",
                )
            ) from None
        except Exception as error:
            raise self._failed(error) from error
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
        self._begun = itertools.chain([batch], epoch)
        return self._feed(nests.with_any_batch_size(_spec(batch)))

    def _feed(self, spec: Any) -> Feed:
        # TensorFlow never lets go of this function; the data and its workers have to end with
        # the feed.
        reader = weakref.proxy(self)
        dataset = tf.data.Dataset.from_generator(
            lambda: reader._fitting(spec), output_signature=spec
        )
        return Feed(
            open=lambda: dataset.prefetch(1),
            batch_spec=spec,
            end="each epoch",
            steps_per_epoch=self._steps_per_epoch,
            epoch_ended=self._epoch_ended,
            failure=lambda: self._failure,
            reopened=self._reopened,
            position=self._position,
            bottleneck=lambda _: self._bottleneck(),
        )

    def _fitting(self, spec: Any) -> Iterator[Any]:
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
            # Kept for the trainer: raised in here, it would arrive wrapped in TensorFlow's.
            self._failure = self._failed(error)

    def _failed(self, error: Exception) -> DataError:
        number = self._given + 1
        if isinstance(error, DataError):
            failure = DataError(f"Batch {number}: {error}")
        else:
            failure = DataError(
                message(
                    f"Batch {number} could not be made: {type(error).__name__}: {error}",
                    expected="a batch",
                    received="an exception from the code that makes the batches",
                    do="see the error above, with the line that raised it",
                )
            )
        failure.__cause__ = error
        return failure

    def _reopened(self) -> tuple[Feed, str] | None:
        if self._wider is None:
            return None
        (spec, change), self._wider = self._wider, None
        return self._feed(spec), change


def _widen(spec: Any, seen: Any) -> tuple[Any, str]:
    """A spec that takes both, and what had to change; raises if nothing could take both."""
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
            message(
                "it is of another kind than the ones before.",
                expected=describe(spec),
                received=describe(seen),
                do="yield batches of the same structure, dtypes and number of axes",
            )
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
