"""Readers: a position in the data that can be saved, restored and moved forward.

Of arrays it is a number; of a `tf.data` pipeline the iterator's own state, or replayed batches.
"""

import math
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final

import tensorflow as tf

from loopwright.compat import tensorflow_internals
from loopwright.data.batches import batch_digest
from loopwright.errors import DataError
from loopwright.loop.schedule import Read

_MOST_ELEMENTS_IN_A_CALL = 256
_ITERATOR, _SEEDS = "data.iterator", "data.seeds[{0}]"

End = Literal["exhausted", "marked", "each epoch"]
"""How the end of an epoch of unknown length shows: the iterator runs out; an empty Optional; the
iterator runs out after every epoch and is opened again for the next one."""


class Reader(ABC):
    """Reads batches in order and owns its position among them.

    The position is the number of batches read, which `Read` counts, plus whatever `state` returns.
    A feed made with `Epochs(after=read)` opens its reader after those batches, so a reader
    that needs nothing but the number has no state.
    """

    survives_failure: ClassVar[bool] = False
    """Whether the position is still valid after a batch could not be read."""

    @property
    @abstractmethod
    def largest_batch(self) -> int | None:
        """The number of examples in the largest batch read so far; None if unknown."""

    @abstractmethod
    def skip(self, batches: int) -> None:
        """Move forward without training on these batches."""

    def state(self) -> dict[str, tf.Tensor]:
        """Return the part of the position that a number of batches does not determine."""
        return {}

    def last_digest(self) -> str | None:
        """Return the digest of the last batch read, if a replay has to reproduce it."""
        return None

    def restore(self, read: Read, state: Mapping[str, tf.Tensor]) -> None:
        """Return to the position after `read`, where `state` was taken; `state` may hold more."""
        return


class StreamReader(Reader, ABC):
    """Reads from a `tf.data` iterator, which compiled loops advance themselves."""

    def __init__(self, iterator: Any, batch_spec: Any, end: End) -> None:
        self.iterator, self.batch_spec = iterator, batch_spec
        self.end: End = end
        self.sizes: set[int] = set()
        """Numbers of examples seen in batches: the smallest and the largest of each call."""
        self.held: Any = None
        """A batch that was read but not run yet, within the same call."""

    @property
    def largest_batch(self) -> int | None:
        """The largest of the sizes seen."""
        return max(self.sizes, default=None)

    def note_sizes(self, *sizes: int) -> None:
        """Add numbers of examples seen in batches."""
        self.sizes.update(sizes)

    def hold(self, batch: Any) -> None:
        """Hold a batch for a later step of this call."""
        self.held = batch

    def take_held(self) -> Any:
        """Return the batch that is held, to be run now."""
        batch, self.held = self.held, None
        return batch

    def skip(self, batches: int) -> None:
        """Read and drop elements, a limited number per call so that Ctrl-C takes effect."""

        def read(iterator: Any, count: Any) -> Any:
            def one(done: Any) -> Any:
                with tf.control_dependencies(tf.nest.flatten(iterator.get_next_as_optional())):
                    return done + 1

            return tf.while_loop(lambda done: done < count, one, [tf.constant(0)])

        function = tensorflow_internals.compiled(read)
        for done in range(0, batches, _MOST_ELEMENTS_IN_A_CALL):
            function(self.iterator, tf.constant(min(batches - done, _MOST_ELEMENTS_IN_A_CALL)))

    def zeros(self, size: int) -> Any:
        """Return an endless iterator of the same type over batches of zeros, to compile with."""
        batch = tf.nest.map_structure(
            lambda spec: tf.zeros([size, *spec.shape[1:]], spec.dtype), self.batch_spec
        )
        dataset = tf.data.Dataset.from_tensors(0).repeat()
        if self.end == "marked":
            return iter(dataset.map(lambda _: tf.experimental.Optional.from_value(batch)))
        return iter(dataset.map(lambda _: batch))


