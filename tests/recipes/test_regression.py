"""The recipe `regression`: the error falls, and a run is repeated to the bit."""

from pathlib import Path

import pytest

import loopwright as lw
from loopwright import testing
from loopwright.recipes import regression


def test_the_error_falls_below_a_twentieth_and_a_second_call_says_the_same(tmp_path: Path):
    run_dir = str(tmp_path / "run")
    scores = regression.main(run_dir, plan="graph", quick=True)
    assert scores["mae"] < 0.05 * scores["mae_at_start"]
    assert regression.main(run_dir, plan="graph", quick=True) == scores
    figures = {path.name for path in (tmp_path / "run" / "figures").iterdir()}
    assert figures == {"data.png", "errors.png"}


def test_a_step_that_draws_its_own_batches_resumes_exactly():
    testing.assert_resumes_exactly(
        lambda run_dir: lw.Trainer(regression.make_task(), run_dir=run_dir, plan="graph"),
        until="30 steps",
        break_at=[17],
    )


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
