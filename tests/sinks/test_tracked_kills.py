"""Real trackers, real processes, real kills: as after an undisturbed run, no point is missing."""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.processes import run_command
from tests.resume.children import Child
from tests.resume.faults import record
from tests.sinks import tracked_program
from tests.sinks.tracked_program import Points

KILLS = 5
ENVIRONMENT = {
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}


@contextlib.contextmanager
def mlflow_server(home: Path, port: int) -> Iterator[str]:
    """A real server of MLflow on 127.0.0.1, with a database."""
    home.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--backend-store-uri", f"sqlite:///{home}/mlflow.db", "--workers", "1"]
    command += ["--artifacts-destination", str(home / "artifacts")]
    with (home / "log").open("w") as log:
        server = subprocess.Popen(
            command,
            cwd=home,
            stdout=log,
            stderr=log,
            env={**os.environ, **ENVIRONMENT},
            start_new_session=True,
        )
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            assert server.poll() is None, (home / "log").read_text()[-3000:]
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/health") as found:
                if found.status == 200:
                    break
            time.sleep(0.2)
        yield address
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def start(run_dir: Path, tracker: str, options: dict[str, Any], **more: Any) -> Child:
    return Child(run_dir.with_suffix(".log"), _train, run_dir, tracker, options, more)


def _train(run_dir: Path, tracker: str, options: dict[str, Any], more: dict[str, Any]) -> None:
    tracked_program.train(run_dir, tracker, options, **more)


def killed(run_dir: Path, kills: int, moments: random.Random, *arguments: Any) -> tuple[int, int]:
    """Kill a run at random moments and resume it until it ends.

    Return how often it was killed, and how many steps were trained again.
    """
    done = again = 0
    while True:
        child = start(run_dir, *arguments, pause_seconds=0.15 if done < kills else 0.0)
        if done < kills:
            before, trains = _last_step(run_dir), moments.random() < 0.5
            while not child.is_over and not (
                _has_started(run_dir, child.pid) and (not trains or _last_step(run_dir) > before)
            ):
                time.sleep(0.01)
            child.wait(moments.uniform(0.0, 2.0))
            child.send(signal.SIGKILL)
        code, told = child.ended()
        if code == 0:
            assert "cannot be reached" not in told, told[-3000:]
            assert "does not have everything" not in told, told[-3000:]
            return done, again
        assert code == -signal.SIGKILL, told[-3000:]
        done += 1
        # A kill may come between a checkpoint and the line of its step.
        again += max(0, _last_step(run_dir) - _last_checkpoint(run_dir))


def _has_started(run_dir: Path, pid: int) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return json.loads((run_dir / "status.json").read_text())["process"] == pid
    return False


def _last_step(run_dir: Path) -> int:
    journal = run_dir / "metrics.jsonl"
    lines = journal.read_text().splitlines() if journal.exists() else []
    return max((json.loads(line)["step"] for line in lines if line.endswith("}")), default=0)


def _last_checkpoint(run_dir: Path) -> int:
    found = [path.name for path in run_dir.glob("checkpoints/step-????????")]
    return max((int(name.removeprefix("step-")) for name in found), default=0)


def mlflow_has(uri: str, tmp_path: Path, experiment: str) -> dict[str, Any]:
    """What an experiment in MLflow has, read by another process."""
    file = tmp_path / "told.json"
    tell = tracked_program.tell_mlflow
    code, told = Child(tmp_path / "tell.log", tell, uri, experiment, file).ended()
    assert code == 0, told[-3000:]
    found = json.loads(file.read_text())
    points: Points = {(name, step): values for name, step, values in found["points"]}
    return {**found, "points": points}


