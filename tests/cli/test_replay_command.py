"""`loopwright replay`, as a person uses it after a run that ended with NaN."""

import re
from pathlib import Path

import numpy as np
import pytest
from tests.cli.small_project import LINEAR, enter, invoke
from typer.testing import CliRunner

from loopwright.cli import main


@pytest.fixture
def failed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], str]:
    """The arguments of the command that the run printed, and the whole error."""
    enter(tmp_path, monkeypatch, mine=LINEAR)
    words = ["data.poisoned=true", "fit.save_every=1 step", "fit.validate_every=9 epochs"]
    command = ["train", "mine:experiment", "plan=graph", "run_dir=run", *words]
    done = CliRunner().invoke(main.app, command)
    error = str(done.exception)
    found = re.search(r"to look into this step: loopwright (replay run --step \d+ .*)", error)
    assert found, error
    return found[1].split(), error


def test_the_command_that_a_failed_run_prints_shows_the_batch_and_the_example(failed_run):
    command, error = failed_run
    assert command[-2:] == ["--task", "mine:experiment"]
    code, page = invoke(*command)
    assert code == 0, page
    step = command[command.index("--step") + 1]
    assert f"The loss is NaN or infinite at step {step}" in error
    assert f"step {step} of run: epoch 1" in page
    assert "NaN or infinity: 3, in example 5" in page
    assert "model.layers[1].kernel" in page
    assert f"batch saved to run-step-{step}.npz" in page
    assert np.isnan(np.load(f"run-step-{step}.npz")["x"]).sum() == 3


def test_what_cannot_be_replayed_is_refused_in_words(failed_run, tmp_path):
    command, _ = failed_run
    assert invoke(*command[:-2])[0] == 2  # code of one's own is named, or not called
    code, text = invoke("replay", "run", "--step", "99", "--task", "mine:experiment")
    assert (code, "This run has no such step" in text) == (2, True)
    (tmp_path / "run" / "config.yaml").unlink()
    code, text = invoke("replay", "run", "--step", "2")
    assert (code, "print(trainer.replay(STEP, ...))" in text) == (2, True)
    assert invoke("replay", "nowhere")[0] == 2
