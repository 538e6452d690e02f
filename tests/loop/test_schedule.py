"""Intervals as people write them, and the stops that follow from them."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwright.errors import ConfigurationError
from loopwright.loop.schedule import (
    Every,
    Position,
    Schedule,
    Stop,
    after,
    every,
    moved,
)

# --- intervals ---


@pytest.mark.parametrize(
    ("text", "interval"),
    [
        ("1 step", Every(steps=1)),
        ("1_000_000 steps", Every(steps=1_000_000)),
        ("1,000,000 steps", Every(steps=1_000_000)),
        ("20 epochs", Every(epochs=20)),
        ("1 second", Every(seconds=1)),
        ("10 minutes", Every(seconds=600)),
        ("1 hour", Every(seconds=3600)),
        ("12 days", Every(seconds=12 * 86400)),
        ("30 s", Every(seconds=30)),
        ("30 sec", Every(seconds=30)),
        ("6 h", Every(seconds=21600)),
        ("2 d", Every(seconds=172800)),
        ("1.5 hours", Every(seconds=5400)),
        (".5 h", Every(seconds=1800)),
        ("10min", Every(seconds=600)),
        ("  500   STEPS ", Every(steps=500)),
    ],
)
def test_an_interval_is_read_as_people_write_it(text: str, interval: Every):
    assert every(text) == interval == every(interval) == every(str(interval))


@pytest.mark.parametrize(
    "text",
    [
        *("", "500", "steps", "five steps", "500 stepss", "500 iterations", "100 ms", 500, None),
        *("-5 steps", "1e3 steps", "2.0 steps", "1.5 epochs", "inf seconds", "nan seconds"),
        *("1 hour 30 minutes", "_5 steps", "1__0 steps", "1_.5 minutes", "1,5 minutes"),
    ],
)
def test_what_is_no_interval_is_refused_in_words_and_quoted(text: Any):
    with pytest.raises(ConfigurationError) as refusal:
        every(text)
    assert str(refusal.value) == (
        "This is not an interval.\n"
        '  expected: a number and a unit: "500 steps", "1 epoch", "10 minutes", "6 hours"\n'
        f"  received: {text!r}\n"
        "  do: add or correct the unit; steps and epochs are whole numbers"
    )


@pytest.mark.parametrize(
    ("arguments", "received"),
    [
        ({}, "Every()"),
        ({"steps": 5, "epochs": 2}, "Every(steps=5, epochs=2)"),
        ({"steps": 5, "epochs": 2, "seconds": 1.0}, "Every(steps=5, epochs=2, seconds=1.0)"),
        ({"steps": 0}, "Every(steps=0)"),
        ({"epochs": -1}, "Every(epochs=-1)"),
        ({"seconds": 0.0}, "Every(seconds=0.0)"),
        ({"seconds": math.nan}, "Every(seconds=nan)"),
        ({"steps": 2.5}, "Every(steps=2.5)"),
        ({"epochs": 1.5}, "Every(epochs=1.5)"),
    ],
)
def test_an_interval_without_exactly_one_positive_unit_is_refused(
    arguments: dict[str, Any], received: str
):
    with pytest.raises(ConfigurationError) as refusal:
        Every(**arguments)
    assert str(refusal.value) == (
        "An interval has exactly one unit and is greater than zero.\n"
        "  expected: Every(steps=...), Every(epochs=...) or Every(seconds=...)\n"
        f"  received: {received}\n"
        '  do: write it as a value with a unit: "500 steps", "1 epoch", "10 minutes", "6 hours"; '
        "steps and epochs are whole"
    )


# --- stops, as lists ---


def stops_of(schedule: Schedule, bounds: Sequence[int | None] = (None,)) -> list[Stop]:
    """All stops of a run whose calls are bounded by these numbers, over and over."""
    position, stops = Position(), list[Stop]()
    while not stops or not stops[-1].ends_run:
        assert len(stops) < 1000
        bound = bounds[len(stops) % len(bounds)]
        stops.append(schedule.next_stop(position, at_most_steps=bound))
        here = moved(position, steps=stops[-1].step - position.step, seconds=0.0)
        position = after(stops[-1], here, seconds=0.0)
    return stops


def plain(step: int) -> Stop:
    return Stop(step, validate=True)


def ends_epoch(step: int, *, validate: bool = False) -> Stop:
    return Stop(step, validate=validate, ends_epoch=True)


def ends_run(step: int, *, validate: bool = False) -> Stop:
    return Stop(step, validate=validate, ends_epoch=True, ends_run=True)


@pytest.mark.parametrize(
    ("schedule", "total"),
    [
        (Schedule(10, Every(epochs=3)), 30),
        (Schedule(10, Every(steps=7)), 7),
        (Schedule(None, Every(steps=7)), 7),
        (Schedule(None, Every(epochs=3)), None),
        (Schedule(10, Every(seconds=7)), None),
    ],
)
def test_the_total_is_known_where_it_can_be(schedule: Schedule, total: int | None):
    assert schedule.total_steps == total


# --- stops found out while running ---


def test_a_run_of_seconds_ends_at_the_first_stop_after_them():
    schedule = Schedule(10, until=Every(seconds=60), validate_every=Every(epochs=1))
    early, late = (Position(step=4, step_in_epoch=4, seconds=s) for s in (59.5, 60.0))
    assert schedule.stop_at(early) == Stop(4)
    assert schedule.stop_at(late) == ends_run(4, validate=True)


def test_without_any_plan_the_next_stop_is_the_next_step():
    assert Schedule(None, until=Every(seconds=60)).next_stop(Position(step=7)).step == 8


def test_validation_every_some_seconds_counts_from_the_one_before():
    schedule = Schedule(1000, until=Every(epochs=1), validate_every=Every(seconds=60))
    position = Position(
        step=5, step_in_epoch=5, seconds=130.0, validated_step=3, validated_seconds=70.5
    )
    assert schedule.stop_at(position) == Stop(5)
    assert schedule.stop_at(Position(step=5, step_in_epoch=5, seconds=59.9)) == Stop(5)
    later = Position(6, 0, 6, seconds=130.5, validated_step=3, validated_seconds=70.5)
    assert schedule.stop_at(later) == plain(6)


def test_what_was_just_validated_is_not_validated_again_when_its_epoch_turns_out_to_be_over():
    schedule = Schedule(None, until=Every(epochs=2), validate_every=Every(steps=4))
    position = Position(step=8, step_in_epoch=8, validated_step=8)
    assert schedule.stop_at(replace(position, epoch_ended=True)) == ends_epoch(8)


def test_the_data_may_end_an_epoch_and_with_it_the_run():
    schedule = Schedule(None, until=Every(epochs=2), validate_every=Every(epochs=1))
    first, second = (Position(step=5, epoch=epoch, step_in_epoch=5) for epoch in (0, 1))
    assert schedule.stop_at(first) == Stop(5)
    assert schedule.stop_at(replace(first, epoch_ended=True)) == ends_epoch(5, validate=True)
    assert schedule.stop_at(replace(second, epoch_ended=True)) == ends_run(5, validate=True)


def test_leaving_ends_epoch_and_run_and_validates():
    schedule = Schedule(10, until=Every(epochs=2), validate_every=Every(epochs=2))
    assert schedule.stop_at(Position(3, 0, 3), leaving=True) == ends_run(3, validate=True)
    assert Schedule(10, Every(epochs=2)).stop_at(Position(3, 0, 3), leaving=True) == ends_run(3)


@pytest.mark.parametrize(
    ("schedule", "position"),
    [
        (Schedule(10, Every(epochs=2)), Position(30, 3, 0)),
        (Schedule(10, Every(epochs=2)), Position(25, 2, 5)),
        (Schedule(10, Every(steps=15)), Position(18, 1, 8)),
        (Schedule(None, Every(steps=15)), Position(18, 1, 8)),
    ],
)
def test_a_place_beyond_the_end_of_a_run_ends_it_without_a_step(
    schedule: Schedule, position: Position
):
    stop = schedule.next_stop(position)
    assert (stop.step, stop.ends_run) == (position.step, True)


def test_a_place_beyond_the_end_of_its_epoch_ends_it_without_a_step():
    stop = Schedule(6, Every(epochs=9)).next_stop(Position(28, 2, 8))
    assert stop == ends_epoch(28)


def test_after_a_stop_the_place_remembers_what_was_done_there():
    position = Position(10, epoch=1, step_in_epoch=5, seconds=20.0, validated_step=5)
    done = replace(position, seconds=21.0, is_due=False, epoch_ended=False)
    assert after(Stop(10), position, seconds=21.0) == done
    validated = replace(done, validated_step=10, validated_seconds=21.0)
    assert after(plain(10), position, seconds=21.0) == validated
    next_epoch = replace(done, epoch=2, step_in_epoch=0, epoch_began_seconds=21.0)
    assert after(ends_epoch(10), position, seconds=21.0) == next_epoch
    assert after(ends_run(10), position, seconds=21.0) == replace(next_epoch, is_over=True)
    assert after(Stop(10, save=True), position, seconds=21.0) == replace(done, saved_seconds=21.0)


def test_an_interval_may_be_a_numpy_integer():
    interval = Every(steps=np.int64(40))  # pyright: ignore[reportArgumentType]
    schedule = Schedule(100, until=Every(epochs=1), validate_every=interval)
    assert not schedule.next_stop(Position(), at_most_steps=7).validate


# --- what holds for every schedule ---

lengths = st.integers(1, 30)
durations = st.one_of(
    st.builds(Every, epochs=st.integers(1, 5)), st.builds(Every, steps=st.integers(1, 100))
)
intervals = st.one_of(
    st.builds(Every, epochs=st.integers(1, 4)), st.builds(Every, steps=st.integers(1, 50))
)
schedules = st.builds(Schedule, lengths, durations, st.none() | intervals)


def total_of(schedule: Schedule) -> int:
    assert schedule.total_steps is not None
    return schedule.total_steps


def epoch_ends(schedule: Schedule) -> set[int]:
    assert schedule.steps_per_epoch is not None
    total = total_of(schedule)
    return {*range(schedule.steps_per_epoch, total + 1, schedule.steps_per_epoch), total}


@given(schedules)
def test_every_step_lies_between_two_stops_exactly_once(schedule: Schedule):
    stops = [0, *(stop.step for stop in stops_of(schedule))]
    calls = [range(start, end) for start, end in itertools.pairwise(stops)]
    assert all(calls)
    assert [step for call in calls for step in call] == list(range(total_of(schedule)))


@given(schedules)
def test_exactly_the_last_step_of_each_epoch_ends_it_and_the_last_of_all_the_run(
    schedule: Schedule,
):
    stops = stops_of(schedule)
    assert {stop.step for stop in stops if stop.ends_epoch} == epoch_ends(schedule)
    assert [stop.step for stop in stops if stop.ends_run] == [total_of(schedule)]


@given(lengths, durations, intervals)
def test_validation_happens_at_every_multiple_and_at_the_end_and_nowhere_else(
    length: int, until: Every, interval: Every
):
    schedule = Schedule(length, until, interval)
    total = total_of(schedule)
    in_steps = interval.steps or (interval.epochs or 0) * length
    validated = [stop.step for stop in stops_of(schedule) if stop.validate]
    assert validated == sorted({*range(in_steps, total + 1, in_steps), total})


@given(schedules, st.lists(st.integers(1, 40), min_size=1))
def test_bounded_calls_add_stops_and_change_none_that_was_planned(
    schedule: Schedule, bounds: list[int]
):
    stops = stops_of(schedule, bounds)
    due = [s for s in stops if s.validate or s.ends_epoch or s.ends_run]
    assert due == stops_of(schedule)
    steps = [0, *(s.step for s in stops)]
    assert all(0 < b - a <= max(bounds) for a, b in itertools.pairwise(steps))


@given(st.integers(1, 100), intervals, st.lists(st.integers(1, 40), min_size=1))
def test_a_run_of_unknown_epochs_ends_at_its_number_of_steps(
    total: int, interval: Every, bounds: list[int]
):
    schedule = Schedule(None, Every(steps=total), interval)
    stops = stops_of(schedule, bounds)
    assert stops[-1] == ends_run(total, validate=True)
    assert not any(stop.ends_epoch for stop in stops[:-1])
    if interval.steps is not None:
        expected = sorted({*range(interval.steps, total + 1, interval.steps), total})
        assert [stop.step for stop in stops if stop.validate] == expected


@given(st.integers(1, 10**9))
def test_every_number_of_steps_is_read_back_from_its_text(steps: int):
    assert every(str(Every(steps=steps))) == Every(steps=steps)
    assert every(f"{steps:_} steps") == every(f"{steps:,} steps") == Every(steps=steps)
