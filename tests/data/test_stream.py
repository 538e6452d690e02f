"""Stream: batched `tf.data` datasets, finite, of unknown length, or endless."""

from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tests.data.recorder import PLANS, Recorder, fit, fit_until_failure, ids, refused, sizes

import loopwright as lw


def numbers(count: int = 10, size: int = 4) -> Any:
    return tf.data.Dataset.range(count).batch(size)


def of_unknown_length(count: int = 10, size: int = 4) -> Any:
    """Batches of the even numbers among twice as many."""
    even = tf.data.Dataset.range(2 * count).filter(lambda n: n % 2 == 0)
    return even.map(lambda n: n // 2).batch(size)


def from_generator(count: int = 10, size: int = 4) -> Any:
    def batches() -> Any:
        for start in range(0, count, size):
            yield np.arange(start, min(start + size, count))

    return tf.data.Dataset.from_generator(
        batches, output_signature=tf.TensorSpec((None,), tf.int64)
    )


# --- epochs ---


@pytest.mark.parametrize(
    ("dataset", "count", "plan"),
    [
        (numbers, 10, "graph"),
        (numbers, 10, "eager"),
        (of_unknown_length, 1, "graph"),
        (of_unknown_length, 90, "graph"),
        (of_unknown_length, 10, "eager"),
        (from_generator, 10, "graph"),
        (from_generator, 10, "eager"),
    ],
)
def test_every_epoch_sees_every_example_exactly_once(
    dataset: Callable[..., Any], count: int, plan: str
):
    task = Recorder()

    history = lw.Trainer(task, plan=plan).fit(dataset(count), epochs=3, verbose=0)

    assert ids(task.trained) == list(range(count)) * 3
    assert history.history["loss"] == pytest.approx([(count - 1) / 2] * 3)
    assert history.epoch_steps == [-(-count // 4) * epoch for epoch in (1, 2, 3)]
    assert int(task.step) == len(task.trained)


def test_an_epoch_of_unknown_length_ends_inside_a_call_of_many_steps():
    """Else the test above would not be about the compiled loop."""
    events = lw.Trainer(Recorder()).events(of_unknown_length(400, 1), epochs=2)

    calls = [event.steps for event in events if isinstance(event, lw.Trained)]

    assert sum(calls) == 800
    assert len(calls) < 100


def test_an_epoch_of_unknown_length_may_be_longer_or_shorter_than_the_one_before():
    passes = tf.Variable(0, dtype=tf.int64)

    def some(_: Any) -> Any:
        return tf.data.Dataset.range(4 + 5 * (passes.assign_add(1) % 2))

    dataset = tf.data.Dataset.range(1).flat_map(some).batch(2).filter(lambda _: True)
    history = lw.Trainer(Recorder()).fit(dataset, epochs=4, verbose=0)

    assert history.epoch_steps == [5, 7, 12, 14]
    assert history.history["loss"] == [4.0, 1.5, 4.0, 1.5]


@pytest.mark.parametrize("plan", PLANS)
def test_an_endless_stream_with_steps_per_epoch_goes_on_where_the_epoch_stopped(plan: str):
    history = lw.Trainer(task := Recorder(), plan=plan).fit(
        tf.data.Dataset.counter().batch(2), steps_per_epoch=3, epochs=2, verbose=0
    )

    assert ids(task.trained) == list(range(12))
    assert history.history["loss"] == [2.5, 8.5]


def test_until_some_steps_makes_one_epoch_of_an_endless_stream():
    trainer, held_out = lw.Trainer(task := Recorder(), plan="graph"), numbers()
    events = list(trainer.events(numbers().repeat(), until="5 steps", validation_data=held_out))

    assert ids(task.trained) == [*range(10), *range(8)]
    scored = [event.step for event in events if isinstance(event, lw.Validated)]
    ended = [(event.step, event.steps) for event in events if isinstance(event, lw.EpochEnded)]
    assert (scored, ended) == ([5], [(5, 5)])


@pytest.mark.parametrize("length", ["endless", "three batches"])
def test_a_run_until_some_steps_goes_on_exactly_and_may_be_extended(length: str, tmp_path: Path):
    def trained(until: str, name: str, *, fails_at: int | None = None) -> list[Any]:
        data = tf.data.Dataset.range(10).shuffle(10, seed=1).batch(4)
        data = data.repeat() if length == "endless" else data
        task = fit_until_failure(data, tmp_path / name, fails_at, until=until)
        return [batch.tolist() for batch in task.trained]

    whole = trained("11 steps", "whole")
    assert trained("11 steps", "cut", fails_at=4) == whole[:4]
    assert trained("11 steps", "cut") == whole[3:]
    assert trained("5 steps", "extended") + trained("11 steps", "extended") == whole


@pytest.mark.parametrize("dataset", [numbers, of_unknown_length])
def test_a_finite_stream_with_steps_per_epoch_starts_again_when_it_ends(
    dataset: Callable[..., Any],
):
    task = fit(dataset(), steps_per_epoch=2, epochs=2, plan="graph")

    assert sizes(task.trained) == [4, 4, 2, 4]
    assert ids(task.trained) == [*range(10), *range(4)]


Pair = namedtuple("Pair", "x y")


@pytest.mark.parametrize(
    "nest",
    [
        lambda x: (x, x),
        lambda x: (x,),
        lambda x: {"a": x, "b": (x, x)},
        lambda x: Pair(x, x),
        lambda x: ((x, {"a": x}), x, x),
    ],
)
def test_a_nest_stays_as_it_is_also_with_epochs_of_unknown_length(
    nest: Callable[[Any], Any],
):
    task = fit(of_unknown_length(8).map(nest), plan="graph")

    tf.nest.assert_same_structure(task.trained[0], nest(0))
    assert [leaf.tolist() for leaf in tf.nest.flatten(task.trained[1])] == [[4, 5, 6, 7]] * len(
        tf.nest.flatten(nest(0))
    )


def test_batches_of_several_widths_need_no_second_trace():
    words = tf.data.Dataset.range(1, 7).map(lambda n: tf.ones((n,))).padded_batch(2)

    task = fit(words, plan="graph")

    assert [batch.shape for batch in task.trained] == [(2, 2), (2, 4), (2, 6)]


# --- what cannot be trained on ---


def nothing() -> Any:
    return numbers().filter(lambda _: False)


@pytest.mark.parametrize(
    ("dataset", "sentence", "received"),
    [
        (lambda: numbers().repeat(), "This dataset is endless", "endless data"),
        (lambda: tf.data.Dataset.range(3), "The dataset was never batched.", "element: int64 ()"),
        (
            lambda: tf.data.Dataset.from_tensor_slices((np.ones((3, 4)), [1, 2, 3])),
            "The dataset was never batched.",
            "element[0]: float64 (4,), element[1]: int32 ()",
        ),
        (
            lambda: tf.data.Dataset.from_tensor_slices((np.ones((3, 4)), np.ones((3, 2)))),
            "The dataset was never batched.",
            "element[0]: float64 (4,), element[1]: float64 (2,)",
        ),
        (lambda: numbers(3, 4).take(0), "The dataset is empty.", "a dataset of 0 batches"),
        (
            lambda: tf.data.Dataset.range(3).batch(4, drop_remainder=True),
            "The dataset is empty.",
            "a dataset of 0 batches",
        ),
        (nothing, "The data gave no batch for an epoch.", "data that ended at once"),
        (
            lambda: tf.data.Dataset.range(9).window(3),
            "The dataset yields something other than tensors.",
            "Dataset in ",
        ),
        (
            lambda: numbers().map(lambda n: (n, None)),
            "The dataset yields something other than tensors.",
            "NoneTensor in ",
        ),
    ],
)
def test_a_stream_that_cannot_be_used_is_refused_before_the_first_step(
    dataset: Callable[[], Any], sentence: str, received: str
):
    task = Recorder()

    with refused(sentence, received=received):
        lw.Trainer(task).fit(dataset(), verbose=0)

    assert task.trained == []
    assert int(task.step) == 0


def test_a_batched_stream_of_one_size_is_not_taken_for_unbatched():
    dataset = numbers().map(lambda n: (tf.ones((4, 3)), tf.ones((4,))))

    assert sizes(fit(dataset).trained) == [4, 4, 4]


def test_an_empty_stream_with_steps_per_epoch_says_that_it_ended():
    with refused("The data ended before the epoch did.", received="0 batches in this epoch"):
        fit(nothing(), steps_per_epoch=3)


# --- evaluate and predict ---


def test_an_endless_stream_is_evaluated_for_some_steps_only():
    task = Recorder()
    trainer = lw.Trainer(task)

    with refused("This dataset is endless", received="endless data"):
        trainer.evaluate(numbers().repeat())
    with refused("This dataset is endless", received="endless data") as caught:
        fit(numbers(), until="2 steps", validation_data=numbers().repeat())
    assert "pass validation_steps" in str(caught.value)
    assert trainer.evaluate(numbers().repeat(), steps=4)["loss"] == pytest.approx(51 / 14)
    assert sizes(task.tested) == [4, 4, 2, 4]
