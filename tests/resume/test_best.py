"""The best validation of a run: saved when it is measured, and named the same everywhere."""

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.resume.children import Child
from tests.resume.program import digest
from typer.testing import CliRunner

import loopwright as lw
from loopwright import runs
from loopwright.checkpoints import retention
from loopwright.checkpoints.manifest import Checkpoint
from loopwright.cli import run_overview
from loopwright.cli.main import app
from loopwright.cli.run_overview import summary

STEPS_PER_EPOCH = 10


class Walk(lw.Task):
    """Walks one further with every step; the closer to `goals`, the better its scores."""

    def __init__(self, *goals: float):
        super().__init__()
        self.goals = goals or (10.0,)
        self.layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        self.layer.build((None, 1))

    def train_step(self, batch):
        self.layer.kernel.assign_add([[1.0]])
        return {"loss": tf.reduce_mean(batch)}

    def test_step(self, batch):
        place = tf.reduce_mean(self.layer(batch))
        away = [tf.abs(place - goal) for goal in self.goals]
        return {"loss": away[0], "accuracy": 1 / (1 + away[-1]), "wandering": away[-1]}


ONES = np.ones((STEPS_PER_EPOCH, 1), "float32")


def trainer(run_dir: Path | None, *goals: float, **options: Any) -> lw.Trainer:
    return lw.Trainer(Walk(*goals), run_dir=run_dir, plan="graph", **options)


def arguments(epochs: int = 5, **others: Any) -> dict[str, Any]:
    given = {"batch_size": 1, "epochs": epochs, "validation_data": ONES[:1], "verbose": 0}
    return {"x": ONES, **given, **others}


def on_disk(run_dir: Path) -> list[int]:
    return sorted(int(p.name[5:]) for p in (run_dir / "checkpoints").glob("step-????????"))


def manifest(run_dir: Path, step: int) -> Any:
    path = run_dir / "checkpoints" / f"step-{step:08d}" / "manifest.json"
    return json.loads(path.read_text())["content"]


def restored(run_dir: Path, which: Any = "best", **options: Any) -> tuple[int, float]:
    """The step that is restored by a new trainer, and how far it had walked."""
    found = trainer(run_dir, **options)
    return found.restore(which), float(found.task.layer.kernel[0, 0])


@pytest.mark.parametrize("options", [{}, {"save_every": "10 minutes"}, {"save_every": "25 steps"}])
def test_the_best_validation_is_restored_bit_for_bit_however_often_a_run_is_saved(
    tmp_path: Path, options: Any
):
    first, bits = trainer(tmp_path), dict[int, str]()
    for event in first.events(**arguments(**options)):
        if isinstance(event, lw.Validated):
            bits[event.step] = digest(first.task)
    again = trainer(tmp_path)
    assert again.restore("best") == 10
    again.task.step_counter.assign(10)
    assert digest(again.task) == bits[10]
    assert restored(tmp_path, "last") == (50, 50.0)


def test_a_best_validation_between_two_others_is_saved_when_each_step_is_validated(tmp_path: Path):
    trainer(tmp_path, 25.0).fit(**arguments(validate_every="1 step"))
    assert restored(tmp_path) == (25, 25.0)
    assert restored(tmp_path, "last") == (50, 50.0)


def test_as_many_of_the_best_are_kept_as_a_rule_asks_for(tmp_path: Path):
    keep = [lw.KeepLatest(1), lw.KeepBest("val_loss", count=3)]
    trainer(tmp_path, 20.0, keep=keep).fit(**arguments())
    assert on_disk(tmp_path) == [10, 20, 30, 50]  # 0.0 at 20, as far away at 10 as at 30
    assert restored(tmp_path) == (20, 20.0)


def test_a_checkpoint_between_two_validations_has_no_score_of_its_own(tmp_path: Path):
    keep = [lw.KeepLatest(100), lw.KeepBest("val_loss", count=2)]
    fit = arguments(1, validate_every="4 steps", save_every="3 steps")
    trainer(tmp_path, 4.0, keep=keep).fit(**fit)
    assert on_disk(tmp_path) == [3, 4, 6, 8, 9, 10]  # 8 is the second best
    measured = {step: manifest(tmp_path, step)["measured"] for step in on_disk(tmp_path)}
    assert {step: found["loss"] for step, found in measured.items() if found} == {
        4: 0.0,
        8: 4.0,
        10: 6.0,
    }


def test_a_checkpoint_of_an_earlier_version_is_ranked_by_the_scores_of_its_own_step(
    tmp_path: Path,
):
    own = {"leg": 0, "scores": {"loss": 0.5}}
    for validated, expected in ((10, {"val_loss": 0.5}), (8, {}), (None, {})):
        place = {"step": 10, "validated_step": validated, "is_over": False}
        found = Checkpoint(tmp_path, 30, {**own, "place": place})
        assert retention.entry_of(found).scores == expected


@pytest.fixture(scope="module")
def by_accuracy(tmp_path_factory: Any) -> Path:
    """A run whose loss is best at step 10, and its accuracy at step 30."""
    run_dir = tmp_path_factory.mktemp("runs") / "walk"
    keep = [lw.KeepBest("val_accuracy"), lw.KeepBest("val_loss"), lw.KeepLatest(1)]
    trainer(run_dir, 10.0, 30.0, keep=keep).fit(**arguments())
    return run_dir


def test_each_rule_has_its_best_and_a_new_trainer_knows_the_rules_of_the_run(by_accuracy: Path):
    assert on_disk(by_accuracy) == [10, 30, 50]
    assert restored(by_accuracy) == (30, 30.0)
    found = trainer(by_accuracy)
    assert found.restore("best", metric="val_accuracy") == 30
    assert found.restore("best", metric="val_loss") == 10
    with pytest.raises(lw.ConfigurationError, match=r"(?s)val_auc.*val_accuracy, val_loss"):
        found.restore("best", metric="val_auc")
    with pytest.raises(lw.ConfigurationError, match="chooses among the best"):
        found.restore("last", metric="val_loss")


