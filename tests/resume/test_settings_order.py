"""A change of process settings: checkpoint, then record, then exec; a signal meanwhile waits."""

import shutil
import signal
from pathlib import Path

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


def require_bits_as_recorded(project: Path, run: str) -> None:
    """Train again by the record of a run, and compare the ends."""
    shutil.copy(project / run / "plan.json", project / f"{run}.json")
    ended(project, f"{run}-again", f"plan={run}.json")
    assert settings(project, f"{run}-again") == settings(project, run)
    assert bits(project, f"{run}-again") == bits(project, run)


def test_a_change_is_saved_then_recorded_then_made(project: Path):
    said = ended(project, "whole")
    assert said.count("restarting with oneDNN on: 72 steps/s with oneDNN on, 49 steps/s") == 1
    found = notes(project)
    happened = what(found, "start", "checkpoint", "record", "exec")
    assert happened[:5] == ["start off", "checkpoint step-00000001", "record", "exec", "start on"]
    assert "exec" not in happened[5:]
    assert len({pid for pid, *_ in found}) == 1
    assert settings(project, "whole") == [(0, False), (1, True)]
    assert bits(project, "whole")["step"] == STEPS


def test_a_run_that_changed_its_settings_is_repeated_bit_by_bit(project: Path):
    ended(project, "repeated")
    require_bits_as_recorded(project, "repeated")


@pytest.mark.parametrize("moment", ["record", "exec", "import"])
def test_a_kill_at_any_moment_of_a_change_resumes_as_recorded(project: Path, moment: str):
    run = f"killed-at-{moment}"
    ended(project, run, code=-signal.SIGKILL, DISTURBED=f"{moment} 9")
    notes(project)
    # The checkpoint is first: without it, the record would speak of steps that were not saved.
    assert saved_steps(project, run) == [1]
    changed = [(0, False), (1, True)]
    assert settings(project, run) == (changed[:1] if moment == "record" else changed)
    ended(project, run)
    first = what(notes(project), "start")[0]
    assert first == ("start off" if moment == "record" else "start on")
    assert "resuming from step 1" in text_of(project, run)
    assert [is_on for _, is_on in settings(project, run)] == [False, True]
    require_bits_as_recorded(project, run)


@pytest.mark.parametrize("moment", ["record", "exec", "import"])
def test_sigterm_at_any_moment_of_a_change_saves_the_run_and_ends_it(project: Path, moment: str):
    run = f"preempted-at-{moment}"
    said = ended(project, run, code=143, DISTURBED=f"{moment} {int(signal.SIGTERM)}")
    notes(project)
    assert f"To resume: loopwright resume {run}" in said
    assert saved_steps(project, run)[-1] < STEPS
    ended(project, run)
    assert bits(project, run)["step"] == STEPS
    require_bits_as_recorded(project, run)
