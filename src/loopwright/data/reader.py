"""Readers: where a run is in its data."""

import weakref
from collections.abc import Mapping, Sequence
from typing import Any, final

import tensorflow as tf

from loopwright.compat import tensorflow_internals
from loopwright.data.source import Feed, Resident

_ITERATOR, _SEEDS = "data.iterator", "data.seeds[{0}]"
_MOST_ELEMENTS_IN_A_CALL = 256


@final
class StreamReader:
    """An iterator, which knows its place itself.

    A shuffle draws other seeds for each pass, from a generator that belongs to the dataset.
    TensorFlow saves its place only with an iterator that is inside a pass, and loses it between two
    epochs; with a prefetch, also some batches before. So an iterator of its own stands in front of
    each shuffle: never read, it is always inside.
    """

    def __init__(self, feed: Feed) -> None:
        self.iterator, self._seeds = _opened(feed)
        self.end = feed.end
        self.batch_spec = feed.batch_spec
        self.sizes: set[int] = set()
        """How many examples batches were seen to have: the fewest and the most of each call."""
        self.held: Any = None
        """A batch that was read and has still to be run, within the same call."""
        _leave(self.iterator, feed.skip)

    def state(self) -> dict[str, tf.Tensor]:
        """Its place, as tensors that can be saved; for a feed whose `position` is "iterator"."""
        while True:
            seeds = [tensorflow_internals.iterator_state(keeper) for keeper in self._seeds]
            place = tensorflow_internals.iterator_state(self.iterator)
            after = [tensorflow_internals.iterator_state(keeper) for keeper in self._seeds]
            # A prefetch may begin a pass in between. It fills its buffer and rests.
            if all(map(_are_equal, seeds, after)):
                named = {_SEEDS.format(index): seed for index, seed in enumerate(seeds)}
                return {_ITERATOR: place, **named}

    def restore(self, state: Mapping[str, tf.Tensor]) -> None:
        """Goes to where `state` was taken, of a reader of the same feed; it may hold more."""
        tensorflow_internals.restore_iterator(self.iterator, state[_ITERATOR])
        # Restoring an iterator draws seeds, so what is drawn next comes last.
        _restore_all(self._seeds, [state[_SEEDS.format(i)] for i in range(len(self._seeds))])

    def pass_over(self) -> None:
        """Leaves the next batch out."""
        _leave(self.iterator, 1)

    def stand_in(self, size: int) -> Any:
        """An iterator of this kind that gives batches of zeros for ever: to compile with."""
        batch = tf.nest.map_structure(
            lambda spec: tf.zeros([size, *spec.shape[1:]], spec.dtype), self.batch_spec
        )
        dataset = tf.data.Dataset.from_tensors(0).repeat()
        if self.end == "marked":
            return iter(dataset.map(lambda _: tf.experimental.Optional.from_value(batch)))
        return iter(dataset.map(lambda _: batch))


def holds_failure(state: Mapping[str, tf.Tensor]) -> bool:
    """Whether a reader had already failed, further on, when its state was taken."""
    return _ITERATOR in state and tensorflow_internals.holds_failure(state[_ITERATOR])


@final
class ResidentReader:
    """An epoch and an index into its order."""

    def __init__(self, resident: Resident) -> None:
        self.resident = resident
        self.index = resident.first_index
        self._epoch = resident.first_epoch
        self._left = resident.batches
        self._order: Any = None

    @property
    def order(self) -> Any:
        """The indices of the examples in the order of this epoch."""
        if self._order is None:
            self._order = self.resident.order(self._epoch)
        return self._order

    @property
    def batches_left(self) -> int:
        """How many batches may be read before the order changes or the data ends."""
        in_epoch = self.resident.batches_per_epoch - self.index
        return in_epoch if self._left is None else min(in_epoch, self._left)

    def pass_over(self) -> None:
        """Leaves the next batch out."""
        self.advance(1)

    def advance(self, batches: int) -> None:
        """Goes on; after the last batch of an epoch with the first of the next."""
        self.index += batches
        self._left = None if self._left is None else self._left - batches
        if self.index == self.resident.batches_per_epoch and self._left != 0:
            self.index, self._epoch, self._order = 0, self._epoch + 1, None


Reader = StreamReader | ResidentReader | None
"""None: a step without data."""


_Beginning = tuple[tf.Tensor | None, list[tf.Tensor]]
"""The state of an iterator that was never read, and of those that keep its seeds."""

_BEGINNINGS: weakref.WeakKeyDictionary[tf.data.Dataset, dict[str, _Beginning]] = (
    weakref.WeakKeyDictionary()
)
"""Of the pipelines that read from a part that draws seeds, by their structure."""


def _opened(feed: Feed) -> tuple[Any, list[Any]]:
    """An iterator at the beginning of the feed, and one for each part that draws seeds.

    Where a shuffle is in its seeds depends on who has read from it before: an earlier call of fit,
    a prefetch, a person. Here it depends on the number of passes only, so that a run that goes on
    in another process goes on in the same order.
    """
    reseeded = feed.reseeded
    if reseeded is None or feed.position == "none":
        return iter(feed.open()), []
    known = _BEGINNINGS.setdefault(reseeded.parts[0], {})
    structure = f"{reseeded.structure} {feed.end}"
    if not known:
        known[structure] = _beginning(feed, reseeded.parts)
    place, seeds = known.get(structure) or (None, next(iter(known.values()))[1])
    iterator, keepers = iter(feed.open()), [iter(part) for part in reseeded.parts]
    if place is not None:
        tensorflow_internals.restore_iterator(iterator, place)
    _restore_all(keepers, seeds)
    if place is None or reseeded.passes:
        for _ in range(reseeded.passes - 1):
            for part in reseeded.parts:
                iter(part)  # draws once
        iterator = iter(feed.open())
    return iterator, keepers


def _beginning(feed: Feed, parts: Sequence[tf.data.Dataset]) -> _Beginning:
    iterator = iter(feed.open()) if feed.position == "iterator" else None
    place = None if iterator is None else tensorflow_internals.iterator_state(iterator)
    keepers = [iter(part) for part in parts]
    if place is not None:
        # As if the keepers had drawn nothing: the first pass is that of the dataset's own.
        tensorflow_internals.restore_iterator(iterator, place)
    return place, [tensorflow_internals.iterator_state(keeper) for keeper in keepers]


def _restore_all(iterators: Sequence[Any], states: Sequence[tf.Tensor]) -> None:
    for iterator, state in zip(iterators, states, strict=True):
        tensorflow_internals.restore_iterator(iterator, state)


def _are_equal(one: tf.Tensor, other: tf.Tensor) -> bool:
    return bool(tf.io.serialize_tensor(one) == tf.io.serialize_tensor(other))


def _leave(iterator: Any, elements: int) -> None:
    """Reads elements and throws them away, some at a time, so that Ctrl-C is heard."""

    def read(iterator: Any, count: Any) -> Any:
        def one(done: Any) -> Any:
            with tf.control_dependencies(tf.nest.flatten(iterator.get_next_as_optional())):
                return done + 1

        return tf.while_loop(lambda done: done < count, one, [tf.constant(0)])

    function = tensorflow_internals.compiled(read)
    for done in range(0, elements, _MOST_ELEMENTS_IN_A_CALL):
        function(iterator, tf.constant(min(elements - done, _MOST_ELEMENTS_IN_A_CALL)))
