"""The contract of every kind of data: a feed for training, and one for a single pass."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from loopwright.data.readers import CountedReader, End, Resident, StreamReader
from loopwright.errors import DataError, message
from loopwright.exactness import BEST_EFFORT
from loopwright.loop.schedule import NOTHING_READ, Read


@dataclass(frozen=True, kw_only=True)
class Feed:
    """Batches in order: their spec, how to read them, and how to describe them.

    The position of its reader is the number of batches read. A kind of data for which that is
    not enough, or that can say more about its batches, overrides these methods.
    """

    batch_spec: Any
    dataset: Callable[[], tf.data.Dataset]
    """Makes the pipeline; a loop that gathers its own batches never needs it."""
    end: End = "exhausted"
    steps_per_epoch: int | None = None
    resident: Resident | None = None
    """The same batches for loops that gather their own, where the data allows it."""
    is_share: bool = False
    """Whether this is one worker's part of each batch, and other workers have the rest."""

    def open(self) -> StreamReader:
        """Return a reader at the first batch."""
        return CountedReader(iter(self.dataset()), self.batch_spec, self.end)

    def epoch_ended(self) -> None:
        """Run what the data has to do after the last step of an epoch of known length."""
        return

    def failure(self) -> Exception | None:
        """Return the exception of Python code because of which the batches ran out."""
        return None

    def reopened(self) -> "tuple[Feed, str] | None":
        """Return the feed that continues, and what changed, if a change of shape ended this one."""
        return None

    def batch_in_words(self, number: int) -> str:
        """Describe a batch, by the number of batches read before it since `fit` began."""
        return f"batch {number + 1}"

    def examples(self, number: int) -> Sequence[int] | None:
        """Return the indices of a batch's examples in the data; None if the data has none."""
        return None

    def bottleneck(self, is_slower_than_step: bool) -> str:
        """Explain why reading is slow and what to do about it; empty if unknown."""
        return ""


@dataclass(frozen=True, kw_only=True)
class Epochs:
    """The epochs that a call of `fit` reads, without end."""

    seed: int = 0
    first_epoch: int = 0
    shuffle: bool = True
    steps_per_epoch: int | None = None
    after: Read = NOTHING_READ
    """The feed begins after these batches."""
    may_be_endless: bool = False
    """Whether `until` ends the training: all of some endless data is one epoch then."""


class Data(ABC):
    """Data for `fit`, `evaluate` and `predict`.

    `fit` takes any object of this class. A new kind of data is a subclass in a file of its own,
    plus a line in `adapter.py` if `fit` is to recognize what users pass.
    """

    can_be_read_again: bool = True
    """Whether the data can be inspected without using it up."""

    @abstractmethod
    def training(self, epochs: Epochs) -> Feed:
        """Return a feed of these epochs.

        Where Loopwright decides the order, it is a function of seed and epoch.
        """

    @abstractmethod
    def objection_to_resume(self) -> "Objection | None":
        """Return why a run with this data cannot be resumed exactly; None if it can."""

    @abstractmethod
    def fingerprint(self) -> dict[str, Any]:
        """Return what identifies this data, cheaply, as JSON values."""

    def attributes(self) -> dict[str, Any]:
        """Return the attributes that reading may change, of an object that makes batches."""
        return {}

    def weighted_by_class(self, class_weight: Mapping[int, float]) -> "Data":
        """Return the data with a sample weight for each label, by its class."""
        raise DataError(
            f"{type(self).__name__} does not support class_weight.",
            expected="arrays, a tf.data.Dataset, a PyDataset or a generator",
            received=f"class_weight={dict(class_weight)}",
            do="leave class_weight out, and yield batches of (x, y, sample_weight)",
        )

    def of(self, workers: int, worker: int) -> "Data":
        """Return what one of several workers reads: everything, to take its part of each batch."""
        return self

    @abstractmethod
    def one_pass(self, *, steps: int | None) -> Feed:
        """Return a feed of one pass in the data's own order, of at most `steps` batches."""


def changed_data(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return the differences between two fingerprints; empty if they are equal.

    >>> changed_data({"examples": 64, "batch_size": 8}, {"examples": 60, "batch_size": 8})
    'examples: 64 then, 60 now'
    """
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    return "; ".join(f"{name}: {before.get(name)} then, {now.get(name)} now" for name in names)


@dataclass(frozen=True)
class Objection:
    """Why a run with some data cannot be resumed exactly; as text, the error message."""

    reason: str
    instead: str
    """What to do about it."""
    loses_position: bool = True
    """Whether the position in the data cannot be saved either."""

    def __str__(self) -> str:
        then = "restarts the interrupted epoch" if self.loses_position else "may differ"
        return message(
            "A run with this data could not be resumed exactly.",
            expected="data that yields the same batches again, regardless of what was read before",
            received=self.reason,
            do=f"{self.instead}; or {BEST_EFFORT}: a resumed run then {then}; or train without "
            "run_dir",
        )

    def among_workers(self) -> str:
        """Return the error message for several workers."""
        return message(
            "The workers would not train on the same batches.",
            expected="data that yields the same batches to every worker",
            received=self.reason,
            do=f"{self.instead}; or train with one worker",
        )
