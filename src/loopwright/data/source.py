"""What every kind of data offers: batches of all epochs for training, one pass for scoring."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import tensorflow as tf

from loopwright.errors import message
from loopwright.exactness import BEST_EFFORT


@dataclass(frozen=True)
class Resident:
    """Data that lies on the device as a whole, for loops that gather their batches by themselves.

    It gives the batches that the feed's dataset gives, in the same order.
    """

    tensors: Any
    batch_size: int
    order: Callable[[int], Any]
    """The indices of all examples in the order of an epoch."""
    examples: int
    first_epoch: int = 0
    first_index: int = 0
    """The batch of that epoch to begin with."""
    batches: int | None = None
    """How many batches there are in all; None: epochs follow each other without end."""

    @property
    def batch_spec(self) -> Any:
        """What the batches are like, with the length of the first axis left open."""
        return tf.nest.map_structure(
            lambda leaf: tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype), self.tensors
        )

    @property
    def batches_per_epoch(self) -> int:
        """How many batches one pass over the examples has; the last may be smaller."""
        return ceil_div(self.examples, self.batch_size)


@dataclass(frozen=True)
class Feed:
    """Batches one after the other, as a `tf.data.Dataset` and what is known about it."""

    open: Callable[[], tf.data.Dataset]
    """Makes the dataset: a loop that gathers by itself never asks for it."""
    batch_spec: Any
    end: Literal["never", "marked", "exhausted", "each epoch"]
    """How an end shows: not at all; as an empty Optional after each epoch; by running out; by
    running out after each epoch, for which the dataset is then opened anew."""
    steps_per_epoch: int | None = None
    epoch_ended: Callable[[], None] = field(default=lambda: None)
    """Called after the last step of each epoch of known length."""
    failure: Callable[[], Exception | None] = field(default=lambda: None)
    """An exception of Python code that made the batches run out."""
    resident: Resident | None = None
    """The same batches for loops that gather by themselves, where the data allows it."""
    reopened: Callable[[], "tuple[Feed, str] | None"] = field(default=lambda: None)
    """If the batches ran out because their shape changed: how it goes on, and what changed."""
    batch_in_words: Callable[[int], str] = field(default=lambda number: f"batch {number + 1}")
    """Names a batch, by how many were read before it since `fit` began."""
    position: Literal["index", "iterator", "replay", "none"] = "index"
    """What a run has to know to go on: how many batches it has read; the state of its reader; how
    many it has read, which are then read again; or it cannot."""
    skip: int = 0
    """How many elements to read and throw away before the first."""
    reseeded: "Reseeded | None" = None
    is_share: bool = False
    """Whether it gives this worker's part of each batch, and others have the rest."""
    last_digest: Callable[[], str | None] = field(default=lambda: None)
    """Of the batch that was read last, where it has to be compared after a replay."""
    bottleneck: Callable[[bool], str] = field(default=lambda is_slower_than_step: "")
    """Why reading is slow and what to do; given whether it is slower than the step."""


@dataclass(frozen=True)
class Reseeded:
    """The parts of a pipeline that draw other seeds for each pass."""

    parts: Sequence[tf.data.Dataset]
    passes: int
    """How many passes there were before."""
    structure: str
    """Of what kinds of parts the whole pipeline is made."""


@dataclass(frozen=True)
class Read:
    """What a call of `fit` has read of its data."""

    batches: int = 0
    ends: int = 0
    """How often the data has said that an epoch of unknown length was over."""
    last_digest: str | None = None
    """Of the last batch, of data that is read again when a run goes on."""


NOTHING_READ = Read()


class Data(ABC):
    """Data for `fit`, `evaluate` and `predict`."""

    @property
    @abstractmethod
    def can_be_read_again(self) -> bool:
        """Whether looking at the data takes nothing away from it."""

    @abstractmethod
    def training(
        self,
        *,
        seed: int,
        first_epoch: int,
        shuffle: bool,
        steps_per_epoch: int | None,
        after: Read = NOTHING_READ,
    ) -> Feed:
        """Batches of all epochs to come; order = f(seed, epoch) where Loopwright decides it.

        They begin as if those in `after` had been read.
        """

    @abstractmethod
    def objection_to_resume(self) -> "Objection | None":
        """Return why a run with this data cannot be resumed exactly; None if it can."""

    @abstractmethod
    def fingerprint(self) -> dict[str, Any]:
        """What tells this data from other data, cheaply, as JSON knows it."""

    def of(self, workers: int, worker: int) -> "Data":
        """What one of several workers reads: all of it, and takes its share of each batch."""
        return self

    @abstractmethod
    def one_pass(self, *, steps: int | None) -> Feed:
        """Batches in their own order, once; `steps` bounds them."""


def ceil_div(count: int, size: int) -> int:
    """How many batches of `size` hold `count` examples."""
    return math.ceil(count / size)


def mark_epochs(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The dataset over and over; an empty Optional stands after each pass.

    An epoch of unknown length that simply ended inside a compiled loop would raise there, lose
    the totals, and may have changed variables for a step without a batch.
    """
    spec = dataset.element_spec
    end = tf.data.Dataset.from_tensors(0).map(lambda _: tf.experimental.Optional.empty(spec))
    batches = dataset.map(lambda *batch: tf.experimental.Optional.from_value(_unstar(batch, spec)))
    return batches.concatenate(end).repeat()


def _unstar(batch: tuple[Any, ...], spec: Any) -> Any:
    # tf.data spreads a tuple, but no namedtuple, over the arguments of a mapped function.
    return batch if type(spec) is tuple else batch[0]


def changed_data(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """What is different between two fingerprints; empty if they are the same.

    >>> changed_data({"examples": 64, "batch_size": 8}, {"examples": 60, "batch_size": 8})
    'examples: 64 then, 60 now'
    """
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    return "; ".join(f"{name}: {before.get(name)} then, {now.get(name)} now" for name in names)


@dataclass(frozen=True)
class Objection:
    """Why a run with some data cannot be resumed exactly; as text, the message that refuses it."""

    reason: str
    instead: str
    """What to do about it."""
    loses_position: bool
    """Whether the position in the data cannot be saved either."""

    def __str__(self) -> str:
        then = "restarts the interrupted epoch" if self.loses_position else "may differ"
        return message(
            "A run with this data could not be resumed exactly.",
            expected="data that gives the same batches again, whatever was read of it before",
            received=self.reason,
            do=f"{self.instead}; or {BEST_EFFORT}: a resumed run then {then}; or train without "
            "run_dir",
        )

    def among_workers(self) -> str:
        """Return the message that refuses the data for several workers."""
        return message(
            "The workers would not train on the same batches.",
            expected="data that gives the same batches to every worker",
            received=self.reason,
            do=f"{self.instead}; or train with one worker",
        )


def cannot_go_on(what: str, instead: str, *, loses_position: bool = True) -> Objection:
    """Return the objection to data whose position cannot be found again."""
    return Objection(what, instead, loses_position)
