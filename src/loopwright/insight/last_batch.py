"""The last batch of an epoch, which may be smaller: reached at once, or not at all."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from loopwright.data.reader import CountedReader, Read, ResidentReader, StreamReader
from loopwright.data.source import Data
from loopwright.errors import DataError
from loopwright.fit.leg import Leg

MOST_SECONDS = 2.0
"""For reading a stream to its end."""


@dataclass(frozen=True)
class Reached:
    """Whether the last batch is the next one that a leg reads."""

    is_next: bool
    words: str
    """Which batch it is, or why it was not reached."""


def move_to_last(leg: Leg, clock: Callable[[], float] = time.perf_counter) -> Reached:
    """Let a leg read the last batch of an epoch next; a stream is read at most some seconds.

    The leg has trained already: its data is open.
    """
    data, reader = leg.request.data, leg.stepper.reader
    if data is None or reader is None:
        return Reached(False, "the step takes no data")
    length = own_length(data) or _counted(data, clock)
    if length is None:
        why = f"the data is endless, or takes more than {MOST_SECONDS:g} s to read"
        return Reached(False, f"not reached: {why}")
    has_number = isinstance(reader, ResidentReader | CountedReader)
    leg.read_again(Read(batches=length - 1 if has_number else 0))
    leg.stepper.start_epoch()
    if not has_number and not _skipped(leg, length - 1, clock):
        return Reached(False, f"not reached: reading {length:,} batches takes too long")
    return Reached(True, f"{length:,} of {length:,}")


def own_length(data: Data) -> int | None:
    """Return how many batches the data has; None if it is not known, or if it is endless."""
    try:
        return data.one_pass(steps=None).steps_per_epoch
    except DataError:  # endless
        return None


def _counted(data: Data, clock: Callable[[], float]) -> int | None:
    """Return how many batches an epoch has, by reading it; None if that takes too long."""
    try:
        feed = data.one_pass(steps=None)
    except DataError:
        return None
    began, count = clock(), 0
    for _ in feed.dataset():
        count += 1
        if clock() - began > MOST_SECONDS:
            return None
    # What failed, or changed its shape, has ended early; training on it says more.
    is_whole = feed.failure() is None and feed.reopened() is None
    return count if is_whole and count else None


def _skipped(leg: Leg, batches: int, clock: Callable[[], float]) -> bool:
    """Skip batches, ever more at a time; return False if that takes too long."""
    reader = leg.stepper.reader
    if not isinstance(reader, StreamReader):
        return batches == 0
    began, done, some = clock(), 0, 1
    while done < batches:
        if clock() - began > MOST_SECONDS:
            return False
        some = min(2 * some, batches - done)
        reader.skip(some)
        done += some
    return True
