"""Batches made by Python code: generators, iterables, PyDatasets."""

import itertools
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from tests.data.recorder import PLANS, Recorder, fit, fit_until_failure, ids, refused, sizes

import loopwright as lw


def generated(count: int = 10, size: int = 4) -> Iterator[Any]:
    for start in range(0, count, size):
        yield np.arange(start, min(start + size, count))


class Readable:
    """Can be read again and again, and counts how often it was and how far."""

    def __init__(self, make: Callable[[], Iterator[Any]] = generated) -> None:
        self.make, self.opened, self.read = make, 0, 0

    def __iter__(self) -> Iterator[Any]:
        self.opened += 1
        for batch in self.make():
            self.read += 1
            yield batch


class Numbers(keras.utils.PyDataset):
    """Batch i holds the numbers 2i and 2i + 1; says in `log` what happens to it."""

    def __init__(self, count: int | None = 5, log: Any = None, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.count, self.log = count, [] if log is None else log

    @property
    def num_batches(self) -> int | None:
        return self.count

    def __getitem__(self, index: int) -> Any:
        self.log.append(index)
        return np.array([2 * index, 2 * index + 1])

    def on_epoch_begin(self) -> None:
        self.log.append("begin")

    def on_epoch_end(self) -> None:
        self.log.append("end")


class Failing(Numbers):
    def __getitem__(self, index: int) -> Any:
        if index == 3:
            raise OSError("no such picture")
        return super().__getitem__(index)


# --- generators and iterables ---


@pytest.mark.parametrize(("count", "plan"), [(1, "graph"), (90, "graph"), (10, "eager")])
def test_a_generator_is_one_epoch_and_nothing_of_it_is_lost(count: int, plan: str):
    task = Recorder()

    history = lw.Trainer(task, plan=plan).fit(generated(count), verbose=0)

    assert ids(task.trained) == list(range(count))
    assert history.history["loss"] == [pytest.approx((count - 1) / 2)]
    assert history.epoch_steps == [-(-count // 4)]


@pytest.mark.parametrize("plan", PLANS)
def test_an_iterable_is_read_again_each_epoch_and_no_more(plan: str):
    source = Readable()

    task = fit(source, epochs=3, plan=plan)

    assert ids(task.trained) == list(range(10)) * 3
    assert (source.opened, source.read) == (3, 9)


def test_an_iterable_with_steps_per_epoch_goes_on_where_the_epoch_stopped():
    source = Readable()

    task = fit(source, steps_per_epoch=2, epochs=2)

    assert ids(task.trained) == [*range(10), *range(4)]
    assert (source.opened, source.read) == (2, 4)


@pytest.mark.parametrize("plan", PLANS)
def test_an_endless_generator_goes_on_in_the_next_fit_without_a_gap(plan: str):
    endless = ([n, n] for n in itertools.count())
    batches = (np.array(batch) for batch in endless)
    trainer = lw.Trainer(task := Recorder(), plan=plan)

    trainer.fit(batches, steps_per_epoch=2, epochs=2, verbose=0)
    trainer.fit(batches, steps_per_epoch=3, verbose=0)

    assert ids(task.trained) == [n for n in range(7) for _ in range(2)]
    assert next(batches).tolist() == [7, 7]


@pytest.mark.parametrize("plan", PLANS)
def test_a_generator_that_ends_too_soon_trains_what_it_gave_and_says_so(plan: str):
    task = Recorder()

    received = "1 batches in this epoch"
    with refused("The data ended before the epoch did.", received=received) as caught:
        lw.Trainer(task, plan=plan).fit(generated(), steps_per_epoch=2, epochs=2, verbose=0)

    assert "2 batches per epoch" in str(caught.value)
    assert ids(task.trained) == list(range(10))


@pytest.mark.parametrize("plan", PLANS)
def test_a_generator_cannot_be_read_for_a_second_epoch(plan: str):
    task = Recorder()

    with refused("The data gave no batch for an epoch.", received="data that ended at once") as c:
        lw.Trainer(task, plan=plan).fit(generated(), epochs=2, verbose=0)

    assert "pass an object that can be read again, or epochs=1" in str(c.value)
    assert ids(task.trained) == list(range(10))


ONES = np.ones(2)


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        ((ONES, ONES), (1, 1)),
        ([ONES, ONES], (1, 1)),
        ((ONES, ONES, None), (1, 1)),
        ((ONES, None, None), 1),
        ((ONES,), 1),
        (([ONES, ONES], ONES), ((1, 1), 1)),
        ({"a": ONES, "b": (ONES, ONES)}, {"a": 1, "b": (1, 1)}),
    ],
)
def test_a_batch_reaches_the_step_in_its_own_form(batch: Any, expected: Any):
    (seen,) = fit(iter([batch])).trained

    assert keras.tree.map_structure(lambda _: 1, seen) == expected


# --- PyDatasets ---


def batches_of(task: Recorder) -> list[int]:
    return [int(batch[0]) // 2 for batch in task.trained]


def epochs_of(task: Recorder, steps: int = 5) -> list[list[int]]:
    order = batches_of(task)
    return [order[i : i + steps] for i in range(0, len(order), steps)]


@pytest.mark.parametrize(("workers", "plan"), [(1, "graph"), (3, "graph"), (3, "eager")])
def test_the_order_of_a_pydataset_is_a_function_of_seed_and_epoch(plan: str, workers: int):
    task = fit(Numbers(workers=workers), epochs=3, plan=plan)

    epochs = epochs_of(task)
    assert [sorted(epoch) for epoch in epochs] == [[0, 1, 2, 3, 4]] * 3
    assert len({tuple(epoch) for epoch in [*epochs, range(5)]}) == 4
    assert epochs_of(fit(Numbers(), epochs=3)) == epochs
    assert epochs_of(fit(Numbers(), epochs=3, seed=1)) != epochs
    trainer = lw.Trainer(again := Recorder(), plan="eager")
    for _ in range(3):
        trainer.fit(Numbers(), verbose=0)
    assert epochs_of(again) == epochs


@pytest.mark.parametrize(("workers", "plan"), [(1, "graph"), (2, "eager")])
def test_the_hooks_of_a_pydataset_stand_around_each_epoch_and_before_validation(
    plan: str, workers: int
):
    log: list[Any] = []
    trainer = lw.Trainer(Recorder(), plan=plan, sinks=[log.append])

    trainer.fit(
        Numbers(2, log, workers=workers),
        epochs=2,
        shuffle=False,
        validation_data=np.ones(2),
        verbose=0,
    )

    kept = [e for e in log if isinstance(e, str | int | lw.Validated)]
    said = ["validated" if isinstance(event, lw.Validated) else event for event in kept]
    first, second = sorted(said[1:3]), sorted(said[6:8])  # workers may change places
    assert [said[0], *first, *said[3:6], *second, *said[8:]] == [
        *("begin", 0, 1, "end", "validated"),
        *("begin", 0, 1, "end", "validated"),
    ]


def test_an_endless_pydataset_needs_steps_per_epoch_and_goes_on():
    task = fit(Numbers(None), steps_per_epoch=3, epochs=2, plan="graph")

    assert batches_of(task) == [0, 1, 2, 3, 4, 5]
    with refused("This PyDataset (num_batches is None) is endless", received="endless data"):
        fit(Numbers(None))
    with refused("This PyDataset (num_batches is None) is endless", received="endless data"):
        lw.Trainer(task).evaluate(Numbers(None))


@pytest.mark.parametrize("workers", [1, 2])
def test_until_some_steps_makes_one_epoch_of_an_endless_pydataset(workers: int):
    data = Numbers(None, workers=workers, max_queue_size=2)
    assert batches_of(fit(data, until="5 steps", plan="graph")) == [0, 1, 2, 3, 4]
    assert data.log.count("begin") == 1


def test_an_endless_pydataset_that_is_resumed_goes_on_where_it_was(tmp_path: Path):
    class Resumable(Numbers):
        resumable = True

    def trained(fails_at: int | None) -> list[int]:
        return batches_of(fit_until_failure(Resumable(None), tmp_path, fails_at, until="7 steps"))

    assert trained(fails_at=4) == [0, 1, 2, 3]
    assert trained(fails_at=None) == [3, 4, 5, 6]


def test_a_pydataset_with_steps_per_epoch_starts_a_new_order_when_it_ends():
    task = fit(Numbers(4), steps_per_epoch=3, epochs=4)

    passes = epochs_of(task, steps=4)
    assert [sorted(some) for some in passes] == [[0, 1, 2, 3]] * 3
    assert passes == epochs_of(fit(Numbers(4), epochs=3), steps=4)


def test_no_worker_is_left_when_a_run_ends_or_is_left():
    fit(Numbers(20, workers=3))
    fit(Numbers(20, workers=3), until="5 steps")
    lw.Trainer(Recorder()).evaluate(Numbers(20, workers=3), steps=5)
    for event in lw.Trainer(Recorder()).events(Numbers(20, workers=3)):
        if isinstance(event, lw.Trained):
            break

    workers = [t for t in threading.enumerate() if t.name.startswith("loopwright-data")]
    for worker in workers:
        worker.join(timeout=5)
    assert not any(worker.is_alive() for worker in workers)


def test_processes_are_replaced_by_threads_with_one_word():
    with pytest.warns(lw.LoopwrightWarning, match="makes batches in threads") as caught:
        task = fit(Numbers(workers=2, use_multiprocessing=True), epochs=2, shuffle=False)

    assert len(caught) == 1
    assert batches_of(task) == [0, 1, 2, 3, 4] * 2


# --- shapes that change ---


def widths(*each: int) -> Callable[[], Iterator[Any]]:
    """Batches of two numbered rows, of these widths."""

    def make() -> Iterator[Any]:
        for n, width in enumerate(each):
            yield np.full((2, width), n)

    return make


class Widths(Numbers):
    """A PyDataset whose batch 3 is wider."""

    def __getitem__(self, index: int) -> Any:
        return np.full((2, 5 if index == 3 else 3), index)


def fit_with_one_retrace(source: Any, change: str, **arguments: Any) -> Recorder:
    with pytest.warns(lw.RetraceWarning) as caught:
        task = fit(source, **arguments)
    assert [change in str(warning.message) for warning in caught] == [True]
    assert "do: give all batches the same shape" in str(caught[0].message)
    return task


@pytest.mark.parametrize(
    ("changing", "steps_per_epoch", "plan"),
    [
        ((3, 5, 3, 5, 5), None, "graph"),
        ((3, 3, 3, 3, 5), None, "graph"),
        ((3, 3, 3, 5, 3), 5, "graph"),
        ((3, 3, 3, 5, 3), None, "eager"),
        ((3, 3, 3, 3, 5), 5, "eager"),
    ],
)
def test_a_batch_of_another_shape_is_trained_after_one_word_about_the_trace(
    changing: tuple[int, ...], steps_per_epoch: int | None, plan: str
):
    task = fit_with_one_retrace(
        Readable(widths(*changing)),
        "batch: int64 (None, 3) became (2, 5)",
        epochs=2,
        steps_per_epoch=steps_per_epoch,
        plan=plan,
    )

    assert [batch.shape[1] for batch in task.trained] == list(changing) * 2
    assert ids(task.trained) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4] * 2


@pytest.mark.parametrize("plan", PLANS)
def test_a_shape_that_changes_between_epochs_belongs_to_the_next_epoch(plan: str):
    passes = iter([(3, 3, 3), (5, 5), (3,)])

    def next_pass() -> Iterator[Any]:
        return widths(*next(passes))()

    trainer = lw.Trainer(task := Recorder(), plan=plan)

    with pytest.warns(lw.RetraceWarning) as caught:
        history = trainer.fit(Readable(next_pass), epochs=3, verbose=0)

    assert len(caught) == 1
    assert history.epoch_steps == [3, 5, 6]
    assert history.history["loss"] == [1.0, 0.5, 0.0]
    assert ids(task.trained) == [0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 0, 0]


@pytest.mark.parametrize("plan", PLANS)
def test_workers_that_read_ahead_lose_nothing_when_the_shape_changes(plan: str):
    task = fit_with_one_retrace(Widths(20, workers=3), "became (2, 5)", epochs=2, plan=plan)

    numbers = ids(task.trained)
    assert sorted(numbers) == sorted([*range(20)] * 4)
    assert numbers == ids(fit_with_one_retrace(Widths(20), "became", epochs=2).trained)


def test_each_axis_that_changes_is_said_once():
    def batches() -> Iterator[Any]:
        for shape in [(2, 3, 3), (2, 4, 3), (2, 3, 4), (2, 4, 4)]:
            yield np.ones(shape)

    with pytest.warns(lw.RetraceWarning) as caught:
        task = fit(batches(), plan="graph")

    assert [str(warning.message).splitlines()[0] for warning in caught] == [
        "The step is traced again: batch: float32 (None, 3, 3) became (2, 4, 3).",
        "The step is traced again: batch: float32 (None, None, 3) became (2, 3, 4).",
    ]
    assert [batch.shape for batch in task.trained] == [(2, 3, 3), (2, 4, 3), (2, 3, 4), (2, 4, 4)]


def test_a_shorter_or_longer_batch_needs_no_second_trace():
    with warnings.catch_warnings():
        warnings.simplefilter("error", lw.RetraceWarning)
        assert sizes(fit(iter([np.ones(2), np.ones(5), np.ones(1)])).trained) == [2, 5, 1]


# --- what goes wrong ---


def failing_after(count: int) -> Iterator[Any]:
    yield from itertools.islice(generated(40), count)
    raise OSError("no such picture")


@pytest.mark.parametrize(
    ("source", "batches", "options", "plan"),
    [
        (lambda: failing_after(0), 0, {}, "graph"),
        (lambda: failing_after(1), 1, {"steps_per_epoch": 9}, "graph"),
        (lambda: failing_after(5), 5, {}, "graph"),
        (lambda: failing_after(5), 5, {"steps_per_epoch": 9}, "eager"),
        (lambda: Failing(workers=1), 3, {"shuffle": False}, "eager"),
        (lambda: Failing(workers=3), 3, {"shuffle": False}, "graph"),
    ],
)
def test_an_exception_of_the_data_is_a_data_error_with_the_number_of_the_batch(
    source: Callable[[], Any], batches: int, options: Any, plan: str
):
    trainer = lw.Trainer(task := Recorder(), plan=plan)

    said = f"Batch {batches + 1} could not be made: OSError: no such picture"
    with refused(said) as caught:
        trainer.fit(source(), verbose=0, **options)

    assert isinstance(caught.value.__cause__, OSError)
    assert len(task.trained) == batches
    with refused("could not be made: OSError"):
        trainer.evaluate(source())
    with refused("could not be made: OSError"):
        trainer.predict(source())


@pytest.mark.parametrize(
    ("second", "received"),
    [
        (np.ones((2, 3), "int32"), "batch: int32 (2, 3)"),
        (np.ones(2), "batch: float32 (2,)"),
        ((np.ones((2, 3)), np.ones(2)), "batch[0]: float32 (2, 3), batch[1]: float32 (2,)"),
    ],
)
def test_a_batch_of_another_kind_is_refused_by_its_number(second: Any, received: str):
    with refused(
        "Batch 2: structure, dtype or rank differs from earlier batches.", received=received
    ) as c:
        fit(iter([np.ones((2, 3)), second]), plan="graph")
    assert "batch: float32 (None, 3)" in str(c.value)


@pytest.mark.parametrize(
    ("source", "sentence", "received"),
    [
        (lambda: iter([]), "The data gave no batch.", "an iterator that ended at once"),
        (lambda: Readable(lambda: iter([])), "The data gave no batch.", "an iterator"),
        (lambda: Numbers(0), "The data gave no batch.", "an iterator that ended at once"),
        (lambda: iter([1.0, 2.0]), "The data was never batched.", "batch is a single number"),
        (
            lambda: iter([(np.ones(3), 1)]),
            "The data was never batched.",
            "batch[1] is a single number",
        ),
        (lambda: iter([None]), "Batch 1: batch holds Python objects", "dtype object"),
    ],
)
def test_batches_that_cannot_be_used_are_refused_before_the_first_step(
    source: Callable[[], Any], sentence: str, received: str
):
    task = Recorder()

    with refused(sentence, received=received):
        lw.Trainer(task).fit(source(), verbose=0)

    assert task.trained == []


# --- evaluate and predict ---


def test_some_steps_of_a_generator_leave_the_rest_of_it():
    batches = generated(20)
    trainer = lw.Trainer(Recorder(), plan="eager")

    assert trainer.evaluate(batches, steps=2) == {"loss": 3.5}
    assert trainer.predict(batches, steps=2).tolist() == list(range(8, 16))
    assert next(batches).tolist() == [16, 17, 18, 19]
    assert trainer.evaluate(Numbers(), steps=2) == {"loss": 1.5}
