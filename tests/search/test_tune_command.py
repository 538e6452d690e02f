"""The command `tune` with real trainings: killed and continued, shown, and refused."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests import chromium
from tests.cli.small_project import MINE, content_of, enter, invoke
from tests.processes import run_command

from loopwright.search import tune

pytest.importorskip("optuna")
pytest.importorskip("sklearn.ensemble")  # Optuna's plots import it, and it sets variables
pytest.importorskip("plotly")

WORDS = (
    *("mine:experiment", "--trials", "3", "--settings", "default"),
    *("model.rate=float(1e-3,1e-1,log)", "model.width=choice(2,4)", "plan=graph"),
    *("fit.epochs=6", "fit.save_every=2 steps"),
)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return enter(tmp_path, monkeypatch, mine=MINE)


def start(*words: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-P", "-m", "loopwright", "tune", *words]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, **pipes)


def scores(directory: Path) -> list[Any]:
    found = tune.shown(directory)
    return [(t.number, t.state, t.score, t.parameters) for t in found.trials]


def test_a_search_that_is_killed_gives_the_same_bits_and_keeps_finished_trials(project: Path):
    whole = start(*WORDS, "--dir", "whole")
    text, _ = whole.communicate()
    assert whole.returncode == 0, text
    for wanted in (
        "trials/0000/checkpoints/step-00000012",
        "trials/0001/checkpoints/step-00000010",
    ):
        process = start(*WORDS, "--dir", "killed")
        while not list((project / "killed").glob(wanted)) and process.poll() is None:
            time.sleep(0.02)
        assert process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.communicate()
    finished = content_of(project / "killed/trials/0000")
    last = start(*WORDS, "--dir", "killed")
    text, _ = last.communicate()
    assert last.returncode == 0, text
    assert "trial 1 was interrupted; resuming it" in text
    assert content_of(project / "killed/trials/0000") == finished
    assert scores(project / "killed") == scores(project / "whole")
    if chromium.PATH is not None:
        with chromium.Chromium() as page:
            page.open((project / "killed/report.html").as_uri())
            assert page.evaluate("document.querySelectorAll('.figure .main-svg').length") >= 6
            assert page.messages == []


def test_a_directory_is_shown_and_never_run(project: Path):
    (project / "runs").mkdir()
    code, text = invoke("tune", "runs", "model.width=choice(2,4)")
    assert (code, "--show" in text) == (2, True)
    code, text = invoke("tune", "runs", "--show")
    assert (code, "is not the directory of a study" in text) == (2, True)


def test_without_the_extra_its_line_is_printed_and_the_help_needs_none(project: Path):
    program = """
import json, sys
sys.modules["optuna"] = None
from typer.testing import CliRunner
from loopwright.cli import main
helped = CliRunner().invoke(main.app, ["tune", "--help"])
asked = CliRunner().invoke(main.app, ["tune", "mine:experiment", "model.width=choice(2,4)"])
print(json.dumps([helped.exit_code, str(asked.exception), "tensorflow" in sys.modules]))
"""
    done = run_command([sys.executable, "-c", program])
    code, error, has_tensorflow = json.loads(done.stdout.splitlines()[-1])
    assert code == 0
    assert "pip install 'loopwright[tune]'" in error
    assert not has_tensorflow
