"""Process settings: decided before TensorFlow is imported, recorded, and never changed in a run."""

import json
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest
from tests.processes import run_command

import loopwright as lw
from loopwright import settings
from loopwright.checkpoints.manifest import signed
from loopwright.errors import CheckpointError
from loopwright.launch import ONEDNN, Settings, onednn_by_default, onednn_is_on
from loopwright.plans.plan import Plan
from loopwright.plans.record import PlanHistory, load

NOW = Settings(onednn_by_default())
OTHER = Settings(not NOW.onednn)
WORDS = {True: "on", False: "off"}
JOB = """
import sys
import keras, numpy as np
import loopwright as lw

def experiment():
    x = np.random.default_rng(0).normal(size=(256, 4)).astype("float32")

    def task():
        keras.utils.set_random_seed(0)
        inner = [keras.layers.Dense(WIDTH), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((4,)), *inner])
        return lw.Supervised(model, "mse", "sgd")

    return lw.Experiment(task, fit={"x": x, "y": x[:, :1], "epochs": 1})

if __name__ == "__main__":
    made = experiment()
    trainer = lw.Trainer(made.task(), plan="graph", run_dir="own")
    trainer.fit(**made.fit | {"epochs": int(sys.argv[1])}, verbose=2)
"""
LOOPWRIGHT = [sys.executable, "-m", "loopwright"]


def write_job(directory: Path, *, width: int) -> None:
    (directory / "job.py").write_text(JOB.replace("WIDTH", str(width)))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_job(tmp_path, width=8)
    monkeypatch.setenv("LOOPWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(ONEDNN, raising=False)
    return tmp_path


@pytest.fixture
def left_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "onednn_is_left_off", lambda _: True)


def ran(project: Path, *command: str, **variables: str) -> str:
    """Return what a command says."""
    done = run_command(command, cwd=project, env=variables)
    return done.stdout + done.stderr


def recorded(run: Path) -> list[tuple[int, bool]]:
    return [(change.step, change.settings.onednn) for change in load(run / "plan.json").settings]


def test_train_and_resume_follow_the_settings_that_a_run_has_recorded(project: Path):
    train = [*LOOPWRIGHT, "train", "job:experiment", "--run-dir", "run", "plan=graph"]
    ran(project, *train, **{ONEDNN: str(int(OTHER.onednn))})
    assert recorded(project / "run") == [(0, OTHER.onednn)]
    said = ran(project, *train, "fit.epochs=2")
    said += ran(project, *LOOPWRIGHT, "resume", "run", "--task", "job:experiment", "fit.epochs=3")
    assert "The environment has changed" not in said
    assert recorded(project / "run") == [(0, OTHER.onednn)]
    # What the user has set in the shell wins, which is said.
    said = ran(project, *train, "fit.epochs=4", **{ONEDNN: str(int(NOW.onednn))})
    assert "this run continues, and is bit-exact until step 24" in said
    assert recorded(project / "run") == [(0, OTHER.onednn), (24, NOW.onednn)]


def test_settings_are_found_remembered_applied_and_dropped(project: Path):
    said = ran(project, *LOOPWRIGHT, "find", "settings", "job.py", "1")
    assert [line.split("  ")[0] for line in said.splitlines() if "steps/s" not in line][:2] == [
        f"{NOW.in_words} (default)",
        OTHER.in_words,
    ]
    assert not (project / "own").exists(), "what is measured opens no run directory"
    key = settings.program_key(["job.py", "1"])
    choice = settings.remembered(key)
    assert choice is not None
    assert f"remembered: {choice.chosen.in_words}" in said
    assert (choice.default, choice.run_dir) == (NOW, str(project / "own"))
    # Which one is faster is the machine's business: let it be the other one.
    choice = replace(choice, chosen=OTHER, gain=1.5)
    settings.remember(key, choice)

    said = ran(project, sys.executable, "job.py", "1")
    hint = f"this step ran 1.5x as fast with {OTHER.in_words}: start it with `loopwright run job.py"
    assert said.count(hint) == 1
    assert recorded(project / "own") == [(0, NOW.onednn)]
    (project / "own").rename(project / "before")
    ran(project, *LOOPWRIGHT, "run", "job.py", "1")
    assert recorded(project / "own") == [(0, OTHER.onednn)]

    write_job(project, width=9)
    (project / "own").rename(project / "narrow")
    said = ran(project, *LOOPWRIGHT, "run", "job.py", "1")
    assert f"settings ({OTHER.in_words}) belong to a different model or batch shape" in said
    assert settings.remembered(key) is None
    # Without Loopwright, the process cannot have what the run has recorded.
    said = ran(project, sys.executable, "job.py", "2")
    was, now = WORDS[OTHER.onednn], WORDS[NOW.onednn]
    assert f"oneDNN: {was} then, {now} now): this run continues, and is bit-exact until" in said


