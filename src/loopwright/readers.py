"""Readers: where a run is in its data."""

from typing import Any, final

import tensorflow as tf

from loopwright.data import Feed
from loopwright.data.source import Resident


@final
class StreamReader:
    """An iterator, which knows its place itself."""

    def __init__(self, feed: Feed) -> None:
        self.iterator: Any = iter(feed.open())
        self.end = feed.end
        self.batch_spec = feed.batch_spec
        self.sizes: set[int] = set()
        """How many examples batches were seen to have: the fewest and the most of each call."""
        self.held: Any = None
        """A batch that was read and has still to be run, within the same call."""

    def stand_in(self, size: int) -> Any:
        """An iterator of this kind that gives batches of zeros for ever: to compile with."""
        batch = tf.nest.map_structure(
            lambda spec: tf.zeros([size, *spec.shape[1:]], spec.dtype), self.batch_spec
        )
        dataset = tf.data.Dataset.from_tensors(0).repeat()
        if self.end == "marked":
            return iter(dataset.map(lambda _: tf.experimental.Optional.from_value(batch)))
        return iter(dataset.map(lambda _: batch))


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

    def advance(self, batches: int) -> None:
        """Goes on; after the last batch of an epoch with the first of the next."""
        self.index += batches
        self._left = None if self._left is None else self._left - batches
        if self.index == self.resident.batches_per_epoch and self._left != 0:
            self.index, self._epoch, self._order = 0, self._epoch + 1, None


Reader = StreamReader | ResidentReader | None
"""None: a step without data."""
