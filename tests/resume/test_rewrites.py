"""Rewrites are part of the record of a run: resumed, it draws the random numbers it began with."""

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from tests.resume.program import AtStep, Noisy, arrays, fail

import loopwright as lw
from loopwright.checkpoints.manifest import signed

pytestmark = pytest.mark.kernels

PHILOX = lw.Plan("xla", "fused", "resident", rewrites=())
THREEFRY = lw.Plan("xla", "fused", "resident", rewrites=("threefry", "recurrent"))


class Sampled(Noisy):
    """Scored by one sample of its dropout."""

    def test_step(self, batch: Any) -> dict[str, Any]:
        x, y = batch
        predictions = self.model(x, training=True)
        self.error.update_state(y, predictions)
        return {"loss": keras.ops.mean((predictions - y) ** 2)}


def fit(trainer: lw.Trainer, fails_at: int = -1) -> None:
    x, y = arrays()
    callbacks = [AtStep(fails_at, fail)]
    given: Any = {"batch_size": 8, "epochs": 2, "save_every": "5 steps", "verbose": 0}
    trainer.fit(x, y, validation_data=(x, y), callbacks=callbacks, **given)


def failed(run_dir: Path, plan: Any) -> None:
    with pytest.raises(RuntimeError, match="the machine failed"):
        fit(lw.Trainer(Sampled(), plan=plan, run_dir=run_dir), fails_at=8)


def ended(trainer: lw.Trainer) -> tuple[Any, ...]:
    """Weights and scores after the whole run."""
    fit(trainer)
    scores = trainer.history.history["val_loss"]
    return *(weight.numpy() for weight in trainer.task.model.weights), np.array(scores)


def forget_rewrites(run_dir: Path) -> None:
    """Write the records in the form they had before there were rewrites."""
    manifests = list(run_dir.glob("checkpoints/*/manifest.json"))
    assert manifests
    for path in (run_dir / "plan.json", *manifests):
        assert '"rewrites"' in path.read_text()
        content = json.loads(path.read_text(), object_hook=without_rewrites)
        signature = content.pop("sha256", None)
        path.write_bytes(json.dumps(content).encode() if signature is None else signed(content))


def without_rewrites(content: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in content.items() if key != "rewrites"}


@pytest.mark.parametrize("plan", ["fused", "auto"])
def test_a_run_recorded_before_there_were_rewrites_goes_on_without_them(plan: str, tmp_path: Path):
    failed(tmp_path / "run", PHILOX)
    forget_rewrites(tmp_path / "run")
    resumed = lw.Trainer(Sampled(), plan=plan, run_dir=tmp_path / "run")
    for own, expected in zip(
        ended(resumed), ended(lw.Trainer(Sampled(), plan=PHILOX)), strict=True
    ):
        np.testing.assert_array_equal(own, expected)
    assert [change.plan for change in resumed.plan_history.changes] == [PHILOX]


def test_a_run_that_draws_by_threefry_goes_on_with_it(tmp_path: Path):
    failed(tmp_path / "run", "fused")
    resumed = lw.Trainer(Sampled(), plan="fused", run_dir=tmp_path / "run")
    whole = ended(lw.Trainer(Sampled(), plan=THREEFRY))
    for own, expected in zip(ended(resumed), whole, strict=True):
        np.testing.assert_array_equal(own, expected)
    assert [change.plan for change in resumed.plan_history.changes] == [THREEFRY]
    other = ended(lw.Trainer(Sampled(), plan=PHILOX))
    assert not np.array_equal(other[0], whole[0]), "the rewrite changes what is drawn in training"
    assert other[-1][0] != whole[-1][0], "and in validation"
