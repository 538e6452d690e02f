"""Where the time of a run went; how many steps the next call runs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwright.loop.clock import PARTS, Pace, Stopwatch


def spent(**seconds: float) -> dict[str, float]:
    named = {name.replace("_", " "): value for name, value in seconds.items()}
    return dict.fromkeys(PARTS, 0.0) | named


def test_what_nobody_counted_was_python():
    watch = Stopwatch(clock=lambda: 0.0)
    watch.add("step", 6.0)
    watch.add("validation", 1.0)
    whole = watch.whole(10.0)
    assert whole == spent(step=6.0, validation=1.0, Python=3.0)
    assert tuple(whole) == PARTS


def test_time_counts_also_when_what_it_timed_raises():
    times = iter([1.0, 4.0])
    watch = Stopwatch(clock=lambda: next(times))
    with pytest.raises(KeyError), watch.timing("validation"):
        raise KeyError
    assert watch.seconds["validation"] == 3.0


def test_what_is_timed_inside_counts_once():
    times = iter([0.0, 1.0, 4.0, 10.0])
    watch = Stopwatch(clock=lambda: next(times))
    with watch.timing("validation"), watch.timing("callbacks"):
        pass
    assert watch.seconds["callbacks"] == 3.0
    assert watch.seconds["validation"] == 7.0
    assert watch.times["validation"] == watch.times["callbacks"] == 1


def test_the_longest_detail_of_a_part_is_known():
    times = iter([0.0, 1.0, 1.0, 3.0, 3.0, 4.5])
    watch = Stopwatch(clock=lambda: next(times))
    for detail in ("a", "b", "a"):
        with watch.timing("callbacks", detail):
            pass
    assert watch.largest("callbacks") == "a"
    assert watch.largest("logging") == ""


# --- the pace ---


def test_a_slow_call_is_believed_at_once():
    pace = Pace(seconds_per_call=1.0)
    pace.add(steps=1, seconds=0.01)
    pace.add(steps=16, seconds=0.16)
    assert pace.at_most_steps == 100
    pace.add(steps=100, seconds=50.0)
    assert pace.at_most_steps == 2


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
