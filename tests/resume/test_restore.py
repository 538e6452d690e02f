"""The state of an earlier moment, put back into a task."""

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from tests.resume.program import Noisy, arrays, digest, train

import loopwright as lw
from loopwright import state, tensors

KEEP_ALL = [lw.KeepLatest(100)]


class Unbuilt(Noisy):
    """Its model has no variables before the first batch."""

    def __init__(self):
        super().__init__()
        self.model = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(1)])

    def predict_step(self, batch):
        return self.model(batch, training=False)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: Any) -> tuple[Path, lw.Trainer]:
    run_dir = tmp_path_factory.mktemp("restore") / "run"
    keep = [*KEEP_ALL, lw.KeepBest("val_loss")]
    trainer, _ = train(run_dir, "arrays", "graph", epochs=2, keep=keep)
    return run_dir, trainer


def steps(run_dir: Path) -> list[int]:
    return sorted(int(p.name[5:]) for p in (run_dir / "checkpoints").glob("step-????????"))


def saved(run_dir: Path, step: int) -> Any:
    return tensors.read(run_dir / "checkpoints" / f"step-{step:08d}" / "state")


def assert_holds(trainer: lw.Trainer, run_dir: Path, step: int) -> None:
    found = saved(run_dir, step)
    for name, variable in state.named(trainer.task).items():
        if name != "step":
            assert np.array_equal(variable.numpy(), found[name].numpy()), name


def test_a_step_is_restored_bit_by_bit_into_a_task_that_has_seen_no_data(trained: Any):
    run_dir, _ = trained
    fresh = lw.Trainer(Noisy(), run_dir=run_dir)
    assert fresh.restore(10) == 10
    assert_holds(fresh, run_dir, 10)


def test_the_last_and_the_best_are_restored_by_name(trained: Any):
    run_dir, trainer = trained
    fresh = lw.Trainer(Noisy(), run_dir=run_dir, keep=[lw.KeepBest("val_loss")])
    assert fresh.restore("last") == max(steps(run_dir))
    after_fit = trainer.task.model.get_weights()  # with the averages in place, as Keras has it
    assert all(map(np.array_equal, fresh.task.model.get_weights(), after_fit))
    scores: dict[int, float] = {}
    for step in steps(run_dir):
        manifest = run_dir / "checkpoints" / f"step-{step:08d}" / "manifest.json"
        scores[step] = json.loads(manifest.read_text())["content"]["scores"].get("loss", np.inf)
    assert fresh.restore("best") == min(scores, key=lambda step: (scores[step], step))
    first = fresh.evaluate(*arrays(20))["loss"]
    assert first == pytest.approx(min(scores.values()))


def test_what_was_restored_between_two_legs_is_trained_on_and_the_run_goes_forward(tmp_path: Path):
    def script(run_dir: Any, fails: bool = False) -> lw.Trainer:
        trainer = lw.Trainer(Noisy(), run_dir=run_dir, plan="graph", keep=KEEP_ALL)
        common: Any = {"batch_size": 8, "save_every": "5 steps", "verbose": 0}
        trainer.fit(*arrays(), epochs=2, **common)
        assert trainer.restore(10) == 10
        for event in trainer.events(*arrays(), epochs=1, batch_size=8, save_every="5 steps"):
            if fails and isinstance(event, lw.Saved):
                raise RuntimeError("the machine failed")
        return trainer

    whole = script(tmp_path / "whole")
    assert int(whole.task.step_counter) == 39
    with pytest.raises(RuntimeError, match="the machine failed"):
        script(tmp_path / "twice", fails=True)
    assert digest(script(tmp_path / "twice").task) == digest(whole.task)


def test_a_model_that_is_not_built_yet_is_built_from_what_the_run_knows(tmp_path: Path):
    first = lw.Trainer(Unbuilt(), run_dir=tmp_path, plan="graph")
    first.fit(*arrays(), batch_size=8, verbose=0)
    fresh = lw.Trainer(Unbuilt(), run_dir=tmp_path)
    fresh.restore("last")
    x, _ = arrays()
    assert np.array_equal(fresh.predict(x), first.predict(x))


@pytest.mark.parametrize(
    ("which", "words"),
    [
        (11, "choose another step"),
        ("newest", "does not name a checkpoint"),
        (True, "does not name"),
    ],
)
def test_what_is_not_there_is_refused_with_what_is(trained: Any, which: Any, words: str):
    with pytest.raises((lw.ConfigurationError, lw.CheckpointError), match=words):
        lw.Trainer(Noisy(), run_dir=trained[0]).restore(which)


def test_without_a_run_or_a_checkpoint_there_is_nothing_to_restore(tmp_path: Path):
    with pytest.raises(lw.ConfigurationError, match="no run directory"):
        lw.Trainer(Noisy()).restore("best")
    with pytest.raises(lw.ConfigurationError, match="no checkpoint yet"):
        lw.Trainer(Noisy(), run_dir=tmp_path).restore("last")
    with pytest.raises(lw.ConfigurationError, match="is the best one"):
        lw.Trainer(Noisy(), run_dir=tmp_path).restore("best")


def test_another_model_is_refused_with_the_difference(trained: Any):
    with pytest.raises(lw.ConfigurationError, match="other variables") as refusal:
        lw.Trainer(Unbuilt(), run_dir=trained[0]).restore("last")
    assert "model.layers[" in str(refusal.value)
    assert "fresh=True" not in str(refusal.value)
