"""Where the time of a run went."""

import pytest

from loopwright.stopwatch import PARTS, Stopwatch, advice


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


def test_waiting_for_data_is_named_with_both_rates():
    assert advice(spent(data_wait=8.59, step=1.41), steps=4100) == (
        "The data gave 410 batches/s, the step could take 2,908: cache or prefetch the data."
    )


def test_python_that_takes_most_of_the_time_is_named():
    told = advice(spent(step=4.0, Python=6.0), steps=100)
    assert told is not None
    assert told.startswith("Python between the steps took 60% of the time")


@pytest.mark.parametrize(
    "parts",
    [
        spent(step=10.0),
        spent(step=9.0, data_wait=1.0),
        spent(step=1.0, validation=9.0),
        spent(data_wait=1.0, step=0.1),
        spent(),
    ],
)
def test_nothing_is_said_where_there_is_nothing_to_gain(parts: dict[str, float]):
    assert advice(parts, steps=100) is None
