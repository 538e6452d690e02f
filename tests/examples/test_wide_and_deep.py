"""The example `wide_and_deep`: two paths are better than one, each with its optimizer."""

import numpy as np
from tests.examples.conftest import Quick

import loopwright as lw
import wide_and_deep


def test_both_paths_together_beat_either_alone(quick: Quick):
    errors = quick.scores
    assert errors["both"] < 0.9 * min(errors["wide"], errors["deep"])
    assert quick.history["both"][-1] < 0.5 * quick.history["both"][0]
    assert quick.figures == {"errors.png"}


def test_each_path_is_moved_by_its_own_optimizer():
    x, y = wide_and_deep.load()["train"]
    task = wide_and_deep.make_task()
    both = task.models["both"]
    assert both.wide is not None
    assert both.deep is not None
    both.deep.build((None, 4))
    deep_before = [variable.numpy() for variable in both.deep.trainable_variables]
    task.deep_optimizers["both"].learning_rate = 0.0
    lw.Trainer(task, plan="eager").fit(x, y, batch_size=64, until="5 steps", verbose=0)
    assert np.any(both.wide.embeddings.numpy())
    for before, variable in zip(deep_before, both.deep.trainable_variables, strict=True):
        np.testing.assert_array_equal(variable.numpy(), before)


def test_means_and_deviations_come_from_training_days_only():
    data = wide_and_deep.load()
    assert len(data["train"][1]) > 15_000
    assert len(data["test"][1]) > 5_000
    deep = data["train"][0]["deep"]
    assert np.abs(deep.mean(0)).max() < 1e-3
    assert np.abs(data["test"][0]["deep"].mean(0)).max() > 0.01
