"""Weighted means over an epoch."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwright.engine.epoch_metrics import Meter


def test_a_mean_is_weighted():
    meter = Meter()
    meter.add({"loss": (6.0, 3.0)})
    meter.add({"loss": (1.0, 1.0)})
    assert meter.means() == {"loss": 1.75}


def test_each_name_has_a_mean_of_its_own_from_when_it_first_came():
    meter = Meter()
    meter.add({"loss": (2.0, 1.0)})
    meter.add({"loss": (4.0, 1.0), "penalty": (5.0, 1.0)})
    assert meter.means() == {"loss": 3.0, "penalty": 5.0}


def test_a_name_that_never_had_weight_has_no_mean():
    meter = Meter()
    meter.add({"loss": (1.0, 1.0), "masked": (0.0, 0.0)})
    assert meter.means() == {"loss": 1.0}
    meter.add({"masked": (3.0, 1.0)})
    assert meter.means() == {"loss": 1.0, "masked": 3.0}


def test_reading_the_means_changes_nothing():
    meter = Meter()
    meter.add({"loss": (6.0, 3.0)})
    meter.means()["loss"] = 0.0
    assert meter.means() == {"loss": 2.0}


def test_after_a_reset_nothing_is_known():
    meter = Meter()
    meter.add({"loss": (6.0, 3.0)})
    meter.reset()
    assert meter.means() == {}
    meter.add({"loss": (1.0, 1.0)})
    assert meter.means() == {"loss": 1.0}


def test_a_nan_is_reported_and_not_hidden():
    meter = Meter()
    meter.add({"loss": (math.nan, 1.0)})
    meter.add({"loss": (1.0, 1.0)})
    assert math.isnan(meter.means()["loss"])


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
