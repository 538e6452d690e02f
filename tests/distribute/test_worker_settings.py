"""Process settings of a run of several workers: used if remembered, never measured or changed."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.resume.noted_job import (
    OFF,
    ON,
    ended,
    make_project,
    notes,
    remember_as_faster,
    text_of,
    what,
)

from loopwright.compat import process
from loopwright.plans import settings_memory
from loopwright.plans.plan_history import load
from loopwright.plans.settings_memory import SettingsChoice

pytestmark = pytest.mark.skipif(
    not process.onednn_may_help(), reason="oneDNN is on here, or is not for this processor"
)
LAUNCH = ["launch", "--workers", "2", "--"]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_project(tmp_path_factory.mktemp("project"))


def command_key(project: Path) -> str:
    code = (
        "from loopwright.cli import process_settings as p; from loopwright.config import file;"
        "print(p._key(file.load('job:experiment', [], environment={})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=project, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_workers_start_with_the_remembered_settings_and_keep_their_processes(project: Path):
    choice = SettingsChoice("step", OFF, ON, (1.0,), (2.0,), True, "2999-01-01T00:00:00+00:00")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOPWRIGHT_CACHE_DIR", str(project / "remembers"))
        settings_memory.remember(choice, command_key(project))
    cache: dict[str, Any] = {"LOOPWRIGHT_CACHE_DIR": str(project / "remembers")}
    ended(project, "both", before=LAUNCH, **cache)
    # Measured for another step or not: workers that restart one by one would lose each other.
    assert what(notes(project), "start", "trial", "exec") == ["start on", "start on"]
    found = load(project / "both" / "plan.json").settings
    assert [(change.step, change.settings.onednn) for change in found] == [(0, True)]


def test_workers_are_told_in_one_sentence_what_is_faster_and_measure_nothing(project: Path):
    ended(project, "unknown", "fit.epochs=1", before=LAUNCH)
    remember_as_faster(project, notes(project))
    said = ended(project, "told", before=LAUNCH)
    assert what(notes(project), "start", "trial", "exec") == ["start off", "start off"]
    hint = (
        "note: this step ran 1.5x as fast with oneDNN on: set TF_ENABLE_ONEDNN_OPTS=1 in the shell"
    )
    assert said.count(hint) == 1
    assert said.count("oneDNN") == 1
    assert "measuring" not in text_of(project, "unknown")
    assert json.loads((project / "told" / "plan.json").read_text())["settings"][-1]["step"] == 0
