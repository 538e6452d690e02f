"""The memory of process settings: by command, machine and versions; what cannot be read is none."""

import json
from pathlib import Path

import pytest

from loopwright import processor, settings
from loopwright.launch import Settings
from loopwright.settings import SettingsChoice

CHOICE = SettingsChoice("ab12", Settings(), Settings(True, intra_op_threads=1), 1.5, "/runs/a")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOOPWRIGHT_CACHE_DIR", str(tmp_path))
    return tmp_path / "settings" / "run-1.json"


def test_a_choice_is_remembered_for_its_command_until_it_is_forgotten():
    settings.remember("run-1", CHOICE)
    settings.remember("run-2", CHOICE)
    assert settings.remembered("run-1") == CHOICE
    settings.forget("run-1")
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
def test_a_file_with_other_values_is_not_used(cache: Path, change: dict[str, object]):
    settings.remember("run-1", CHOICE)
    cache.write_text(json.dumps(json.loads(cache.read_text()) | change))
    assert settings.remembered("run-1") is None


@pytest.mark.parametrize("text", ["", "[" * 9999, "7"])
def test_a_damaged_file_is_not_used(cache: Path, text: str):
    settings.remember("run-1", CHOICE)
    cache.write_text(text)
    assert settings.remembered("run-1") is None


def test_nothing_is_remembered_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").write_text("")
    for directory in ("", str(tmp_path / "file")):
        monkeypatch.setenv("LOOPWRIGHT_CACHE_DIR", directory)
        settings.remember("run-1", CHOICE)
        assert settings.remembered("run-1") is None
        settings.forget("run-1")
