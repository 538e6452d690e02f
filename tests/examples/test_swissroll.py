"""The example `swissroll`: both regressors learn, and the added loss is neither lost nor hidden."""

import numpy as np
import pytest
from tests.examples.conftest import Quick

import loopwright as lw
import swissroll


def test_both_learn(quick: Quick):
    variance = np.var(swissroll.load()[1])
    assert quick.scores["plain_mse"] < 0.3 * variance
    assert quick.scores["rebuilding_mse"] < 0.3 * variance
    assert quick.history["rebuilding"][-1] < 0.5 * quick.history["rebuilding"][0]
    assert quick.figures == {"data.png", "panels.png"}


def test_the_loss_of_the_second_is_its_error_and_a_twentieth_of_the_rebuilding_error():
    points, along = swissroll.load()
    trainer = lw.Trainer(swissroll.make_task(), plan="eager")
    scores = trainer.evaluate(points, along, batch_size=len(points))
    assert scores["plain"] == pytest.approx(scores["plain_mse"])
    added = 0.05 * scores["reconstruction_loss"]
    assert scores["rebuilding"] == pytest.approx(scores["rebuilding_mse"] + added, rel=1e-4)
    assert added > 0
