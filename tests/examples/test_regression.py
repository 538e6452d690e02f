"""The example `regression`: the error falls, and a run is repeated to the bit."""

import pytest
from tests.examples.conftest import Quick

import loopwright as lw
import regression


def test_the_error_falls_below_a_twentieth(quick: Quick):
    assert quick.scores["mae"] < 0.05 * quick.scores["mae_at_start"]
    assert quick.figures == {"data.png", "errors.png"}


def test_the_scaler_has_seen_the_training_data_only():
    data = regression.load()
    assert data["train"][0].mean(0) == pytest.approx([0] * 5, abs=1e-6)
    assert data["train"][0].std(0) == pytest.approx([1] * 5, abs=1e-4)
    assert abs(data["test"][0].mean(0)).max() > 0.01


def test_the_error_would_stay_flat_without_the_second_axis_of_the_labels():
    data = regression.load()
    x, y = data["train"]
    trainer = lw.Trainer(regression.Regression(regression.make_model(), x, y[:, 0]), plan="graph")
    at_start = trainer.evaluate(*data["test"])["mae"]
    trainer.fit(until="460 steps", verbose=0)
    assert trainer.evaluate(*data["test"])["mae"] > 0.8 * at_start
