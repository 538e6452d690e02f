"""Stream: a `tf.data.Dataset` that its owner has batched."""

from collections.abc import Mapping
from typing import Any, final

import tensorflow as tf

from loopwright import adaptations
from loopwright.data.class_weights import check_labelled, weighted
from loopwright.data.source import NOTHING_READ, Data, Feed, Read, cannot_go_on, mark_epochs
from loopwright.errors import DataError, message
from loopwright.explanations import describe

STEPS = "validation_steps (in evaluate and predict: steps)"


@final
class Stream(Data):
    """A batched `tf.data.Dataset`: finite, of unknown length, or endless.

    >>> stream = Stream(tf.data.Dataset.range(10).batch(4))
    >>> stream.training(seed=0, first_epoch=0, shuffle=True, steps_per_epoch=None).steps_per_epoch
    3
    """

    def __init__(self, dataset: tf.data.Dataset) -> None:
        _check_is_batched(dataset.element_spec)
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

    @property
    def can_be_read_again(self) -> bool:
        """Always."""
        return True

    def weighted_by_class(self, class_weight: Mapping[int, float]) -> "Stream":
        """The data with sample weights that follow from the class of each label."""
        check_labelled(self._dataset.element_spec)
        return Stream(self._dataset.map(lambda x, y: weighted((x, y), class_weight)))

    def objection_to_resume(self) -> str | None:
        """What in the pipeline would give other batches the next time."""
        found = adaptations.unrepeatable_in_pipeline(self._dataset)
        return None if found is None else cannot_go_on(found)

    def fingerprint(self) -> dict[str, Any]:
        """What the batches are like, and how many there are."""
        spec, length = self._dataset.element_spec, int(self._dataset.cardinality())
        return {"batches": describe(spec, "batch"), "length": length}

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

        What was read before is read again and thrown away. The state of the iterator would be
        quicker, but TensorFlow loses the seeds of a shuffle when it saves between two epochs.
        """
        spec, length = self._dataset.element_spec, int(self._dataset.cardinality())

        def repeated() -> tf.data.Dataset:
            return self._dataset.repeat().skip(after.batches)

        if steps_per_epoch is not None:
            # A stream goes on where it stopped: epochs cut it, they do not restart it.
            return Feed(repeated, spec, "exhausted", steps_per_epoch)
        if length == tf.data.INFINITE_CARDINALITY:
            raise DataError(endless("This dataset", "steps_per_epoch"))
        if length == tf.data.UNKNOWN_CARDINALITY:
            read = after.batches + after.ends
            return Feed(lambda: mark_epochs(self._dataset).skip(read), spec, "marked")
        return Feed(repeated, spec, "exhausted", length)

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


def _check_is_batched(spec: Any) -> None:
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
    if scalar or (None not in firsts and len(firsts) > 1):
        raise DataError(
            message(
                "The dataset was never batched.",
                expected="batches: the first axis of every tensor counts examples",
                received=describe(spec, "element"),
                do="add .batch(32) to the dataset",
            )
        )
