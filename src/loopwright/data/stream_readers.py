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


@dataclass(frozen=True)
class _First:
    """The first pipeline that drew from some parts."""

    structure: str
    parts: Sequence[weakref.ref[tf.data.Dataset]]
    position: tf.Tensor
    """The state of its iterator before the first batch."""

    def is_made_of(self, parts: Sequence[tf.data.Dataset], structure: str) -> bool:
        """Return whether a pipeline of these parts, in this order, begins at the same position."""
        return self.structure == structure and [ref() for ref in self.parts] == list(parts)


_FIRST: weakref.WeakKeyDictionary[tf.data.Dataset, _First] = weakref.WeakKeyDictionary()
"""By the first of its parts."""

_DRAWN: weakref.WeakKeyDictionary[tf.data.Dataset, tuple[tf.Tensor, int, tf.Tensor]] = (
    weakref.WeakKeyDictionary()
)
"""By part: the state of its seed keeper after one pass; and after the number of passes that was
last asked for, from where a later call of `fit` continues, instead of drawing all seeds again.
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
    parts, structure = reseeded.parts, f"{reseeded.structure} {end}"
    _note_beginning(make, parts, structure, saves_state=saves_state)
    keepers = [iter(part) for part in parts]
    first = None if reseeded.passes else _FIRST.get(parts[0])
    if first is None or not first.is_made_of(parts, structure):
        for part, keeper in zip(parts, keepers, strict=True):
            _restore_after(part, keeper, reseeded.passes)
        return iter(make()), keepers
    iterator = iter(make())
    tensorflow_internals.restore_iterator(iterator, first.position)
    _restore_all(keepers, [_DRAWN[part][0] for part in parts])
    return iterator, keepers


def _note_beginning(
    make: Callable[[], tf.data.Dataset],
    parts: Sequence[tf.data.Dataset],
    structure: str,
    *,
    saves_state: bool,
) -> None:
    """Note the seeds of the parts not seen before, and where the pipeline begins if all are new."""
    unseen = [part for part in parts if part not in _DRAWN]
    is_first = saves_state and len(unseen) == len(parts)
    iterator = iter(make()) if is_first else None
    position = None if iterator is None else tensorflow_internals.iterator_state(iterator)
    keepers = [iter(part) for part in unseen]
    if position is not None:
        # As if the keepers had drawn nothing: the first pass has the dataset's own seeds.
        tensorflow_internals.restore_iterator(iterator, position)
        _FIRST[parts[0]] = _First(structure, [weakref.ref(part) for part in parts], position)
    for part, keeper in zip(unseen, keepers, strict=True):
        seeds = tensorflow_internals.iterator_state(keeper)
        _DRAWN[part] = seeds, 1, seeds


def _restore_after(part: tf.data.Dataset, keeper: Any, passes: int) -> None:
    """Restore a seed keeper to where the next iterator begins the pass after `passes`."""
    after_one, known, state = _DRAWN[part]
    if known > max(1, passes):
        known, state = 1, after_one
    tensorflow_internals.restore_iterator(keeper, state)
    if known < passes:
        for _ in range(passes - known):
            iter(part)  # draws once
        _DRAWN[part] = after_one, passes, tensorflow_internals.iterator_state(keeper)


def _restore_all(iterators: Sequence[Any], states: Sequence[tf.Tensor]) -> None:
    for iterator, state in zip(iterators, states, strict=True):
        tensorflow_internals.restore_iterator(iterator, state)


def _are_equal(one: tf.Tensor, other: tf.Tensor) -> bool:
    return bool(tf.io.serialize_tensor(one) == tf.io.serialize_tensor(other))
