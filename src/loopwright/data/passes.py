"""Passes over a PyDataset: in which order, how far ahead, cut into epochs."""

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import keras
import numpy as np


def order_of(source: keras.utils.PyDataset, seed: int, epoch: int, shuffle: bool) -> Iterable[int]:
    """The batches of an epoch by number, in a function of seed and epoch."""
    count = source.num_batches
    if count is None:
        return itertools.count()
    if not shuffle:
        return range(count)
    return np.random.default_rng([seed & 0xFFFFFFFFFFFFFFFF, epoch]).permutation(count).tolist()


def read_ahead(source: keras.utils.PyDataset, order: Iterable[int]) -> Iterator[Any]:
    """The batches of a PyDataset in `order`, some of them made ahead by its workers."""
    if source.workers <= 1:
        yield from (source[index] for index in order)
        return
    pool, ahead = ThreadPoolExecutor(source.workers, "loopwright-data"), deque[Any]()
    try:
        for index in order:
            ahead.append(pool.submit(source.__getitem__, index))
            if len(ahead) > source.max_queue_size:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
    finally:
        # Somebody who stops in the middle does not wait for batches that nobody will see.
        pool.shutdown(wait=False, cancel_futures=True)


def with_hooks(
    source: keras.utils.PyDataset, epochs: Iterator[Iterator[Any]]
) -> Iterator[Iterator[Any]]:
    """The epochs, each announced to the PyDataset before it is read."""
    for epoch in epochs:
        source.on_epoch_begin()
        yield epoch


def as_epochs(
    passes: Iterator[Iterator[Any]], steps_per_epoch: int | None, first_step: int = 0
) -> Iterator[Iterator[Any]]:
    """Each pass as an epoch, or epochs of `steps_per_epoch` that go on where the last stopped."""
    if steps_per_epoch is None:
        return passes
    batches = _chain(passes)
    lengths = itertools.chain([steps_per_epoch - first_step], itertools.repeat(steps_per_epoch))
    return (itertools.islice(batches, length) for length in lengths)


def written_by_person(source: keras.utils.PyDataset) -> set[str]:
    """The attributes that the person's own classes define."""
    own = type(source).__mro__[: type(source).__mro__.index(keras.utils.PyDataset)]
    return {name for cls in own for name in vars(cls)}


def _chain(passes: Iterator[Iterator[Any]]) -> Iterator[Any]:
    for batches in passes:
        first = True
        for batch in batches:
            first = False
            yield batch
        if first:
            # A generator that was read to its end gives nothing, however often it is asked.
            return
