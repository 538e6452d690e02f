"""How many steps the next call runs."""

from hypothesis import given
from hypothesis import strategies as st

from loopwright.loop.clock import Pace


def test_the_first_call_is_one_step():
    assert Pace(seconds_per_call=100.0).at_most_steps == 1


def test_a_call_grows_sixteenfold_at_most():
    pace = Pace(seconds_per_call=1000.0)
    for expected in (16, 256, 4096):
        pace.add(steps=pace.at_most_steps, seconds=pace.at_most_steps * 1e-3)
        assert pace.at_most_steps == expected


def test_calls_settle_at_the_wanted_length():
    pace = Pace(seconds_per_call=0.5)
    for _ in range(10):
        pace.add(steps=pace.at_most_steps, seconds=pace.at_most_steps * 0.001)
    assert pace.at_most_steps == 500


def test_a_slow_call_is_believed_at_once():
    pace = Pace(seconds_per_call=1.0)
    pace.add(steps=1, seconds=0.01)
    pace.add(steps=16, seconds=0.16)
    assert pace.at_most_steps == 100
    pace.add(steps=100, seconds=50.0)
    assert pace.at_most_steps == 2


def test_a_step_slower_than_a_call_is_still_a_call():
    pace = Pace(seconds_per_call=0.25)
    pace.add(steps=1, seconds=30.0)
    assert pace.at_most_steps == 1


def test_a_call_cut_short_by_the_end_of_an_epoch_does_not_shrink_the_next():
    pace = Pace(seconds_per_call=1.0)
    for steps in (1, 16, 256):
        pace.add(steps=steps, seconds=steps * 0.001)
    assert pace.at_most_steps == 1000
    pace.add(steps=2, seconds=0.002)
    assert pace.at_most_steps == 16 * (1000 // 16)


def test_a_call_without_a_step_teaches_nothing():
    pace = Pace(seconds_per_call=1.0)
    pace.add(steps=1, seconds=0.1)
    assert pace.at_most_steps == 10
    pace.add(steps=0, seconds=5.0)
    assert pace.at_most_steps == 10


def test_a_clock_that_did_not_move_is_no_division_by_zero():
    pace = Pace(seconds_per_call=0.25)
    pace.add(steps=1, seconds=0.0)
    assert pace.at_most_steps == 16


calls = st.lists(st.tuples(st.integers(0, 10_000), st.floats(0.0, 1e4)))


@given(st.floats(1e-3, 1e3), calls)
def test_whatever_is_measured_the_next_call_has_a_step_and_grows_within_bounds(
    seconds_per_call: float, measured: list[tuple[int, float]]
):
    pace = Pace(seconds_per_call)
    for steps, seconds in measured:
        before = pace.at_most_steps
        pace.add(steps=steps, seconds=seconds)
        assert pace.at_most_steps >= 1
        assert pace.at_most_steps <= 16 * max(steps, before)
