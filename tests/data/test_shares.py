"""Shares: each worker reads its own part, and what that asks of the data."""

import numpy as np
import pytest
import tensorflow as tf

import loopwright as lw
from loopwright.data.source import Epochs
from loopwright.errors import DataError


def numbers() -> tf.data.Dataset:
    return tf.data.Dataset.range(12)


def _same(number):
    return number


def sharded(workers: int, worker: int) -> tf.data.Dataset:
    return numbers().shard(workers, worker).batch(4 // workers)


def read(data, **options):
    feed = data.training(Epochs(**options))
    return feed, [batch.numpy().tolist() for batch in feed.dataset().take(feed.steps_per_epoch)]


def test_each_worker_reads_its_own_part_and_together_they_read_everything():
    feeds, parts = zip(*(read(lw.Shares(sharded).of(2, i)) for i in (0, 1)), strict=True)
    assert [feed.is_share for feed in feeds] == [True, True]
    assert sorted(np.concatenate(parts[0] + parts[1])) == list(range(12))
    assert [len(part) for part in parts] == [3, 3]


def test_a_worker_alone_reads_everything_as_an_ordinary_stream():
    feed, whole = read(lw.Shares(sharded).of(1, 0))
    assert not feed.is_share
    assert whole == read(lw.Stream(sharded(1, 0)))[1] == read(lw.Shares(sharded))[1]


def test_fingerprints_are_the_same_for_all_workers_and_tell_how_many_there_are():
    two = [lw.Shares(sharded).of(2, i).fingerprint() for i in (0, 1)]
    assert two[0] == two[1]
    assert (two[0]["workers"], two[0]["length of each"]) == (2, 3)
    assert lw.Shares(sharded).fingerprint()["workers"] == 1


def test_parts_of_different_length_have_different_fingerprints():
    longer = lw.Shares(lambda workers, worker: numbers().take(8 + 4 * worker).batch(4))
    assert longer.of(2, 0).fingerprint() != longer.of(2, 1).fingerprint()


def test_a_part_of_unknown_length_is_refused_with_what_to_do():
    unknown = lw.Shares(lambda workers, worker: numbers().filter(lambda n: n > 3).batch(2))
    with pytest.raises(DataError, match="batches of each worker is unknown") as refusal:
        read(unknown.of(2, 0))
    assert "pass steps_per_epoch, or" in str(refusal.value)
    with pytest.raises(DataError, match="validation_steps"):
        unknown.of(2, 0).one_pass(steps=None)
    unknown.of(2, 0).one_pass(steps=2)
    unknown.of(1, 0).one_pass(steps=None)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([[1, 2]], "lw.Shares takes a function"),
        (lambda workers, worker: [1, 2], "does not return a dataset"),
        (lambda workers, worker: numbers(), "never batched"),
    ],
)
def test_what_makes_no_batches_is_refused(given, message):
    with pytest.raises(DataError, match=message):
        lw.Shares(given).of(1, 0)


def test_what_could_not_be_resumed_is_named():
    unordered = lw.Shares(lambda workers, worker: numbers().map(_same, 2, False).batch(2))
    objection = unordered.of(2, 0).objection_to_resume()
    assert objection is not None
    assert "map() has deterministic=False" in str(objection)
    assert unordered.objection_to_resume() == objection


def test_labels_are_weighted_by_class_in_each_part():
    labels = tf.data.Dataset.from_tensor_slices((np.zeros((4, 1)), np.array([0, 1, 0, 1])))
    shares = lw.Shares(lambda workers, worker: labels.shard(workers, worker).batch(2))
    _, _, weights = next(
        iter(shares.weighted_by_class({1: 3.0}).of(2, 1).one_pass(steps=1).dataset())
    )
    assert weights.numpy().tolist() == [3.0, 3.0]
