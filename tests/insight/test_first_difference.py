"""The first step at which two runs differ is found, whatever they have saved."""

from collections.abc import Sequence

import hypothesis
import pytest
from hypothesis import strategies as st

from loopwright.insight.first_difference import (
    NotReproducedError,
    State,
    bisect_states,
)


class Numbers:
    """A run whose state after each step is known; it counts the steps that it replays."""

    def __init__(self, steps: Sequence[int], other_since: int | None = None, lies: bool = False):
        self.steps, self._other_since, self._lies = sorted(steps), other_since, lies
        self.replayed, self._at, self._asked = 0, 0, 0
        self._known = {0, *steps}

    def ask(self, step: int) -> None:
        self._asked = step

    def answer(self) -> State:
        step = self._asked
        if step not in self.steps:
            start = max(known for known in self._known if known <= step)
            start = self._at if start <= self._at <= step else start
            self.replayed += step - start
            self._at = step
            self._known.add(step)
        differs = self._other_since is not None and step >= self._other_since
        return State(step, {"step": str(step), "weight": f"{step} {differs}"})

    def disagreement(self, step: int) -> list[str]:
        return ["weight"] if self._lies else []


@st.composite
def two_runs(draw: st.DrawFn) -> tuple[Numbers, Numbers, int]:
    last = draw(st.integers(1, 3000))
    since = draw(st.integers(0, last))
    saved = [draw(st.lists(st.integers(1, last), max_size=8)) for _ in range(2)]
    return Numbers([*saved[0], last]), Numbers([*saved[1], last], since), since


@hypothesis.given(two_runs(), st.lists(st.integers(1, 3000), max_size=1))
def test_the_first_step_is_found_by_replaying_the_runs_a_few_times_whatever_the_hint(given, hints):
    one, other, since = given
    found = bisect_states(one, other, hints=hints)
    assert found is not None
    assert (found.step, found.variables) == (since, ["weight"])
    # Once in sections, and once for each half of the steps that only the other run has saved.
    last, halves = max(one.steps), 5
    assert max(one.replayed, other.replayed) <= (1 + halves + len(hints)) * last + 64


def test_nothing_before_an_equal_checkpoint_is_replayed():
    one, other = Numbers([500, 1000]), Numbers([500, 1000], 777)
    found = bisect_states(one, other, known_equal=[500])
    assert found is not None
    assert found.step == 777
    assert one.replayed < 600


def test_equal_runs_have_no_first_difference():
    assert bisect_states(Numbers([50, 100]), Numbers([80, 100])) is None
    assert bisect_states(Numbers([100]), Numbers([100]), known_equal=[100]) is None
    assert bisect_states(Numbers([100]), Numbers([300], 200)) is None  # the shorter one decides


@pytest.mark.parametrize("liar", [0, 1])
def test_a_replay_that_does_not_reach_the_recorded_state_is_told(liar):
    one, other = Numbers([100], lies=liar == 0), Numbers([100], 50, lies=liar == 1)
    with pytest.raises(NotReproducedError, match="does not reach the state") as caught:
        bisect_states(one, other)
    assert caught.value.which == liar
