"""Run directories of 2026-11-18, written by the source before it was cut, are resumed.

The end of a resumed run is compared with a run that nothing interrupted, trained here: bit by bit
where processor, kernels and TensorFlow are those of the fixture, else the numbers it reports.
"""

import json
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.distribute.workers import Workers
from tests.net import write_runs
from tests.processes import run_command
from tests.resume.program import digest

from loopwright.search import trial_process

TRAINED = (
    write_runs.arrays_fused,
    write_runs.stream_with_callbacks,
    write_runs.gan_with_two_legs,
    write_runs.rolled_back,
    write_runs.left_unfinished,
)
pytestmark = pytest.mark.filterwarnings("ignore:The environment has changed")
KERNELS = ("tensorflow", "keras", "processor", "processor instructions", "oneDNN")


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def content(path: Path) -> Any:
    return json.loads(path.read_text())


def journal(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def require_complete(run: Path, epochs: list[int]) -> None:
    """The run was resumed; its journal has every epoch once, and an end."""
    rows = journal(run)
    assert "resuming from step" in (run / "train.log").read_text()
    assert [row["epoch"] for row in rows if row["event"] == "epoch_ended"] == epochs
    assert rows[-1]["event"] == "finished"
    assert rows[-1]["reason"] == "complete"
    assert content(run / "status.json")["status"] == "completed"
    assert not list(run.glob("checkpoints/*.tmp-*"))


def resumed_by_command(project: Path, *words: str, **variables: str) -> str:
    done = run_command(
        [sys.executable, "-m", "loopwright", "resume", "run", *words],
        cwd=project,
        env={"PYTHONPATH": str(write_runs.ROOT), **variables},
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize("train", TRAINED, ids=lambda train: train.__name__)
def test_an_old_run_ends_as_a_run_that_nothing_interrupted(train: Any, project: Path):
    write_runs.unpack(train.__name__, project)
    before = content(project / "run/environment.json")
    resumed = train("run", None)
    whole = train("whole", None)

    epochs = [0, 0, 1, 2] if train is write_runs.gan_with_two_legs else [0, 1, 2, 3]
    require_complete(project / "run", epochs)
    now = content(project / "whole/environment.json")
    if all(before[name] == now[name] for name in KERNELS):
        assert digest(resumed.task) == digest(whole.task)
    ours, theirs = (content(project / name / "history.json") for name in ("run", "whole"))
    assert ours.keys() == theirs.keys()
    for name in ours:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-4, atol=1e-6, err_msg=name)
    plans = [content(project / name / "plan.json")["changes"] for name in ("run", "whole")]
    assert plans[0] == plans[1]


def test_an_old_run_that_passed_over_batches_does_not_take_them_again(project: Path):
    write_runs.unpack("rolled_back", project)
    write_runs.rolled_back("run", None)
    skipped = [row["step"] for row in journal(project / "run") if row["event"] == "batch_skipped"]
    assert skipped == [3, 8, 13, 18]


def test_an_old_run_with_two_process_settings_is_resumed(project: Path):
    write_runs.unpack("settings_changed", project)
    said = resumed_by_command(project, "--task", "old_job:experiment")
    assert "resuming from step 12" in said
    require_complete(project / "run", [0, 1, 2, 3])
    recorded = content(project / "run/plan.json")["settings"]
    assert [(row["step"], row["onednn"]) for row in recorded][:2] == [(0, False), (9, True)]


def test_an_old_run_of_two_workers_is_resumed_by_two(project: Path):
    write_runs.unpack("two_workers", project)
    ends = Workers(project / "logs", 2, write_runs.two_workers, "run", None).ended()
    assert [code for code, _ in ends] == [0, 0], ends
    require_complete(project / "run", [0, 1, 2, 3])


def test_an_old_run_in_mlflow_is_found_again_and_has_each_point_once(project: Path):
    write_runs.unpack("with_mlflow", project)
    _trained_in_child("with_mlflow", project)
    require_complete(project / "run", [0, 1, 2, 3])
    with closing(sqlite3.connect(project / "mlflow.db")) as database:
        runs = database.execute("SELECT run_uuid, status FROM runs").fetchall()
        points = database.execute("SELECT key, step FROM metrics").fetchall()
    (tracked,) = (project / "run/trackers").glob("mlflow-*.json")
    assert runs == [(content(tracked)["run_id"], "FINISHED")]
    assert {step for key, step in points if key == "loss"} == {5, 10, 15, 20}
    assert max(Counter(points).values()) == 1


def test_an_old_run_in_wandb_is_found_again(project: Path):
    write_runs.unpack("with_wandb", project)
    (tracked,) = (project / "run/trackers").glob("wandb-*.json")
    _trained_in_child("with_wandb", project)
    require_complete(project / "run", [0, 1, 2, 3])
    offline = [path.name.rsplit("-", 1)[1] for path in project.glob("run/wandb/offline-run-*")]
    assert offline == [content(tracked)["key"]] * len(offline)
    assert len(offline) == 2


def _trained_in_child(name: str, project: Path) -> None:
    code = f"from tests.net import write_runs; write_runs.{name}('run', None)"
    subprocess.run(
        [sys.executable, "-c", code], cwd=project, env=write_runs.environment(), check=True
    )


def test_an_old_study_ends_as_one_that_nothing_interrupted(
    project: Path, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("optuna")
    monkeypatch.setattr(trial_process, "PROGRAM", list(trial_process.PROGRAM))
    write_runs.unpack("study", project)
    ends = [
        [(trial.number, trial.state, trial.score, trial.parameters) for trial in found.trials]
        for found in (write_runs.study("run"), write_runs.study("whole"))
    ]
    assert ends[0] == ends[1]
    assert len(ends[0]) == 4


def test_an_old_run_of_a_recipe_is_resumed(project: Path):
    """`recipe: regression` is the example of that name, which a person has to name."""
    write_runs.unpack("recipe_regression", project)
    (project / "examples").symlink_to(write_runs.ROOT / "examples")
    said = resumed_by_command(project, "--task", "examples/regression.py")
    assert "resuming from step 46" in said
    require_complete(project / "run", list(range(10)))


def test_an_old_run_of_the_gan_that_has_no_checkpoint_starts_at_its_first_step(project: Path):
    write_runs.unpack("recipe_gan", project)
    (project / "examples").symlink_to(write_runs.ROOT / "examples")
    said = resumed_by_command(project, "fit.epochs=2", "--task", "examples/gan.py")
    assert "epoch 2/2" in said
