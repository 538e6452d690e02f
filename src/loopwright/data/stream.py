"""Stream: a `tf.data.Dataset` that its owner has batched."""

from collections.abc import Mapping
from typing import Any, final

import tensorflow as tf

from loopwright.compat.error_messages import describe
from loopwright.data import pipelines
from loopwright.data.bottleneck import slow_pipeline
from loopwright.data.class_weights import check_labelled, weighted
from loopwright.data.digests import batch_digest, sampled_digest
from loopwright.data.source import (
    NOTHING_READ,
    Data,
    Feed,
    Objection,
    Read,
    cannot_go_on,
    mark_epochs,
)
from loopwright.errors import DataError, message

_INSTEAD = (
    "give arrays or a PyDataset; or change the pipeline; or, if reading it again gives the same "
    "batches, say so with lw.Stream(dataset, replay=True)"
)
STEPS = "validation_steps (in evaluate and predict: steps)"


@final
class Stream(Data):
    """A batched `tf.data.Dataset`: finite, of unknown length, or endless.

    `replay=True`: a run that goes on reads it again up to its place, because its iterator cannot
    be saved; it has to give the same batches again, which is checked.

    >>> stream = Stream(tf.data.Dataset.range(10).batch(4))
    >>> stream.training(seed=0, first_epoch=0, shuffle=True, steps_per_epoch=None).steps_per_epoch
    3
    """

    def __init__(self, dataset: tf.data.Dataset, *, replay: bool = False) -> None:
        _check_is_batched(dataset)
        if dataset.cardinality() == 0:
            raise DataError(
                message(
                    "The dataset is empty.",
                    expected="at least one batch",
                    received="a dataset of 0 batches",
                    do="check its files and filters; drop_remainder drops all of a small set",
                )
            )
        self._dataset = dataset
        self._replay = replay

    @property
    def can_be_read_again(self) -> bool:
        """Always."""
        return True

    def weighted_by_class(self, class_weight: Mapping[int, float]) -> "Stream":
        """The data with sample weights that follow from the class of each label."""
        check_labelled(self._dataset.element_spec)
        labelled = self._dataset.map(lambda x, y: weighted((x, y), class_weight))
        return Stream(labelled, replay=self._replay)

    def objection_to_resume(self) -> Objection | None:
        """What in the pipeline would give other batches the next time."""
        look = pipelines.unrepeatable if self._replay else pipelines.unresumable
        found = look(self._dataset)
        if found is None:
            return None
        is_lost = pipelines.unsavable(self._dataset) is not None
        return cannot_go_on(found, _INSTEAD, loses_position=is_lost)

    def fingerprint(self) -> dict[str, Any]:
        """What the batches are like, how many there are, and what they are made from."""
        spec, length = self._dataset.element_spec, int(self._dataset.cardinality())
        return {
            "batches": describe(spec, "batch"),
            "length": length,
            "seeds": pipelines.seeds(self._dataset),
            "bytes": sampled_digest(pipelines.held_tensors(self._dataset)),
        }

    def training(
        self,
        *,
        seed: int,
        first_epoch: int,
        shuffle: bool,
        steps_per_epoch: int | None,
        after: Read = NOTHING_READ,
    ) -> Feed:
        """The dataset over and over; its own order is left as it is.

        What was read before is read again and thrown away where it is declared `replay`;
        elsewhere the reader has a state to go back to.
        """
        spec, length = self._dataset.element_spec, int(self._dataset.cardinality())
        if steps_per_epoch is None and length == tf.data.INFINITE_CARDINALITY:
            raise DataError(endless("This dataset", "steps_per_epoch"))
        # With steps_per_epoch a stream goes on where it stopped: epochs cut it, they do not
        # restart it.
        is_marked = steps_per_epoch is None and length == tf.data.UNKNOWN_CARDINALITY
        dataset, last = (self._dataset, list[Any]())
        is_repeatable = pipelines.unrepeatable(dataset) is None
        replays = self._replay and is_repeatable
        if replays:
            dataset = pipelines.watched(dataset, last)

        def repeated() -> tf.data.Dataset:
            whole = mark_epochs(dataset) if is_marked else dataset.repeat()
            return pipelines.with_exact_state(whole)

        position = "replay" if replays else "iterator"
        if position == "iterator" and pipelines.unsavable(self._dataset) is not None:
            position = "none"
        # An order that nobody can repeat has no seeds to keep.
        reseeded = pipelines.reseeded(self._dataset, first_epoch) if is_repeatable else None
        return Feed(
            repeated,
            spec,
            "marked" if is_marked else "exhausted",
            steps_per_epoch or (None if is_marked else length),
            position=position,
            skip=after.batches + after.ends * is_marked if replays else 0,
            reseeded=reseeded,
            last_digest=lambda: batch_digest(last) if last else None,
            bottleneck=lambda slower: slow_pipeline(dataset, is_slower_than_step=slower),
        )

    def one_pass(self, *, steps: int | None) -> Feed:
        """The dataset once."""
        length = int(self._dataset.cardinality())
        if steps is None and length == tf.data.INFINITE_CARDINALITY:
            raise DataError(endless("This dataset", STEPS))
        dataset = self._dataset if steps is None else self._dataset.take(steps)
        known = [n for n in (length, steps) if n is not None and n >= 0]
        return Feed(lambda: dataset, dataset.element_spec, "exhausted", min(known, default=None))


def endless(what: str, argument: str) -> str:
    """The message for data that has no end."""
    return message(
        f"{what} has no end, so an epoch has none either.",
        expected="a number of steps, or data that ends",
        received="endless data (repeat() without a count?)",
        do=f"pass {argument}, or leave out repeat(): Loopwright repeats by itself",
    )


def _check_is_batched(dataset: tf.data.Dataset) -> None:
    spec = dataset.element_spec
    for leaf in tf.nest.flatten(spec):
        if not hasattr(leaf, "shape"):
            raise DataError(
                message(
                    "The dataset gives something else than tensors.",
                    expected="batches: tensors whose first axis counts examples",
                    received=f"{type(leaf).__name__.removesuffix('Spec')} in {spec}",
                    do="leave None out; put .flat_map(lambda w: w.batch(n)) after .window(n)",
                )
            )
    shapes = [leaf.shape for leaf in tf.nest.flatten(spec)]
    firsts = {shape[0] for shape in shapes if shape.rank}
    scalar = any(shape.rank == 0 for shape in shapes)
    differ = None not in firsts and len(firsts) > 1
    if scalar or (differ and not pipelines.is_batched(dataset)):
        raise DataError(
            message(
                "The dataset was never batched.",
                expected="batches: the first axis of every tensor counts examples",
                received=describe(spec, "element"),
                do="add .batch(32) to the dataset",
            )
        )
