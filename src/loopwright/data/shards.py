"""Shares: each of several workers reads only its own part of the data."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, final

import tensorflow as tf

from loopwright.data.source import Data, Epochs, Feed, Objection
from loopwright.data.stream import STEPS, Stream
from loopwright.errors import DataError


@final
class Shares(Data):
    """Batches from a function of the number of workers and the index of this worker.

    Each worker reads, decodes and batches only its own examples; the batches of all workers
    together are the batch of a step. `dataset.shard` takes the same two numbers. All workers must
    have the same number of batches.

    >>> numbers = tf.data.Dataset.range(12)
    >>> shares = Shares(lambda workers, worker: numbers.shard(workers, worker).batch(4 // workers))
    >>> [next(iter(shares.of(2, i).one_pass(steps=1).dataset())).numpy().tolist() for i in (0, 1)]
    [[0, 2], [1, 3]]

    A single worker reads everything, and so does every worker in `predict`.
    """

    def __init__(
        self,
        make_batches: Callable[[int, int], tf.data.Dataset | Stream],
        *,
        workers: int = 1,
        worker: int = 0,
    ) -> None:
        if not callable(make_batches):
            raise DataError(
                "lw.Shares takes a function.",
                expected="a function of two numbers, workers and worker, that returns a "
                "tf.data.Dataset",
                received=type(make_batches).__name__,
                do="write lw.Shares(lambda workers, worker: files.shard(workers, worker)...); data "
                "that every worker reads as a whole is passed to fit directly",
            )
        # Not called yet: making a dataset now would prevent the workers from connecting.
        self._make, self._workers, self._worker = make_batches, workers, worker

    @functools.cached_property
    def _own(self) -> Stream:
        return _stream(self._make(self._workers, self._worker))

    def of(self, workers: int, worker: int) -> "Shares":
        """Return what one of the workers reads."""
        part = Shares(self._make, workers=workers, worker=worker)
        _ = part._own  # raises errors in the function now
        return part

    def weighted_by_class(self, class_weight: Mapping[int, float]) -> "Shares":
        """Return the data with a sample weight for each label, by its class."""

        def make(workers: int, worker: int) -> Stream:
            return _stream(self._make(workers, worker)).weighted_by_class(class_weight)

        return Shares(make, workers=self._workers, worker=self._worker)

    def training(self, epochs: Epochs) -> Feed:
        """Return this worker's batches, repeated."""
        return self._shared(self._own.training(epochs), "steps_per_epoch")

    def objection_to_resume(self) -> Objection | None:
        """Return what in the pipeline would yield different batches next time."""
        return self._own.objection_to_resume()

    def fingerprint(self) -> dict[str, Any]:
        """Return what all workers have in common, and the length of each part."""
        whole = _stream(self._make(1, 0)).fingerprint()
        length = self._own.fingerprint()["length"]
        return {**whole, "workers": self._workers, "length of each": length}

    def one_pass(self, *, steps: int | None) -> Feed:
        """Return this worker's batches, once."""
        return self._shared(self._own.one_pass(steps=steps), STEPS)

    def _shared(self, feed: Feed, argument: str) -> Feed:
        if self._workers > 1 and feed.steps_per_epoch is None:
            raise DataError(
                "The number of batches of each worker is unknown.",
                expected="the same known number for all workers: the others would wait for the "
                "shortest",
                received="a dataset of unknown length, as after filter() or from files",
                do=f"pass {argument}, or dataset.apply(tf.data.experimental.assert_cardinality(n))",
            )
        return replace(feed, is_share=self._workers > 1)


def _stream(made: Any) -> Stream:
    if isinstance(made, Stream):
        return made
    if not isinstance(made, tf.data.Dataset):
        raise DataError(
            "The function passed to lw.Shares does not return a dataset.",
            expected="a batched tf.data.Dataset",
            received=f"{type(made).__name__}",
            do="return dataset.shard(workers, worker).batch(256 // workers)",
        )
    return Stream(made)
