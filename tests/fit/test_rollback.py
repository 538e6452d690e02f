"""Which step spoiled a run."""

import pytest

from loopwright.fit.saved_leg import first_bad_step


@pytest.mark.parametrize("seen", [1, 2, 3, 10, 1000])
def test_the_first_bad_step_is_found_wherever_it_is(seen: int):
    for first in {1, 2, seen // 2, seen - 2, seen - 1, seen} & set(range(1, seen + 1)):
        assert first_bad_step(lambda n, first=first: n >= first, seen) == first


def test_the_usual_suspects_are_tried_first():
    tried: list[int] = []

    def goes_wrong(steps: int) -> bool:
        tried.append(steps)
        return steps >= 999

    assert first_bad_step(goes_wrong, 1000) == 999
    assert tried == [999, 998]


def test_few_replays_are_enough():
    tried: list[int] = []
    assert first_bad_step(lambda n: tried.append(n) or n >= 17, 10_000) == 17
    assert len(tried) <= 16
