"""Readers: where a run is in its data."""

from dataclasses import dataclass
from typing import Any, final

from loopwright.data import Feed
from loopwright.data.source import Resident


@dataclass(frozen=True)
class StreamReader:
    """An iterator, which knows its place itself."""

    iterator: Any
    end: str


@final
class ResidentReader:
    """An epoch and an index into its order."""

    def __init__(self, resident: Resident) -> None:
        self.resident = resident
        self.index = 0
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


def open_stream(feed: Feed) -> StreamReader:
    """The feed's dataset from its beginning."""
    return StreamReader(iter(feed.open()), feed.end)