@contextlib.contextmanager
def place(kind: str, tmp_path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    if kind == "wandb":
        yield "WandB", {"project": "p", "mode": "offline"}
    elif kind == "server":
        with mlflow_server(tmp_path / "server", free_port()) as address:
            yield "MLflow", {"tracking_uri": address, "experiment": "kills"}
    else:
        uris = {"file": f"file://{tmp_path}/mlruns", "sqlite": f"sqlite:///{tmp_path}/mlflow.db"}
        yield "MLflow", {"tracking_uri": uris[kind], "experiment": "kills"}


def has_the_points_of_an_undisturbed_run(kind: str, kills: int, tmp_path: Path) -> int:
    """Train until so many kills have hit a run; return how many steps were trained again."""
    moments, again, count = random.Random(kind), 0, 0
    code, told = start(tmp_path / "undisturbed", "", {}, pause_seconds=0.0).ended()
    assert code == 0, told[-3000:]
    expected = tracked_program.expected(tmp_path / "undisturbed")
    assert len(expected) == 138
    assert all(len(values) == 1 for values in expected.values())
    with place(kind, tmp_path) as (tracker, options):
        while kills > 0 or (again == 0 and count < 6):  # on, until a kill has hit unsaved steps
            count += 1
            run_dir = tmp_path / f"run{count}"
            if kind != "wandb":
                options["experiment"] = run_dir.name
            done, trained_again = killed(run_dir, max(kills, 1), moments, tracker, options)
            kills, again = kills - done, again + trained_again
            if kind == "wandb":
                found, ids = tracked_program.in_wandb(run_dir)
                assert len(ids) == 1
            else:
                told = mlflow_has(options["tracking_uri"], tmp_path, run_dir.name)
                found = told["points"]
                assert told["runs"] == [[run_dir.name, "FINISHED"]]
                assert told["params"][0]["optimizer"] == "Adam"
                assert told["tags"][0]["loopwright.plan"]
            assert found == expected
    return again


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("kind", ["file", "sqlite", "server", "wandb"])
def test_killed_at_random_moments_a_tracker_has_each_point_once(kind: str, tmp_path: Path):
    pytest.importorskip("wandb" if kind == "wandb" else "mlflow")
    again = has_the_points_of_an_undisturbed_run(kind, KILLS, tmp_path)
    assert again > 0, "no kill has hit the training"
    record(f"killed, tracked by {kind}", tried=KILLS, held=KILLS, steps_again=again)


def test_a_run_that_is_killed_once_is_one_tracked_run(tmp_path: Path):
    pytest.importorskip("mlflow")
    has_the_points_of_an_undisturbed_run("file", 1, tmp_path)


@pytest.mark.timeout(900)
def test_what_a_server_missed_while_it_was_down_is_sent_at_the_next_start(tmp_path: Path):
    pytest.importorskip("mlflow")
    run_dir, port = tmp_path / "run", free_port()
    options = {"tracking_uri": f"http://127.0.0.1:{port}", "experiment": "later"}
    began = time.monotonic()
    code, told = start(run_dir, "MLflow", options, pause_seconds=0.0).ended()
    assert code == 0, told[-3000:]
    assert told.count("cannot be reached: ConnectionError") == 1
    assert told.count("the next start of the run sends the rest.") == 1
    assert time.monotonic() - began < 120
    with mlflow_server(tmp_path / "server", port) as address:
        code, told = start(run_dir, "MLflow", options).ended()
        assert code == 0, told[-3000:]
        assert "cannot be reached" not in told
        # As if killed between creating the tracked run and noting its id.
        (noted,) = (run_dir / "trackers").iterdir()
        content = json.loads(noted.read_text())
        less = {name: content[name] for name in content.keys() - {"run_id", "status"}}
        noted.write_text(json.dumps(less))
        rename(address, content["run_id"], content["key"])
        code, told = start(run_dir, "MLflow", options).ended()
        assert code == 0, told[-3000:]
        assert json.loads(noted.read_text())["run_id"] == content["run_id"]
        found = mlflow_has(address, tmp_path, "later")
    assert found["points"] == tracked_program.expected(run_dir)
    assert found["runs"] == [["run", "FINISHED"]]


def rename(address: str, run_id: str, name: str) -> None:
    """Name a run of MLflow's server, by its HTTP interface."""
    request = urllib.request.Request(
        f"{address}/api/2.0/mlflow/runs/update",
        json.dumps({"run_id": run_id, "run_name": name}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        assert answer.status == 200


def test_addresses_that_cannot_work_are_refused_before_the_first_step(tmp_path: Path):
    pytest.importorskip("mlflow")
    program = """
import sys, loopwright as lw
for uri in sys.argv[1:]:
    try:
        lw.sinks.MLflow(uri)
    except lw.ConfigurationError as error:
        print(" ".join(str(error).split()))
print("tensorflow" in sys.modules)
"""
    uris = ["htp://127.0.0.1", str(tmp_path / "mlruns"), f"sqlite:///{tmp_path}/none/mlflow.db"]
    done = run_command([sys.executable, "-c", program, *uris], exits=None)
    invalid, directory, database, has_tensorflow = done.stdout.splitlines()
    assert "MLflow does not accept this tracking_uri" in invalid
    assert "unsupported URI 'htp://127.0.0.1'" in invalid
    assert "migrate to a database backend" in directory
    assert f"{tmp_path}/none is not a directory that can be written to" in database
    assert has_tensorflow == "False"
    assert not list(tmp_path.iterdir())
