"""Real trackers as people use them: mlflow-skinny, several workers, artifacts, locked databases."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cli.small_project import MINE
from tests.locking import locked
from tests.processes import run_command
from tests.sinks import tracked_program
from tests.sinks.test_tracked_kills import (
    ENVIRONMENT,
    free_port,
    mlflow_has,
    mlflow_server,
    start,
)

pytest.importorskip("mlflow")
pytest.importorskip("sqlalchemy")

MODULES = {"PYTHONPATH": str(Path(__file__).parents[2])}


def python(*words: str, cwd: Path, code: int = 0) -> str:
    command = [sys.executable, *words]
    done = run_command(command, cwd=cwd, env={**ENVIRONMENT, **MODULES}, exits=code)
    return done.stdout + done.stderr


def has_each_point_once(uri: str, experiment: str, run_dir: Path, tmp_path: Path) -> dict[str, Any]:
    found, expected = mlflow_has(uri, tmp_path, experiment), tracked_program.expected(run_dir)
    assert expected
    assert found["points"] == expected
    assert [status for _, status in found["runs"]] == ["FINISHED"]
    return found


# --- mlflow-skinny, which `loopwright[mlflow]` installs ---


def skinny(run_dir: Path, uri: str, code: int = 0, **more: Any) -> str:
    options = json.dumps({"tracking_uri": uri, "experiment": "e", "wait_seconds": 60, **more})
    words = "-m", "tests.sinks.skinny_client", str(run_dir), options
    return python(*words, cwd=run_dir.parent, code=code)


def test_mlflow_skinny_sends_to_a_server_with_files(tmp_path: Path):
    with mlflow_server(tmp_path / "server", free_port()) as address:
        skinny(tmp_path / "run", address, artifacts=["report", "checkpoints"])
        found = has_each_point_once(address, "e", tmp_path / "run", tmp_path)
    assert found["params"][0]["optimizer"] == "Adam"
    sent = {path.name for path in (tmp_path / "server").rglob("artifacts/*/*/artifacts/**/*")}
    assert {"report.html", "signature.json", "step-00000400", "manifest.json"} <= sent


@pytest.mark.parametrize("uri", ["sqlite:///mlflow.db", "postgresql://ada:secret@host/db"])
def test_a_database_needs_more_than_mlflow_skinny_and_says_so_before_the_first_step(
    uri: str, tmp_path: Path
):
    text = skinny(tmp_path / "run", uri, code=1)
    assert "a database needs the complete MLflow, and this is mlflow-skinny: pip install" in text
    assert "start `mlflow server` elsewhere and pass its http address" in text
    assert "secret" not in text.partition("received:")[2]
    assert not list(tmp_path.iterdir())


# --- several workers ---


def test_of_several_workers_only_the_chief_sends(tmp_path: Path):
    (tmp_path / "mine.py").write_text(MINE)
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    words = ["launch", "--workers", "2", "--", "train", "mine:experiment", "--run-dir", "two"]
    sink = f"sinks=[{{name: mlflow, tracking_uri: '{uri}', experiment: two, wait_seconds: 60}}]"
    text = python("-P", "-m", "loopwright", *words, sink, "plan=graph", cwd=tmp_path)
    assert "does not have everything" not in text
    found = has_each_point_once(uri, "two", tmp_path / "two", tmp_path)
    assert sorted(step for name, step in found["points"] if name == "val_loss") == [6, 12, 18, 24]


# --- artifacts ---


def test_checkpoints_and_exports_arrive_once_also_after_a_kill(tmp_path: Path):
    (tmp_path / "mine.py").write_text(MINE)
    uri = f"file://{tmp_path}/mlruns"
    options = f"name: mlflow, tracking_uri: '{uri}', experiment: files, wait_seconds: 60"
    words = [
        *("-P", "-m", "loopwright", "train", "mine:experiment", "--run-dir", "run", "plan=graph"),
        *("export={checkpoint: last}", "fit.save_every=2 steps", "fit.epochs=300"),
        *("--settings", "default"),
        f"sinks=[{{{options}, artifacts: [checkpoints, export, report]}}]",
    ]
    environment, run_dir = {**os.environ, **ENVIRONMENT, **MODULES}, tmp_path / "run"
    first = subprocess.Popen([sys.executable, *words], cwd=tmp_path, env=environment)
    while not list(run_dir.glob("checkpoints/step-0000002?")) and first.poll() is None:
        time.sleep(0.02)
    first.kill()
    assert first.wait() == -signal.SIGKILL
    text = python(*words, cwd=tmp_path)
    assert "does not have everything" not in text
    has_each_point_once(uri, "files", run_dir, tmp_path)
    (home,) = (tmp_path / "mlruns").glob("*/*/artifacts")
    sent, here = contents(home), contents(run_dir)
    assert {"checkpoints/step-00001800/manifest.json", "export/1/saved_model.pb"} <= sent.keys()
    assert {"report.html", "signature.json"} <= sent.keys()
    parts = "checkpoints/step-", "export/1/"
    expected = {name: content for name, content in here.items() if name.startswith(parts)}
    assert {name: content for name, content in sent.items() if name.startswith(parts)} == expected


def contents(directory: Path) -> dict[str, bytes]:
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


# --- a database that another program has locked ---


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A database of MLflow that exists: locked while it is created, it would not be one."""
    path = tmp_path / "mlflow.db"
    mlflow_has(f"sqlite:///{path}", tmp_path, "none")
    return path


def test_a_locked_database_does_not_stop_the_training_and_the_next_start_sends_the_rest(
    database: Path, tmp_path: Path
):
    run_dir, uri = tmp_path / "run", f"sqlite:///{database}"
    options = {"tracking_uri": uri, "experiment": "e"}
    with locked(database):
        code, told = start(run_dir, "MLflow", options, pause_seconds=0.0).ended()
        assert code == 0, told[-3000:]
        assert told.count("does not have everything of this run") == 1
        assert "Traceback" not in told
    code, told = start(run_dir, "MLflow", options).ended()
    said = re.sub(r"(?m)^([IWE]0000 |WARNING: All log messages before absl).*\n", "", told)
    assert (code, said) == (0, ""), told[-3000:]
    has_each_point_once(uri, "e", run_dir, tmp_path)
