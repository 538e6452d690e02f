"""The example `imputation`: gaps are filled better than by straight lines, the same each time."""

from typing import Any

import numpy as np
import pytest
from tests.examples.conftest import Quick

import imputation
import loopwright as lw
from loopwright import testing


def test_what_is_trained_on_the_error_beats_straight_lines(quick: Quick):
    errors = quick.scores
    assert set(errors) == {"reconstruction", "adversarial", "mixed", "lines"}
    assert errors["reconstruction"] < 0.97 * errors["lines"]
    assert errors["mixed"] < 0.97 * errors["lines"]
    assert quick.history["mixed"][-1] < quick.history["mixed"][0]
    assert quick.figures == {"gaps.png"}


def test_an_imputer_and_its_adversary_resume_exactly(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(imputation, "WEIGHTS", {"mixed": (1.0, 0.02)})  # three take long
    few = {name: part[:8, :16] for name, part in imputation.load()["train"].items()}
    testing.assert_resumes_exactly(
        lambda run_dir: lw.Trainer(imputation.make_task(), run_dir=run_dir, plan="eager"),
        few,
        batch_size=2,
        epochs=1,
        break_at=[2],
    )


def test_straight_lines_are_those_of_numpy():
    random = np.random.default_rng(0)
    values = random.normal(size=(20, imputation.HOURS, 5)).astype("float32")
    is_seen = random.random(values.shape) < 0.3
    lines: Any = imputation.interpolate(values, is_seen).numpy()
    hours = np.arange(imputation.HOURS)
    for window in range(20):
        for column in range(5):
            seen = is_seen[window, :, column]
            expected = np.interp(hours, hours[seen], values[window, seen, column])
            np.testing.assert_allclose(lines[window, :, column], expected, atol=1e-5)


def test_seen_values_are_left_as_they_are_and_others_are_bent(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(imputation, "WEIGHTS", {"mixed": (1.0, 0.02)})
    test = {name: part[:8] for name, part in imputation.load()["test"].items()}
    task = imputation.make_task()
    task.predict_step(test)  # builds
    for imputer in task.imputers.values():
        imputer.layers[-1].bias.assign(np.ones(5))
    filled = {name: part.numpy() for name, part in task.predict_step(test).items()}
    is_seen = test["is_known"] & ~test["gaps"]
    for name in imputation.WEIGHTS:
        np.testing.assert_allclose(filled[name][is_seen], test["values"][is_seen], atol=1e-6)
        bent = filled[name] - filled["lines"]
        np.testing.assert_allclose(bent[~is_seen], np.ones(np.sum(~is_seen)), atol=1e-5)
