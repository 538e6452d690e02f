"""`train --from RUN@STEP`: a copy of a run trains on from a step, the run is not touched."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.small_project import MINE, content_of, enter, invoke

from loopwright.checkpoints.manifest import verified

TASK = ("--task", "mine:experiment")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of 24 steps with checkpoints after 9, 18 and 24, in the working directory."""
    enter(tmp_path, monkeypatch, mine=MINE)
    words = ["plan=graph", "fit.save_every=9 steps", "fit.verbose=0", "keep=[{latest: 5}]"]
    code, output = invoke("train", "mine:experiment", *words, "--run-dir", "runs/old")
    assert code == 0, output
    return Path("runs/old")


def fork(step: str, *arguments: str) -> tuple[int, str]:
    return invoke("train", "--from", f"runs/old@{step}", *arguments, *TASK)


def test_a_fork_without_changes_ends_with_the_bits_of_the_old_run(run):
    before = content_of(run)
    code, output = fork("9")
    assert code == 0, output
    assert output == "runs/old-step9: from runs/old, step 9\n"
    ends = [Path(name) / "checkpoints/step-00000024" for name in ("runs/old", "runs/old-step9")]
    states = [
        {n: f for n, f in verified(end).files.items() if n.startswith("state")} for end in ends
    ]
    assert states[0] == states[1]
    assert content_of(run) == before
    assert fork("9") == (0, ""), "the same command resumes, as train does"


def test_a_fork_trains_on_with_changed_values_and_shows_its_origin(run):
    code, output = fork("9", "model.rate=0.5", "fit.epochs=5", "--run-dir", "runs/new")
    assert code == 0, output
    assert "model.rate: default -> 0.5" in output
    lines = [json.loads(line) for line in Path("runs/new/metrics.jsonl").read_text().splitlines()]
    ended = [line for line in lines if line["event"] == "epoch_ended"]
    assert [line["step"] for line in ended] == [6, 12, 18, 24, 30]
    rates = [line["learning_rates"]["learning_rate"] for line in ended]
    assert rates == pytest.approx([0.01, 0.5, 0.5, 0.5, 0.5])
    _, table = invoke("runs")
    assert "runs/old, step 9" in table
    _, shown = invoke("runs", "runs/new")
    assert "forked from runs/old, step 9; " in " ".join(shown.split())
    assert "model.rate: default -> 0.5" in shown
    assert "Forked from runs/old, step 9" in Path("runs/new/report.html").read_text()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["10"], "choose another step: 9, 18, 24"),
        (["9", "model.width=5"], "The task has other variables than the checkpoint"),
        (["9", "fit.batch_size=20"], "received: fit.batch_size"),
        (["9", "data.rows=70"], "data.rows"),
        (["24"], "nothing left to train"),
        (["9", "--run-dir", "runs/old"], "already exists"),
        (["nine"], "expected: RUN@STEP, for example runs/digits@1200"),
        (["9", "--quick"], "--quick does not go with --from"),
        (["9", "mine:experiment"], "mine:experiment does not go with --from"),
    ],
)
def test_what_cannot_be_forked_is_refused_and_makes_nothing(words, told, run):
    before = content_of(Path("runs"))
    code, output = fork(*words)
    assert code == 2
    assert told in output
    assert content_of(Path("runs")) == before


def test_custom_code_has_to_be_named(run):
    code, output = invoke("train", "--from", "runs/old@9")
    assert code == 2
    assert "--task mine:experiment" in output
    code, output = invoke("train", "mine:experiment", *TASK)
    assert code == 2
    assert "--from --task" in output
    assert invoke("train")[0] == 2


def test_a_copy_is_made_before_tensorflow_reads_its_process_settings():
    check = (
        "import sys; from loopwright import runs; from loopwright.insight import "
        "comparison; assert not {'tensorflow', 'keras'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", check], check=True)
