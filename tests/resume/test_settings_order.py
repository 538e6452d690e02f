"""A change of process settings: checkpoint, then record, then exec; a signal meanwhile waits."""

import signal
from pathlib import Path
from typing import Any

import pytest
from tests.resume.noted_job import (
    STEPS,
    bits,
    ended,
    make_project,
    notes,
    remember_as_faster,
    text_of,
    what,
)

from loopwright.compat import process
from loopwright.plans.plan_history import load

CHANGED = [(0, False), (1, True)]
pytestmark = pytest.mark.skipif(
    not process.onednn_may_help(), reason="oneDNN is on here, or is not for this processor"
)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose step is remembered to be faster with oneDNN."""
    made = make_project(tmp_path_factory.mktemp("project"))
    ended(made, "unchanged", "--settings", "default", "fit.epochs=1")
    remember_as_faster(made, notes(made))
    return made


def settings(project: Path, run: str) -> list[tuple[int, bool]]:
    """Return what a run has recorded: after which step, whether oneDNN is on."""
    found = load(project / run / "plan.json").settings
    return [(change.step, change.settings.onednn) for change in found]


def saved_steps(project: Path, run: str) -> list[int]:
    return sorted(int(path.name[5:]) for path in (project / run).glob("checkpoints/step-????????"))


@pytest.fixture(scope="module")
def changed(project: Path) -> dict[str, Any]:
    """The bits of a run that nothing disturbs; it changes its settings after its first step."""
    ended(project, "whole")
    assert settings(project, "whole") == CHANGED
    return bits(project, "whole")


def test_a_change_is_saved_then_recorded_then_made(project: Path, changed: dict[str, Any]):
    said = text_of(project, "whole")
    assert said.count("restarting with oneDNN on: 72 steps/s with oneDNN on, 49 steps/s") == 1
    found = notes(project)
    happened = what(found, "start", "checkpoint", "record", "exec")
    assert happened[:5] == ["start off", "checkpoint step-00000001", "record", "exec", "start on"]
    assert "exec" not in happened[5:]
    assert len({pid for pid, *_ in found}) == 1
    assert changed["saved step"] == STEPS


def test_a_run_that_changed_its_settings_is_repeated_bit_by_bit(
    project: Path, changed: dict[str, Any]
):
    ended(project, "repeated", "plan=whole/plan.json")
    assert settings(project, "repeated") == CHANGED
    assert bits(project, "repeated") == changed


@pytest.mark.parametrize("moment", ["record", "exec", "import"])
def test_a_kill_at_any_moment_of_a_change_resumes_as_recorded(
    project: Path, changed: dict[str, Any], moment: str
):
    run = f"killed-at-{moment}"
    ended(project, run, code=-signal.SIGKILL, DISTURBED=f"{moment} 9")
    notes(project)
    # The checkpoint is first: without it, the record would speak of steps that were not saved.
    assert saved_steps(project, run) == [1]
    is_recorded = moment != "record"
    assert settings(project, run) == (CHANGED if is_recorded else CHANGED[:1])
    ended(project, run)
    assert what(notes(project), "start")[0] == ("start on" if is_recorded else "start off")
    assert "resuming from step 1" in text_of(project, run)
    if is_recorded:
        assert settings(project, run) == CHANGED
        assert bits(project, run) == changed
    else:  # it has changed its settings a little later
        ended(project, f"{run}-again", f"plan={run}/plan.json")
        assert bits(project, run) == bits(project, f"{run}-again")


@pytest.mark.parametrize("moment", ["record", "exec", "import"])
def test_sigterm_at_any_moment_of_a_change_saves_the_run_and_ends_it(
    project: Path, changed: dict[str, Any], moment: str
):
    run = f"preempted-at-{moment}"
    said = ended(project, run, code=143, DISTURBED=f"{moment} {int(signal.SIGTERM)}")
    assert f"To resume: loopwright resume {run}" in said
    assert saved_steps(project, run)[-1] < STEPS
    ended(project, run)
    assert settings(project, run) == CHANGED
    assert bits(project, run) == changed
