"""A run that changes its process settings: killed at any moment, it ends with the recorded bits."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from tests.resume import noted_job
from tests.resume.faults import ALL

import loopwright as lw
from loopwright.checkpoints.manifest import read_manifest, signed
from loopwright.checkpoints.store import Store
from loopwright.compat import process
from loopwright.errors import CheckpointError
from loopwright.plans import settings_memory
from loopwright.plans.plan import Plan
from loopwright.plans.plan_history import PlanHistory, load
from loopwright.plans.settings import ONEDNN, Settings

ON, OFF = Settings(onednn=True), Settings(onednn=False)
STEPS, CHANGE = 48, 24
JOB = f"""
import keras, numpy as np
import loopwright as lw
from keras import layers

def experiment(size: int = 256):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(size, 12, 12, 3)).astype("float32"), rng.integers(0, 4, size=size)

    def task():
        inner = [layers.Conv2D(8, 3, activation="relu"), layers.Dropout(0.1), layers.Flatten()]
        model = keras.Sequential([keras.Input((12, 12, 3)), *inner, layers.Dense(4, "softmax")])
        return lw.Supervised(model, "sparse_categorical_crossentropy", "adam")

    return lw.Experiment(task, fit={{"x": x, "y": y, "batch_size": 32, "until": "{STEPS} steps"}})
"""
RUN = [sys.executable, "-m", "loopwright"]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a job, and a history that changes oneDNN in the middle of it."""
    made = tmp_path_factory.mktemp("project")
    (made / "job.py").write_text(JOB)
    history = PlanHistory().changed(0, Plan("graph", "graph", "resident"))
    history.with_settings(0, OFF).with_settings(CHANGE, ON).save(made / "changes.json")
    return made


def variables(project: Path, **more: str) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if name != ONEDNN}
    return {**own, "LOOPWRIGHT_CACHE_DIR": str(project / "cache"), **more}


def start(project: Path, run: str, *words: str, **more: str) -> "subprocess.Popen[str]":
    command = [*RUN, "train", "job:experiment", "--run-dir", run, "fit.verbose=2", *words]
    log = (project / f"{run}.log").open("a")
    with log:
        return subprocess.Popen(
            command, cwd=project, env=variables(project, **more), stdout=log, stderr=log, text=True
        )


def finished(project: Path, run: str, *words: str, **more: str) -> str:
    child = start(project, run, *words, **more)
    code = child.wait(timeout=300)
    text = (project / f"{run}.log").read_text()
    assert code == 0, text[-3000:]
    return text


def bits(project: Path, run: str) -> dict[str, Any]:
    """Return the checksums of the state at the end of a run."""
    found = Store(project / run / "checkpoints").newest()
    assert found is not None
    assert found.step == STEPS
    files = read_manifest(found.path)["files"]
    return {name: files[name] for name in files if name.startswith("state.")}


@pytest.fixture(scope="module")
def undisturbed(project: Path) -> dict[str, Any]:
    text = finished(project, "undisturbed", "plan=changes.json")
    assert "continuing with oneDNN on, as recorded" in text
    assert load(project / "undisturbed" / "plan.json").settings == (
        load(project / "changes.json").settings
    )
    return bits(project, "undisturbed")


def test_a_run_that_is_killed_around_a_change_of_settings_ends_with_the_recorded_bits(
    project: Path, undisturbed: dict[str, Any]
):
    moments, words = random.Random(3), ("plan=changes.json", "fit.save_every=6 steps")
    for number in range(20 if ALL else 1):
        run = f"killed-{number}"
        for _ in range(2):
            child = start(project, run, *words)
            until = moments.choice([1, 6, CHANGE - 6, CHANGE, CHANGE])
            while child.poll() is None and _last_step(project / run) < until:
                time.sleep(0.002)
            time.sleep(moments.uniform(0.0, 3.0))
            child.kill()
            child.wait()
        finished(project, run, *words)
        assert bits(project, run) == undisturbed


def test_a_recorded_number_of_threads_is_followed_by_a_new_process(project: Path):
    recorded = load(project / "changes.json").settings[0].settings
    history = PlanHistory().changed(0, Plan("graph", "graph", "resident"))
    one = replace(recorded, intra_op_threads=1)
    history.with_settings(0, recorded).with_settings(CHANGE, one).save(project / "threads.json")
    text = finished(project, "threads", "plan=threads.json")
    assert "continuing with oneDNN off, 1 intra-op thread, as recorded" in text
    assert load(project / "threads" / "plan.json").settings == (
        load(project / "threads.json").settings
    )
    finished(project, "threads-again", "plan=threads/plan.json")
    assert bits(project, "threads-again") == bits(project, "threads")


def _last_step(run: Path) -> int:
    return max((int(p.name[5:]) for p in run.glob("checkpoints/step-????????")), default=0)


def test_a_run_whose_newest_checkpoint_is_damaged_goes_back_to_the_settings_before(
    project: Path, undisturbed: dict[str, Any]
):
    words = ("plan=changes.json", "fit.save_every=12 steps")
    child = start(project, "damaged", *words)
    while child.poll() is None and _last_step(project / "damaged") < CHANGE:
        time.sleep(0.002)
    child.kill()
    child.wait()
    newest = project / "damaged" / "checkpoints" / f"step-{CHANGE:08}"
    (newest / "manifest.json").write_text("{}")
    text = finished(project, "damaged", *words)
    assert "resuming from step 12" in text
    assert bits(project, "damaged") == undisturbed