def test_runs_report_and_summary_name_the_step_that_is_restored(by_accuracy: Path):
    def run(*words: str) -> str:
        result = CliRunner().invoke(app, list(words))
        assert result.exit_code == 0, result.output
        return result.output

    assert re.search(r"best +val_accuracy 1 at step 30\n", run("runs", str(by_accuracy)))
    assert re.search(
        r"val_loss 0 at step 10\n", run("runs", str(by_accuracy), "--metric", "val_loss")
    )
    row = json.loads(run("runs", str(by_accuracy), "--json"))
    assert (row["metric"], row["mode"], row["best"], row["best_step"]) == (
        "val_accuracy",
        "max",
        1.0,
        30,
    )
    run("report", str(by_accuracy))
    page = (by_accuracy / "report.html").read_text()
    assert "<th>best checkpoint by val_accuracy</th><td>step 30: 1</td>" in page
    assert ("best", "val_accuracy 1.000 at step 30") in summary(runs.open(by_accuracy), {}, [])


def test_runs_are_sorted_best_first_in_the_direction_of_their_metric(tmp_path: Path):
    for name, goal in (("near", 11.0), ("far", 15.0), ("at", 10.0)):
        keep = [lw.KeepBest("val_accuracy")]
        trainer(tmp_path / name, goal, keep=keep).fit(**arguments(1))
    rows = run_overview.rows(tmp_path, sort="best")
    assert [row.path.name for row in rows] == ["at", "near", "far"]
    rows = run_overview.rows(tmp_path, "val_wandering", "min", sort="best")
    assert [row.path.name for row in rows] == ["at", "near", "far"]
    with pytest.raises(lw.ConfigurationError, match="smaller or larger"):
        run_overview.rows(tmp_path, "val_wandering")


def test_a_best_that_no_rule_asked_for_while_training_comes_with_a_warning(tmp_path: Path):
    trainer(tmp_path, 10.0, 35.0).fit(**arguments())
    other = trainer(tmp_path, keep=[lw.KeepBest("val_accuracy")])
    with pytest.warns(lw.LoopwrightWarning, match="may not have been saved"):
        assert other.restore("best") == 50


@pytest.mark.parametrize(
    ("metric", "do"),
    [
        ("val_lossy", r"do: KeepBest\('val_loss'\)"),
        ("accuracy", r"do: KeepBest\('val_accuracy'\)"),
        ("val_f1", "do: name one of the reported metrics"),
    ],
)
def test_a_rule_for_a_metric_that_is_not_measured_is_refused_at_the_first_validation(
    tmp_path: Path, metric: str, do: str
):
    walking = trainer(tmp_path, keep=[lw.KeepBest(metric, mode="min")])
    words = rf"(?s)'{metric}'.*val_loss, val_accuracy, val_wandering.*{do}"
    with pytest.raises(lw.ConfigurationError, match=words):
        walking.fit(**arguments())
    assert int(walking.task.step_counter) == STEPS_PER_EPOCH


def test_the_default_rule_says_nothing_where_there_is_no_loss(tmp_path: Path):
    class WithoutLoss(Walk):
        def test_step(self, batch):
            return {"accuracy": super().test_step(batch)["accuracy"]}

    lw.Trainer(WithoutLoss(), run_dir=tmp_path / "a", plan="graph").fit(**arguments())
    assert on_disk(tmp_path / "a") == [50]
    trainer(tmp_path / "b").fit(**arguments(1, validation_data=None))
    asked = trainer(tmp_path / "c", keep=[lw.KeepBest("val_loss")])
    with pytest.warns(lw.LoopwrightWarning, match="fit does not validate"):
        asked.fit(**arguments(1, validation_data=None))


def test_the_best_stays_the_best_when_a_run_is_left_at_the_beginning_of_the_next_epoch(
    tmp_path: Path,
):
    for event in trainer(tmp_path).events(**arguments()):
        if isinstance(event, lw.EpochStarted) and event.epoch == 1:
            break
    assert restored(tmp_path) == (10, 10.0)


def test_the_best_is_that_of_the_whole_run_and_not_of_a_leg(tmp_path: Path):
    saved = list[int]()
    walking = trainer(
        tmp_path, sinks=[lambda e: saved.append(e.step) if isinstance(e, lw.Saved) else None]
    )
    walking.fit(**arguments(2))
    walking.fit(**arguments(2))
    assert saved == [10, 20, 40]  # the best, and the ends of both legs
    assert restored(tmp_path) == (10, 10.0)


def walk_and_be_killed(run_dir: str, kind: str) -> None:
    for event in trainer(Path(run_dir), 20.0).events(**arguments()):
        if type(event).__name__ == kind and event.step == 20:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("kind", ["Validated", "Saved"])
def test_killed_after_the_best_validation_a_run_has_the_same_best_when_it_was_resumed(
    tmp_path: Path, kind: str
):
    trainer(tmp_path / "whole", 20.0).fit(**arguments())
    child = Child(tmp_path / "log", walk_and_be_killed, str(tmp_path / "killed"), kind)
    assert child.ended()[0] == -signal.SIGKILL
    trainer(tmp_path / "killed", 20.0).fit(**arguments())
    assert on_disk(tmp_path / "killed") == on_disk(tmp_path / "whole")
    states = list[str]()
    for run in ("whole", "killed"):
        found = trainer(tmp_path / run)
        assert found.restore("best") == 20
        states.append(digest(found.task))
    assert states[0] == states[1]
