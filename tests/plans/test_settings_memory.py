"""Settings that were measured are remembered, for a step and for a command."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from loopwright.plans import processor, settings_memory
from loopwright.plans.settings import Settings
from loopwright.plans.settings_memory import SettingsChoice

ON, OFF = Settings(onednn=True), Settings(onednn=False)
CHOICE = SettingsChoice(
    "ab12", OFF, ON, (47.0, 48.0), (70.0, 66.0), True, "2026-11-17T10:00:00+00:00", "Supervised"
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOOPWRIGHT_CACHE_DIR", str(tmp_path))
    return tmp_path / "settings"


def test_a_choice_is_found_by_its_step_and_by_its_command():
    settings_memory.remember(CHOICE, "train-1")
    assert settings_memory.for_step("ab12") == CHOICE
    assert settings_memory.for_command("train-1") == CHOICE
    assert settings_memory.for_command("train-2") is None


def test_a_choice_says_what_was_faster_and_by_how_much():
    assert CHOICE.chosen == ON
    assert CHOICE.why == "70 steps/s with oneDNN on, 48 steps/s with oneDNN off"
    assert f"{CHOICE.gain:.2f}" == "1.46"
    assert replace(CHOICE, is_other_faster=False).chosen == OFF


@pytest.mark.parametrize(("days", "is_recent"), [(1, True), (29, True), (31, False)])
def test_old_rates_are_measured_again(days: int, is_recent: bool):
    now = datetime(2026, 11, 17, 10, tzinfo=UTC) + timedelta(days=days)
    assert CHOICE.is_recent(now) is is_recent
    assert not replace(CHOICE, date="some day").is_recent(now)


def test_a_process_without_a_command_remembers_the_step_alone(cache: Path):
    settings_memory.remember(CHOICE, "-")
    assert settings_memory.for_step("ab12") == CHOICE
    assert not (cache / "commands").exists()


def test_a_command_whose_step_has_changed_is_forgotten():
    settings_memory.remember(CHOICE, "train-1")
    settings_memory.forget_command("train-1")
    settings_memory.forget_command("train-1")
    assert settings_memory.for_command("train-1") is None
    assert settings_memory.for_step("ab12") == CHOICE


def test_a_step_is_forgotten_with_the_commands_that_run_it():
    other = replace(CHOICE, identity="cd34")
    settings_memory.remember(CHOICE, "train-1")
    settings_memory.remember(other, "train-2")
    settings_memory.forget("ab12")
    settings_memory.forget("ab12")
    assert settings_memory.for_step("ab12") is None
    assert settings_memory.for_command("train-1") is None
    assert settings_memory.for_command("train-2") == other


def damaged(**values: object) -> str:
    return json.dumps(CHOICE.content() | values)


@pytest.mark.parametrize(
    "text",
    [
        *("", "{}", "[]", "null", "\0", damaged(format=2), damaged(rates_other=[])),
        *(damaged(rates_default=[0.0]), damaged(other={"onednn": "?"}), damaged(rates_other=7)),
        *(damaged(other=[]), damaged(default=None), damaged(rates_other=[10**400])),
        *(damaged(rates_other=[float("nan")]), damaged(rates_other=[float("inf")])),
        *("[" * 100_000, damaged(format="1"), damaged(default={"onednn": True, "new": 1})),
    ],
)
def test_garbage_and_other_versions_are_ignored_with_a_reason(cache: Path, text: str):
    settings_memory.remember(CHOICE, "train-1")
    assert settings_memory.ignored_for_command("train-1") == ""
    (cache / "commands" / "train-1.json").write_text(text)
    assert settings_memory.for_command("train-1") is None
    said = settings_memory.ignored_for_command("train-1")
    assert said.startswith("ignoring the remembered process settings, which cannot be read: ")
    assert "\n" not in said


def test_a_command_that_was_never_measured_is_no_reason_for_a_word():
    assert settings_memory.ignored_for_command("train-1") == ""


def test_what_another_machine_with_the_same_home_has_measured_is_not_found(
    monkeypatch: pytest.MonkeyPatch,
):
    settings_memory.remember(CHOICE, settings_memory.command_key("run", "train.py"))
    assert settings_memory.for_command(settings_memory.command_key("run", "train.py")) == CHOICE
    monkeypatch.setattr(processor, "name", lambda: "another processor")
    assert settings_memory.for_command(settings_memory.command_key("run", "train.py")) is None
    monkeypatch.undo()
    monkeypatch.setattr(processor, "cores", lambda: 512)
    assert settings_memory.for_command(settings_memory.command_key("run", "train.py")) is None


def test_a_cache_that_is_disabled_or_cannot_be_written_remembers_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("LOOPWRIGHT_CACHE_DIR", "")
    settings_memory.remember(CHOICE, "train-1")
    assert settings_memory.for_step("ab12") is None
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LOOPWRIGHT_CACHE_DIR", str(tmp_path / "file"))
    settings_memory.remember(CHOICE, "train-1")
    assert settings_memory.for_step("ab12") is None