def test_sigterm_while_a_process_replaces_itself_is_not_lost(
    project: Path, undisturbed: dict[str, Any]
):
    child = start(project, "preempted", "plan=changes.json")
    log = project / "preempted.log"
    while child.poll() is None and "saved, restarting" not in log.read_text():
        time.sleep(0.002)
    pid = child.pid
    child.send_signal(signal.SIGTERM)
    assert child.wait(timeout=300) == 143, log.read_text()[-3000:]
    assert pid == child.pid
    assert "To resume: loopwright resume preempted" in log.read_text()
    finished(project, "preempted", "plan=changes.json")
    assert bits(project, "preempted") == undisturbed


def test_a_variable_of_the_user_wins_over_the_record_and_that_is_said(project: Path):
    finished(project, "own", "plan=graph", "--settings", "default")
    shutil.copytree(project / "own", project / "own-on")
    more = ("plan=graph", f"fit.until={STEPS + 8} steps")
    text = finished(project, "own-on", *more, **{ONEDNN: "1"})
    now = "oneDNN: off then, on now" if not process.onednn_is_on() else ""
    assert now in text


def test_a_remembered_choice_is_set_before_tensorflow_is_imported(project: Path):
    known = settings_memory.SettingsChoice("step", OFF, ON, (1.0,), (2.0,), True, "", "")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOPWRIGHT_CACHE_DIR", str(project / "remembered"))
        settings_memory.remember(known, _key(project))
    cache = {"LOOPWRIGHT_CACHE_DIR": str(project / "remembered")}
    text = finished(project, "remembers", **cache)
    # It was measured for another step, which shows after the import: TensorFlow's own are back.
    assert "were measured for another step: restarting with oneDNN off" in text
    recorded = [change.settings.onednn for change in load(project / "remembers/plan.json").settings]
    assert recorded == [True, False]
    assert not list((project / "remembered/settings/commands").iterdir())


def test_a_checkpoint_with_unknown_settings_is_refused(tmp_path: Path):
    x = np.ones((8, 2), "float32")

    def trainer() -> lw.Trainer:
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        return lw.Trainer(lw.Supervised(model, "mse", "sgd"), plan="graph", run_dir=tmp_path)

    trainer().fit(x, x[:, :1], epochs=1, verbose=0)
    (manifest,) = tmp_path.glob("checkpoints/*/manifest.json")
    content = json.loads(manifest.read_text().replace('"onednn"', '"malloc": "arena", "onednn"'))
    del content["sha256"]
    manifest.write_bytes(signed(content))
    with pytest.raises(CheckpointError, match=r"manifest\.json: plans: ") as e:
        trainer().fit(x, x[:, :1], epochs=2, verbose=0)
    assert all(part in str(e.value) for part in ("expected:", "received:", "do:"))


def _key(project: Path) -> str:
    code = (
        "from loopwright.cli import process_settings as p; from loopwright.config import file;"
        "print(p._key(file.load('job:experiment', [], environment={})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=project, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.mark.skipif(process.onednn_is_on(), reason="TensorFlow has oneDNN on here by itself")
def test_a_long_run_measures_onednn_in_another_process_and_remembers_it(project: Path):
    """Which one wins is the machine's business; what is recorded must agree with what is said."""
    size = ["data.size=2048", "fit.until=100000 steps", "fit.epochs=null"]
    cache = {"LOOPWRIGHT_CACHE_DIR": str(project / "measured")}
    child = start(project, "measures", *size, **cache)
    log, steps = project / "measures.log", project / "measured/settings/steps"
    while child.poll() is None and not list(steps.glob("*.json")):
        time.sleep(0.05)
    found = json.loads(next(steps.glob("*.json")).read_text())
    time.sleep(1.0)
    child.send_signal(signal.SIGTERM)
    assert child.wait(timeout=300) == 143, log.read_text()[-3000:]
    text = log.read_text()
    assert "measuring oneDNN on in another process" in text
    word = "restarting with oneDNN on" if found["is_other_faster"] else "staying with oneDNN off"
    assert word in text
    recorded = [c.settings.onednn for c in load(project / "measures/plan.json").settings]
    assert recorded == ([False, True] if found["is_other_faster"] else [False])


@pytest.mark.skipif(process.onednn_is_on(), reason="TensorFlow has oneDNN on here by itself")
def test_a_trial_that_runs_out_of_memory_leaves_the_run_as_it_was(tmp_path: Path):
    made = noted_job.make_project(tmp_path / "project")
    child = noted_job.start(made, "short", "data.stops=false", SPARE_BYTES="100000000")
    while child.poll() is None and "could not be measured" not in noted_job.text_of(made, "short"):
        time.sleep(0.05)
    child.send_signal(signal.SIGTERM)
    assert child.wait(timeout=300) == 143, noted_job.text_of(made, "short")[-3000:]
    said = noted_job.text_of(made, "short")
    assert said.count("measuring oneDNN on in another process") == 1
    assert said.count("oneDNN on could not be measured (") == 1
    assert "): the run continues with oneDNN off" in said
    happened = noted_job.what(noted_job.notes(made), "start", "trial", "exec")
    assert happened == ["start off", "trial on"]

    trained = noted_job.bits(made, "short")
    until = f"fit.until={trained['saved step']} steps"
    words = ["data.stops=false", "fit.epochs=null", until, "--settings", "default"]
    noted_job.ended(made, "alone", *words)
    assert noted_job.bits(made, "alone") == trained
