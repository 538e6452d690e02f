"""What every kind of data offers: batches of all epochs for training, one pass for scoring."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import tensorflow as tf


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


class Data(ABC):
    """Data for `fit`, `evaluate` and `predict`."""

    @property
    @abstractmethod
    def can_be_read_again(self) -> bool:
        """Whether looking at the data takes nothing away from it."""

    @abstractmethod
    def training(
        self, *, seed: int, first_epoch: int, shuffle: bool, steps_per_epoch: int | None
    ) -> Feed:
        """Batches of all epochs to come; order = f(seed, epoch) where Loopwright decides it."""

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
