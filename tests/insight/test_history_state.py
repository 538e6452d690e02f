"""A run is replayed to any of its steps, bit for bit, and nothing of it changes."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.tasks import ByHand

import loopwright as lw
from loopwright.insight.first_difference import bisect_states
from loopwright.insight.history_state import run_states

pytestmark = pytest.mark.kernels

X = np.random.default_rng(0).normal(size=(100, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


class Flipped(ByHand):
    """A regression whose labels are moved a little at one step."""

    def __init__(self, flip_at: int = 0, rate: Any = 1e-3):
        keras.utils.set_random_seed(0)
        layers = [keras.layers.Dense(8, "relu"), keras.layers.Dropout(0.2, seed=1)]
        model = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(1)])
        super().__init__(model, keras.optimizers.Adam(rate))
        self.flip_at = flip_at

    def loss_of(self, x: Any, y: Any) -> Any:
        y = tf.where(self.step_counter == self.flip_at - 1, y + 1e-3, y)
        return super().loss_of(x, y)


def data(kind: str) -> dict[str, Any]:
    if kind == "arrays":
        return {"x": X, "y": Y, "batch_size": 10}
    stream = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(50, seed=3).batch(10)
    return {"x": stream}


def trained(run_dir: Path, given: dict[str, Any], **options: Any) -> None:
    fit = {"epochs": 4, "verbose": 0, **given}
    plan = options.pop("plan", "graph")
    keep = [lw.KeepLatest(options.pop("latest", 20))]
    save_every = options.pop("save_every", "7 steps")
    trainer = lw.Trainer(Flipped(**options), run_dir=run_dir, plan=plan, keep=keep)
    trainer.fit(**fit, save_every=save_every)


def states(run_dir: Path, given: dict[str, Any], **options: Any) -> Any:
    fit = {"epochs": 4, **given}
    return run_states(lw.Trainer(Flipped(**options), run_dir=run_dir), **fit)


@pytest.mark.parametrize("kind", ["arrays", "stream"])
def test_a_replayed_state_is_the_one_that_the_run_recorded(kind, tmp_path):
    trained(tmp_path / "run", data(kind))
    with states(tmp_path / "run", data(kind)) as found:
        assert found.steps == [7, 14, 21, 28, 35, 40]
        assert found.reasons == []
        for step in (28, 14, 40, 7):
            replayed = found.replayed(step, passes=True)
            assert not replayed.differing(found.recorded(step))
        for step in found.steps:
            assert found.disagreement(step) == []


def test_a_replay_follows_the_plans_of_the_run(tmp_path):
    plans = lw.PlanHistory().changed(0, lw.Plan()).changed(11, lw.Plan("xla", "fused"))
    trained(tmp_path / "run", data("arrays"), plan=plans, save_every="20 steps")
    with states(tmp_path / "run", data("arrays")) as found:
        assert not found.replayed(40, passes=True).differing(found.recorded(40))
        plans = [found.facts(step)["plan"] for step in (11, 12)]
        assert plans[0] != plans[1]


def test_what_has_changed_since_is_told(tmp_path):
    trained(tmp_path / "run", data("arrays"))
    with states(tmp_path / "run", {**data("arrays"), "x": X + 1}, rate=0.5) as found:
        assert any("the program differs now: learning_rate" in text for text in found.reasons)
        assert any("the data differs now" in text for text in found.reasons)


def test_the_first_step_that_differs_is_found_between_checkpoints(tmp_path):
    trained(tmp_path / "one", data("arrays"), latest=1)
    trained(tmp_path / "other", data("arrays"), flip_at=23, save_every="9 steps")
    one = lw.Trainer(Flipped(), run_dir=tmp_path / "one")
    other = lw.Trainer(Flipped(flip_at=23), run_dir=tmp_path / "other")
    found = lw.first_difference(one, other, **data("arrays"), epochs=4)
    assert found is not None
    assert (found.step, found.variables[0]) == (23, "model.layers[0].kernel")
    at_checkpoints = lw.first_difference(tmp_path / "one", str(tmp_path / "other"))
    assert at_checkpoints is not None
    assert at_checkpoints.step == 40  # the only checkpoint of both
    assert lw.first_difference(tmp_path / "one", tmp_path / "one") is None
    with pytest.raises(lw.ConfigurationError, match="no state to compare"):
        lw.first_difference(one, tmp_path / "other")


def test_another_batch_shows_in_the_facts_of_a_step(tmp_path):
    changed = {**data("arrays"), "y": Y + np.eye(100, 1, dtype="float32")}
    for name, given in (("one", data("arrays")), ("other", changed)):
        trained(tmp_path / name, given)
    with (
        states(tmp_path / "one", data("arrays")) as one,
        states(tmp_path / "other", changed) as other,
    ):
        found = bisect_states(one, other)
        assert found is not None
        before, at = (
            [each.facts(step)["batch"] for each in (one, other)]
            for step in (max(1, found.step - 1), found.step)
        )
    assert at[0] != at[1]
    assert found.step == 1 or before[0] == before[1]
