"""A run directory read in one place: by a follower while it is written, and without TensorFlow."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import loopwright as lw
from loopwright import runs


def line(**event: object) -> str:
    return json.dumps(event) + "\n"


def test_a_follower_gets_each_event_once_and_all_again_when_a_run_is_cut(tmp_path: Path):
    journal, record = tmp_path / "metrics.jsonl", runs.RunRecord(tmp_path)
    assert list(record.events()) == []
    journal.write_text(line(event="started", step=0) + '{"event": "trai')
    ((end, event),) = record.events()
    assert event == {"event": "started", "step": 0}
    assert list(record.events(after=end)) == []
    journal.write_text(line(event="started", step=0) + line(event="trained", step=3))
    ((end, event),) = record.events(after=end)
    assert event["step"] == 3
    journal.write_text(line(event="started", step=1))
    assert [event["step"] for _, event in record.events(after=end)] == [1]


def test_the_steps_of_a_run_are_those_of_all_its_starts(tmp_path: Path):
    told = [
        {"event": "started", "step": 0},
        {"event": "trained", "step": 5, "metrics": {"loss": "NaN", "table": [1]}},
        {"event": "batch_skipped", "step": 6, "went_back_to_step": 4},
        {"event": "started", "step": 4, "resumed_steps": 4},
        {"event": "finished", "step": 9, "failed_step": 10, "spent": {"step": 3.0}},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(line(**event) for event in told))
    steps = runs.open(tmp_path).steps
    assert (steps.failed_step, steps.last_step, steps.skipped) == (10, 10, {6})
    assert steps.steps_per_second == 2.0
    assert list(steps.numbers[5]) == ["loss"]
    assert steps.leg_start(8) == 0


def test_a_directory_without_a_run_is_refused(tmp_path: Path):
    with pytest.raises(lw.ConfigurationError, match="No run found"):
        runs.open(tmp_path)


def test_reading_runs_imports_no_tensorflow():
    program = "import sys; import loopwright.runs; assert 'tensorflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