def test_a_command_is_measured_once_where_tensorflow_leaves_onednn_off(
    project: Path, capfd: pytest.CaptureFixture[str], left_off: None
):
    """On any processor: only the condition is given."""
    long = [sys.executable, "job.py", "1000000"]
    key = settings.program_key(long[1:])
    applied, by = settings.decide(key, long)
    choice = settings.remembered(key)
    assert choice is not None
    assert by == key
    assert applied == (None if choice.chosen == choice.default else choice.chosen)
    said = capfd.readouterr().err
    assert said.count("TensorFlow leaves oneDNN off on this processor; measuring once") == 1
    assert settings.decide(key, long) == (applied, key)
    PlanHistory().changed(0, Plan()).with_settings(0, OTHER).save(project / "plan.json")
    assert settings.decide(key, long, plan=str(project / "plan.json")) == (OTHER, "-")
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(("name", "value"), [(ONEDNN, "1"), ("TF_CONFIG", "{}")])
def test_a_command_is_not_measured_where_there_is_nothing_to_gain(
    project: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
):
    monkeypatch.setattr(settings, "onednn_is_left_off", lambda given: ONEDNN not in given)
    monkeypatch.setenv(name, value)
    assert settings.decide("run-1", ["none"]) == (None, "-")


def test_a_program_that_cannot_be_measured_starts_as_it_is_and_is_not_tried_again(
    project: Path, capfd: pytest.CaptureFixture[str], left_off: None
):
    (project / "none.py").write_text("print('hello')")
    for _ in range(2):
        found = settings.decide("run-1", [sys.executable, "none.py"])
        assert found == (None, "run-1")
    assert capfd.readouterr().err.count("the settings could not be measured (") == 1


# --- old records ---


def trainer(run_dir: Path, plan: str | Path = "graph") -> lw.Trainer:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    return lw.Trainer(lw.Supervised(model, "mse", "sgd"), plan=plan, run_dir=run_dir)


def fit(run_dir: Path, epochs: int) -> list[str]:
    x = np.ones((8, 2), "float32")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer(run_dir).fit(x, x[:, :1], batch_size=1, epochs=epochs, verbose=0)
    return [str(each.message) for each in caught]


@pytest.mark.parametrize("change", [4, 8])
def test_an_old_run_with_a_change_in_mid_run_resumes_by_the_settings_of_its_checkpoint(
    tmp_path: Path, change: int
):
    fit(tmp_path / "run", 1)
    now = Settings(onednn_is_on())
    other = Settings(not now.onednn)
    before, after = (other, now) if change < 8 else (now, other)
    history = load(tmp_path / "run" / "plan.json")
    changed = replace(history, settings=()).with_settings(0, before).with_settings(change, after)
    changed.save(tmp_path / "run" / "plan.json")
    assert settings.recorded(tmp_path / "run", 8) == now
    assert not [text for text in fit(tmp_path / "run", 2) if "bit-exact until step 8" in text]


def test_a_plan_file_that_changes_settings_in_mid_run_is_refused_in_four_parts(tmp_path: Path):
    history = PlanHistory().changed(0, Plan()).with_settings(0, NOW).with_settings(24, OTHER)
    history.save(tmp_path / "plan.json")
    with pytest.raises(lw.ConfigurationError, match="changes its process settings in mid-run") as e:
        trainer(tmp_path / "run", tmp_path / "plan.json")
    assert f"{OTHER.in_words} from step 25" in str(e.value)
    assert all(part in str(e.value) for part in ("expected:", "received:", "do:"))


def test_a_plan_file_of_other_settings_is_followed_and_the_difference_said(tmp_path: Path):
    other = Settings(not onednn_is_on())
    PlanHistory().changed(0, Plan()).with_settings(0, other).save(tmp_path / "plan.json")
    x = np.ones((8, 2), "float32")
    made = trainer(tmp_path / "run", tmp_path / "plan.json")
    notes = [e.text for e in made.events(x, x[:, :1], verbose=0) if isinstance(e, lw.Noted)]
    assert any(note.startswith(f"the record asks for {other.in_words}, this") for note in notes)


def test_a_checkpoint_with_unknown_settings_is_refused(tmp_path: Path):
    fit(tmp_path, 1)
    (manifest,) = tmp_path.glob("checkpoints/*/manifest.json")
    content = json.loads(manifest.read_text().replace('"onednn"', '"malloc": "arena", "onednn"'))
    del content["sha256"]
    manifest.write_bytes(signed(content))
    with pytest.raises(CheckpointError, match="unknown field 'malloc'") as e:
        fit(tmp_path, 2)
    assert all(part in str(e.value) for part in ("expected:", "received:", "do:"))
