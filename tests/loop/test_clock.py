"""Where the time of a run went."""

import pytest

from loopwright.loop.clock import PARTS, Stopwatch


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