@final
class HeldReader(StreamReader):
    """A reader that yields one batch again and again, with the types of the reader it came from."""

    def __init__(self, batch: Any, like: StreamReader) -> None:
        end: End = like.end

        def with_spec(leaf: Any, spec: Any) -> Any:
            is_dense = isinstance(leaf, tf.Tensor)
            return tf.compat.v1.placeholder_with_default(leaf, spec.shape) if is_dense else leaf

        def held() -> Any:
            # Of the spec that the loops were traced for: they are not traced again.
            again = tf.nest.map_structure(with_spec, batch, like.batch_spec)
            return tf.experimental.Optional.from_value(again) if like.end == "marked" else again

        dataset = tf.data.Dataset.from_tensors(0).repeat().map(lambda _: held())
        super().__init__(iter(dataset), like.batch_spec, end)


@final
class CountedReader(StreamReader):
    """A reader whose position is the number of batches read."""

    survives_failure = True


@final
class UnsavedReader(StreamReader):
    """A reader whose position cannot be saved: a resumed run starts its epoch again."""


@dataclass(frozen=True)
class Resident:
    """Arrays on the device, for loops that gather their own batches.

    They yield the batches of the feed's dataset, in the same order.
    """

    tensors: Any
    batch_size: int
    order: Callable[[int], Any]
    """The indices of all examples in the order of an epoch."""
    examples: int
    first_epoch: int = 0
    first_index: int = 0
    """The first batch to read of that epoch."""
    batches: int | None = None
    """The total number of batches; None: epochs repeat without end."""

    @property
    def batch_spec(self) -> Any:
        """The spec of a batch, with the length of the first axis left open."""
        return tf.nest.map_structure(
            lambda leaf: tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype), self.tensors
        )

    @property
    def batches_per_epoch(self) -> int:
        """The number of batches in an epoch; the last may be smaller."""
        return math.ceil(self.examples / self.batch_size)


@final
class ResidentReader(Reader):
    """Reads arrays on the device: its position is an epoch and an index into its order."""

    survives_failure = True

    def __init__(self, resident: Resident) -> None:
        self.resident = resident
        self.index = resident.first_index
        self._epoch = resident.first_epoch
        self._left = resident.batches
        self._order: Any = None

    @property
    def order(self) -> Any:
        """The indices of the examples in the order of the current epoch."""
        if self._order is None:
            self._order = self.resident.order(self._epoch)
        return self._order

    @property
    def largest_batch(self) -> int:
        """The batch size."""
        return self.resident.batch_size

    @property
    def batches_left(self) -> int:
        """The number of batches until the order changes or the data ends."""
        in_epoch = self.resident.batches_per_epoch - self.index
        return in_epoch if self._left is None else min(in_epoch, self._left)

    def next_batch(self) -> Any:
        """Return the batch that comes next, without moving."""
        begin = self.index * self.resident.batch_size
        places = self.order[begin : begin + self.resident.batch_size]
        return tf.nest.map_structure(lambda leaf: tf.gather(leaf, places), self.resident.tensors)

    def skip(self, batches: int) -> None:
        """Move forward, one batch at a time."""
        for _ in range(batches):
            self.advance(1)

    def advance(self, batches: int) -> None:
        """Move to after the batches that a loop has run, at most `batches_left`."""
        self.index += batches
        self._left = None if self._left is None else self._left - batches
        if self.index == self.resident.batches_per_epoch and self._left != 0:
            self.index, self._epoch, self._order = 0, self._epoch + 1, None


AnyReader = StreamReader | ResidentReader | None
"""What a compiled loop reads from; None: a step without data."""


# --- pipelines ---


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
        for index, keeper in enumerate(self._keepers):
            tensorflow_internals.restore_iterator(keeper, state[_SEEDS.format(index)])


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
                "Replaying the data produced different batches.",
                expected=f"the {read.batches} batches that this run has read before, as "
                "replay=True says",
                received="a last batch that differs",
                do="make the pipeline repeatable (seeds, order of files), or choose another "
                "run_dir",
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
    for part, keeper in zip(parts, keepers, strict=True):
        tensorflow_internals.restore_iterator(keeper, _DRAWN[part][0])
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


def _are_equal(one: tf.Tensor, other: tf.Tensor) -> bool:
    return bool(tf.io.serialize_tensor(one) == tf.io.serialize_tensor(other))
