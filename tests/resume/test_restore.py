"""The state of an earlier moment, put back into a task."""

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.resume.program import Noisy, arrays, digest, train

import loopwright as lw
from loopwright.checkpoints import tensors
from loopwright.task import variables
from loopwright.task.optimizers import averages_in_place

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


def test_a_step_is_restored_bit_by_bit_into_a_task_that_has_seen_no_data(trained: Any):
    run_dir, _ = trained
    fresh = lw.Trainer(Noisy(), run_dir=run_dir)
    assert fresh.restore(10) == 10
    found = saved(run_dir, 10)
    for name, variable in variables.named(fresh.task).items():
        assert name == "step" or np.array_equal(variable.numpy(), found[name].numpy()), name


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


def test_with_averaged_weights_each_name_means_the_weights_that_the_page_says(tmp_path: Path):
    told: list[Any] = []
    data: Any = {"validation_data": arrays(20), "batch_size": 8, "verbose": 0}
    trainer = lw.Trainer(
        Noisy(), run_dir=tmp_path, plan="graph", keep=[lw.KeepBest("val_loss")], sinks=[told.append]
    )
    history = trainer.fit(*arrays(), epochs=2, **data)
    (note,) = [event.text for event in told if isinstance(event, lw.Noted)]
    assert note.startswith("use_ema: scores and checkpoints are of the trained weights; when fit")
    scored: dict[Any, float] = {
        way: trainer.evaluate(*arrays(20), batch_size=8, checkpoint=way)["loss"]
        for way in ("best", 26, "last", "current")
    }
    assert min(history.history["val_loss"]) == history.history["val_loss"][-1], "best is the last"
    assert scored["best"] == scored[26] == history.history["val_loss"][-1]
    assert scored["last"] == scored["current"] != scored["best"]


def test_a_variable_that_no_model_holds_gets_its_own_value_back_after_its_average():
    class Bare(lw.Task):
        def __init__(self) -> None:
            super().__init__()
            self.weight = keras.Variable(1.0)
            self.optimizer = keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5)

    task = Bare()
    for _ in range(2):
        task.optimizer.apply([tf.constant(1.0)], [task.weight])
    trained = float(task.weight)
    with averages_in_place(task):
        assert float(task.weight) != trained
    assert float(task.weight) == trained


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
    ("run", "task", "which", "words"),
    [
        ("run", Noisy, 11, "choose another step"),
        ("run", Noisy, "newest", "Unknown checkpoint"),
        ("run", Noisy, True, "Unknown checkpoint"),
        ("run", Unbuilt, "last", r"(?s)other variables.*model\.layers\["),
        (None, Noisy, "best", "no run directory"),
        ("empty", Noisy, "last", "no checkpoint yet"),
        ("empty", Noisy, "best", "no checkpoint with a score"),
    ],
)
def test_what_cannot_be_restored_is_refused_with_the_reason(
    trained: Any, run: str | None, task: Any, which: Any, words: str
):
    run_dir = None if run is None else trained[0].with_name(run)
    with pytest.raises((lw.ConfigurationError, lw.CheckpointError), match=words) as refusal:
        lw.Trainer(task(), run_dir=run_dir).restore(which)
    assert "fresh=True" not in str(refusal.value)


class Predicting(Noisy):
    def predict_step(self, batch):
        return self.model(batch, training=False)


def test_a_process_that_neither_trained_nor_restored_is_asked_for_the_checkpoint(trained: Any):
    run_dir, _ = trained
    fresh = lw.Trainer(Predicting(), run_dir=run_dir)
    before, x = digest(fresh.task), arrays(20)
    for use in (
        lambda **which: fresh.evaluate(*x, **which),
        lambda **which: fresh.predict(x[0], **which),
        lambda **which: fresh.export(run_dir / "export", **which),
    ):
        with pytest.raises(lw.ConfigurationError, match="neither trained nor restored") as refusal:
            use()
        for word in ("best", "last", "step", "current"):
            assert word in str(refusal.value)
    assert digest(fresh.task) == before
    untrained = lw.Trainer(Predicting()).evaluate(*x)
    assert fresh.evaluate(*x, checkpoint="current") == untrained
    with pytest.raises(lw.ConfigurationError, match="neither trained nor restored"):
        fresh.evaluate(*x)


def test_a_checkpoint_is_used_for_one_call_and_everything_is_put_back(trained: Any):
    run_dir, trainer = trained
    after_fit, x = digest(trainer.task), arrays(20)
    scores = {which: trainer.evaluate(*x, checkpoint=which) for which in (10, "last")}
    assert digest(trainer.task) == after_fit
    assert scores["last"] == trainer.evaluate(*x) == trainer.evaluate(*x, checkpoint="current")
    assert scores[10] != scores["last"]
    fresh = lw.Trainer(Predicting(), run_dir=run_dir)
    assert {which: fresh.evaluate(*x, checkpoint=which) for which in (10, "last")} == scores
    assert int(fresh.task.step) == 0
    predicted = fresh.predict(x[0], checkpoint=10)
    assert fresh.restore(10) == 10
    assert np.array_equal(fresh.predict(x[0]), predicted)
    assert fresh.evaluate(*x) == scores[10]


