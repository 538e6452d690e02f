"""Weighted means over an epoch."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwright.engine.epoch_metrics import Meter


def means_after(*parts: dict[str, tuple[float, float]]) -> dict[str, float]:
    meter = Meter()
    for part in parts:
        meter.add(part)
    return meter.means()


def test_each_name_has_a_weighted_mean_from_when_it_first_had_weight():
    assert means_after({"loss": (6.0, 3.0)}, {"loss": (1.0, 1.0)}) == {"loss": 1.75}
    masked = {"loss": (2.0, 1.0), "masked": (0.0, 0.0)}
    assert means_after(masked) == {"loss": 2.0}
    later = {"loss": (4.0, 1.0), "masked": (5.0, 1.0)}
    assert means_after(masked, later) == {"loss": 3.0, "masked": 5.0}


def test_reading_the_means_changes_nothing_and_after_a_reset_nothing_is_known():
    meter = Meter()
    meter.add({"loss": (6.0, 3.0)})
    meter.means()["loss"] = 0.0
    assert meter.means() == {"loss": 2.0}
    meter.reset()
    assert meter.means() == {}
    meter.add({"loss": (1.0, 1.0)})
    assert meter.means() == {"loss": 1.0}


def test_a_nan_is_reported_and_not_hidden():
    assert math.isnan(means_after({"loss": (math.nan, 1.0)}, {"loss": (1.0, 1.0)})["loss"])


numbers = st.floats(-1e3, 1e3)
weights = st.floats(1e-3, 1e3)


@given(st.lists(st.tuples(numbers, weights), min_size=1), st.integers(0, 20))
def test_a_mean_does_not_depend_on_how_the_numbers_came_in(
    parts: list[tuple[float, float]], cut: int
):
    at_once, in_two = Meter(), Meter()
    totals = [(value * weight, weight) for value, weight in parts]
    for total, weight in totals:
        at_once.add({"loss": (total, weight)})
    for some in (totals[:cut], totals[cut:]):
        in_two.add({"loss": (sum(t for t, _ in some), sum(w for _, w in some))})
    assert at_once.means()["loss"] == pytest.approx(in_two.means()["loss"], rel=1e-9, abs=1e-9)
