"""Positions in `tf.data` pipelines: the iterator's own state, or replayed batches."""

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import tensorflow as tf

from loopwright.compat import tensorflow_internals
from loopwright.data.batches import batch_digest
from loopwright.data.reader import End, Read, StreamReader
from loopwright.errors import DataError, message

_ITERATOR, _SEEDS = "data.iterator", "data.seeds[{0}]"


@dataclass(frozen=True)
class Reseeded:
    """The parts of a pipeline that draw new seeds for each pass."""

    parts: Sequence[tf.data.Dataset]
    passes: int
    """The number of passes before this feed."""
    structure: str
    """The kinds of all parts of the pipeline."""


@final
class IteratorReader(StreamReader):
    """A reader that saves and restores the state of its iterator.

    A shuffle draws new seeds for each pass, from a generator that belongs to the dataset.
    TensorFlow saves the generator's position only with an iterator that is inside a pass, and loses
    it between two epochs; with a prefetch, also some batches earlier. So each shuffle gets a second
    iterator, the seed keeper, which is never read and therefore always inside a pass.
    """

    def __init__(self, iterator: Any, keepers: Sequence[Any], batch_spec: Any, end: End) -> None:
        super().__init__(iterator, batch_spec, end)
        self._keepers = keepers

    def state(self) -> dict[str, tf.Tensor]:
        """Return the states of the iterator and of its seed keepers."""
        while True:
            seeds = [tensorflow_internals.iterator_state(keeper) for keeper in self._keepers]
            position = tensorflow_internals.iterator_state(self.iterator)
            after = [tensorflow_internals.iterator_state(keeper) for keeper in self._keepers]
            # A prefetch may begin a pass in between. It fills its buffer and rests.
            if all(map(_are_equal, seeds, after)):
                named = {_SEEDS.format(index): seed for index, seed in enumerate(seeds)}
                return {_ITERATOR: position, **named}

    def restore(self, read: Read, state: Mapping[str, tf.Tensor]) -> None:
        """Restore the states; before the first batch there is nothing to restore."""
        if not read.batches:
            return
        tensorflow_internals.restore_iterator(self.iterator, state[_ITERATOR])
        # Restoring an iterator draws seeds, so the keepers come last.
        _restore_all(self._keepers, [state[_SEEDS.format(i)] for i in range(len(self._keepers))])


@final
class ReplayReader(StreamReader):
    """A reader that reads everything again up to its position, and compares the last batch."""

    def __init__(
        self, iterator: Any, batch_spec: Any, end: End, last: Sequence[Any], elements: int
    ) -> None:
        super().__init__(iterator, batch_spec, end)
        self._last = last
        self.skip(elements)

    def last_digest(self) -> str | None:
        """Return the digest of the last batch; None before the first one."""
        return batch_digest(self._last) if self._last else None

    def restore(self, read: Read, state: Mapping[str, tf.Tensor]) -> None:
        """Raise if the replay did not reproduce the last batch."""
        if self.last_digest() != read.last_digest:
            raise DataError(
                message(
                    "Replaying the data produced different batches.",
                    expected=f"the {read.batches} batches that this run has read before, as "
                    "replay=True says",
                    received="a last batch that differs",
                    do="make the pipeline repeatable (seeds, order of files), or choose another "
                    "run_dir",
                )
            )


def holds_failure(state: Mapping[str, tf.Tensor]) -> bool:
    """Return whether the pipeline had already failed, further ahead, when `state` was taken."""
    return _ITERATOR in state and tensorflow_internals.holds_failure(state[_ITERATOR])


_Beginning = tuple[tf.Tensor | None, list[tf.Tensor]]
"""The states of an iterator that was never read, and of its seed keepers."""

_BEGINNINGS: weakref.WeakKeyDictionary[tf.data.Dataset, dict[str, _Beginning]] = (
    weakref.WeakKeyDictionary()
)
"""By the first part that draws seeds, then by the structure of the pipelines that read from it."""

_LATER: weakref.WeakKeyDictionary[tf.data.Dataset, dict[str, tuple[int, list[tf.Tensor]]]] = (
    weakref.WeakKeyDictionary()
)
"""Likewise: the last number of passes that was asked for, and the states of the seed keepers there.

A later call of `fit` continues from it, instead of drawing the seeds of all passes before again.
"""


def opened(
    make: Callable[[], tf.data.Dataset], end: End, reseeded: Reseeded | None, *, saves_state: bool
) -> tuple[Any, list[Any]]:
    """Return an iterator at the beginning, and a seed keeper for each part that draws seeds.

    The seeds of a shuffle depend on everything that has read from it before: an earlier call of
    fit, a prefetch, the user. Here they depend on the number of passes only, so that a run resumed
    in another process continues in the same order.
    """
    if reseeded is None:
        return iter(make()), []
    known = _BEGINNINGS.setdefault(reseeded.parts[0], {})
    structure = f"{reseeded.structure} {end}"
    if not known:
        known[structure] = _beginning(make, reseeded.parts, saves_state=saves_state)
    position, seeds = known.get(structure) or (None, next(iter(known.values()))[1])
    keepers = [iter(part) for part in reseeded.parts]
    if position is not None and not reseeded.passes:
        iterator = iter(make())
        tensorflow_internals.restore_iterator(iterator, position)
        _restore_all(keepers, seeds)
        return iterator, keepers
    _restore_after(reseeded, structure, keepers, seeds)
    return iter(make()), keepers


def _restore_after(
    reseeded: Reseeded, structure: str, keepers: Sequence[Any], seeds: list[tf.Tensor]
) -> None:
    """Restore seed keepers to where the next iterator begins the pass after `reseeded.passes`."""
    later = _LATER.setdefault(reseeded.parts[0], {})
    passes, states = later.get(structure, (1, seeds))
    if passes > max(1, reseeded.passes):
        passes, states = 1, seeds
    _restore_all(keepers, states)
    if passes < reseeded.passes:
        for _ in range(reseeded.passes - passes):
            for part in reseeded.parts:
                iter(part)  # draws once
        states = [tensorflow_internals.iterator_state(keeper) for keeper in keepers]
        later[structure] = reseeded.passes, states


def _beginning(
    make: Callable[[], tf.data.Dataset], parts: Sequence[tf.data.Dataset], *, saves_state: bool
) -> _Beginning:
    iterator = iter(make()) if saves_state else None
    position = None if iterator is None else tensorflow_internals.iterator_state(iterator)
    keepers = [iter(part) for part in parts]
    if position is not None:
        # As if the keepers had drawn nothing: the first pass has the dataset's own seeds.
        tensorflow_internals.restore_iterator(iterator, position)
    return position, [tensorflow_internals.iterator_state(keeper) for keeper in keepers]


def _restore_all(iterators: Sequence[Any], states: Sequence[tf.Tensor]) -> None:
    for iterator, state in zip(iterators, states, strict=True):
        tensorflow_internals.restore_iterator(iterator, state)


def _are_equal(one: tf.Tensor, other: tf.Tensor) -> bool:
    return bool(tf.io.serialize_tensor(one) == tf.io.serialize_tensor(other))
