"""The recipe `swissroll`: both regressors learn, and the added loss is neither lost nor hidden."""

from pathlib import Path

import numpy as np
import pytest

import loopwright as lw
from loopwright import testing
from loopwright.recipes import swissroll


def test_both_learn_and_a_second_call_says_the_same(tmp_path: Path):
    run_dir = str(tmp_path / "run")
    scores = swissroll.main(run_dir, plan="graph", quick=True)
    variance = np.var(swissroll.load()[1])
    assert scores["plain_mse"] < 0.3 * variance
    assert scores["rebuilding_mse"] < 0.3 * variance
    assert swissroll.main(run_dir, plan="graph", quick=True) == scores
    figures = {path.name for path in (tmp_path / "run" / "figures").iterdir()}
    assert figures == {"data.png", "panels.png"}


def test_two_models_with_an_added_loss_and_its_metric_resume_exactly():
    points, along = swissroll.load()
    testing.assert_resumes_exactly(
        lambda run_dir: lw.Trainer(swissroll.make_task(), run_dir=run_dir, plan="graph"),
        points[:320],
        along[:320],
        epochs=2,
        break_at=[7],
    )


def test_the_loss_of_the_second_is_its_error_and_a_twentieth_of_the_rebuilding_error():
    points, along = swissroll.load()
    trainer = lw.Trainer(swissroll.make_task(), plan="graph")
    scores = trainer.evaluate(points, along, batch_size=len(points))
    assert scores["plain"] == pytest.approx(scores["plain_mse"])
    added = 0.05 * scores["reconstruction_loss"]
    assert scores["rebuilding"] == pytest.approx(scores["rebuilding_mse"] + added, rel=1e-4)
    assert added > 0
