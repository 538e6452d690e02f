"""Weighted means over an epoch."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import loopwright as lw
from loopwright.engine.metrics import EpochMetrics, Updates

Totals = dict[str, tuple[float, float]]


def metrics_after(*parts: Totals) -> EpochMetrics:
    task = lw.Task()
    metrics = EpochMetrics(task, "train_step", Updates(task))
    for part in parts:
        metrics.add(part)
    return metrics


def test_each_name_has_a_weighted_mean_from_when_it_first_had_weight():
    masked = {"loss": (6.0, 3.0), "masked": (0.0, 0.0)}
    metrics = metrics_after(masked)
    assert metrics.numbers() == {"loss": 2.0}
    metrics.add({"loss": (1.0, 1.0), "masked": (5.0, 1.0)})
    assert metrics.numbers() == {"loss": 1.75, "masked": 5.0}
    metrics.start()
    assert metrics.numbers() == {}


def test_a_nan_is_reported_and_not_hidden():
    metrics = metrics_after({"loss": (math.nan, 1.0)}, {"loss": (1.0, 1.0)})
    assert math.isnan(metrics.numbers()["loss"])


numbers = st.floats(-1e3, 1e3)
weights = st.floats(1e-3, 1e3)


@given(st.lists(st.tuples(numbers, weights), min_size=1), st.integers(0, 20))
def test_a_mean_does_not_depend_on_how_the_numbers_came_in(
    parts: list[tuple[float, float]], cut: int
):
    totals = [(value * weight, weight) for value, weight in parts]
    at_once = metrics_after(*({"loss": pair} for pair in totals)).numbers()["loss"]
    halves = (totals[:cut], totals[cut:])
    sums = [{"loss": (sum(t for t, _ in half), sum(w for _, w in half))} for half in halves]
    assert metrics_after(*sums).numbers()["loss"] == pytest.approx(at_once, rel=1e-9, abs=1e-9)