def test_scheduled_numbers_follow_the_step_of_the_checkpoint_that_is_used(tmp_path: Path):
    class Counting(lw.Task):
        def train_step(self):  # pyright: ignore[reportIncompatibleMethodOverride]
            return {"step": self.step}

        def predict_step(self, batch):
            return batch + tf.cast(self.step, tf.float32)

    zeros = np.zeros(2, "float32")
    trainer = lw.Trainer(Counting(), run_dir=tmp_path, plan="graph", keep=KEEP_ALL)
    trainer.fit(None, until="4 steps", save_every="2 steps", verbose=0)
    assert trainer.predict(zeros, checkpoint=2).tolist() == [2.0, 2.0]
    assert trainer.predict(zeros).tolist() == [4.0, 4.0]
    trainer.restore(2)  # the run's own count stays: training goes on after step 4
    assert int(trainer.task.step) == 4
    fresh = lw.Trainer(Counting(), run_dir=tmp_path, plan="graph", keep=KEEP_ALL)
    assert fresh.predict(zeros, checkpoint=2).tolist() == [2.0, 2.0]
    assert fresh.restore(2) == int(fresh.task.step) == 2
    fresh.fit(None, until="6 steps", verbose=0)
    assert int(fresh.task.step) == 6
    other = lw.Trainer(Counting(), run_dir=tmp_path, plan="graph", keep=KEEP_ALL, fresh=True)
    assert other.predict(zeros).tolist() == [0.0, 0.0]  # the run before is to be moved aside
    other.restore(4)
    with pytest.warns(lw.LoopwrightWarning):
        other.fit(None, until="3 steps", verbose=0)
    assert int(other.task.step) == 3


def test_a_skipped_leg_restores_and_a_leg_that_was_refused_does_not(trained: Any):
    run_dir, trainer = trained
    x = arrays(20)
    skipping, _ = train(run_dir, "arrays", "graph", epochs=2, keep=KEEP_ALL)
    assert skipping.evaluate(*x) == trainer.evaluate(*x)
    refused = lw.Trainer(Noisy(), run_dir=run_dir, plan="graph")
    with pytest.raises(lw.ConfigurationError, match="The data differs"):
        refused.fit(*arrays(50), batch_size=8, epochs=9, verbose=0)
    with pytest.raises(lw.ConfigurationError, match="neither trained nor restored"):
        refused.evaluate(*x)


def test_a_callback_can_evaluate_a_resumed_run_from_its_beginning(tmp_path: Path):
    class Evaluating(keras.callbacks.Callback):
        def __init__(self, trainer: lw.Trainer) -> None:
            super().__init__()
            self.trainer, self.scores = trainer, list[Any]()

        def on_train_begin(self, logs=None):
            self.scores.append(self.trainer.evaluate(*arrays(20)))

    for epochs in (1, 2):
        trainer = lw.Trainer(Noisy(), run_dir=tmp_path, plan="graph")
        callback = Evaluating(trainer)
        trainer.fit(*arrays(), batch_size=8, epochs=epochs, callbacks=[callback], verbose=0)
        assert len(callback.scores) == 1


@pytest.mark.filterwarnings("ignore:.*weights were loaded")
def test_without_checkpoints_the_weights_are_used_as_they_are(trained: Any, tmp_path: Path):
    x = arrays(20)
    for run_dir in (None, tmp_path / "run"):
        trainer = lw.Trainer(Noisy(), run_dir=run_dir, init_from=trained[0])
        assert trainer.evaluate(*x) == trainer.evaluate(*x, checkpoint="current")
    unknown: Any = "newest"
    with pytest.raises(lw.ConfigurationError, match="Unknown checkpoint"):
        lw.Trainer(Noisy(), run_dir=tmp_path / "run").evaluate(*x, checkpoint=unknown)


@pytest.mark.filterwarnings("ignore:.*weights were loaded")
def test_weights_to_begin_with_are_not_those_of_a_run_that_has_gone_further(trained: Any):
    run_dir, _ = trained
    first = run_dir / "checkpoints" / "step-00000005"
    trainer = lw.Trainer(Noisy(), run_dir=run_dir, init_from=first)
    with pytest.raises(lw.ConfigurationError, match="neither trained nor restored"):
        trainer.evaluate(*arrays(20))
    begun = lw.Trainer(Noisy(), init_from=first).evaluate(*arrays(20))
    assert trainer.evaluate(*arrays(20), checkpoint="current") == begun
