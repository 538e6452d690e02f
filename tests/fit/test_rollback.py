"""Which step spoiled a run."""

import pytest

from loopwright.fit.rollback import first_bad_step


@pytest.mark.parametrize("seen", [1, 2, 3, 10, 1000])
def test_the_first_bad_step_is_found_wherever_it_is(seen: int):
    for first in {1, 2, seen // 2, seen - 2, seen - 1, seen} & set(range(1, seen + 1)):
        assert first_bad_step(lambda n, first=first: n >= first, seen) == first


def test_few_replays_are_enough():
    tried: list[int] = []
    assert first_bad_step(lambda n: tried.append(n) or n >= 17, 10_000) == 17
    assert len(tried) <= 16
