"""The memory of process settings: by command, machine and versions; what cannot be read is none."""

import json
from pathlib import Path

import pytest

from loopwright import processor, settings
from loopwright.launch import Settings
from loopwright.plans import cache
from loopwright.settings import SettingsChoice

CHOICE = SettingsChoice("ab12", Settings(), Settings(True, intra_op_threads=1), 1.5, "/runs/a")


@pytest.fixture(autouse=True)
def remembered_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOOPWRIGHT_CACHE_DIR", str(tmp_path))
    return tmp_path / "settings" / "run-1.json"


def test_a_choice_is_remembered_for_its_command_until_it_is_forgotten():
    settings.remember("run-1", CHOICE)
    settings.remember("run-2", CHOICE)
    assert settings.remembered("run-1") == CHOICE
    cache.delete("settings", "run-1")
    assert settings.remembered("run-1") is None
    assert settings.remembered("run-2") == CHOICE


def test_another_machine_has_its_own_memory(monkeypatch: pytest.MonkeyPatch):
    key = settings.program_key(["train.py"])
    monkeypatch.setattr(processor, "name", lambda: "another processor")
    assert settings.program_key(["train.py"]) != key


@pytest.mark.parametrize(
    "change",
    [
        {"step_digest": 7},
        {"chosen": {"onednn": True, "malloc": "arena"}},
        {"chosen": {"onednn": True, "intra_op_threads": 10**6}},
        {"gain": float("nan")},
        {"run_dir": None},
        {"more": 1},
    ],
)
def test_a_file_with_other_values_is_not_used(remembered_file: Path, change: dict[str, object]):
    settings.remember("run-1", CHOICE)
    content = json.loads(remembered_file.read_text())
    remembered_file.write_text(json.dumps(content | change))
    assert settings.remembered("run-1") is None
