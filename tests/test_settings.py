"""Process settings: by meaning, recorded, remembered, given to a process, refused if unknown."""

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from loopwright import launch, processor, settings
from loopwright.errors import ConfigurationError
from loopwright.launch import ONEDNN, Settings, from_environment
from loopwright.plans import cache
from loopwright.plans import record as plan_record
from loopwright.plans.plan import Plan
from loopwright.plans.record import PlanHistory
from loopwright.settings import SettingsChoice

ON, OFF = Settings(onednn=True), Settings(onednn=False)


@pytest.mark.parametrize("text", ["--tf_xla_persistent_cache_directory=/a", "--xla_dump_to=/b", ""])
def test_a_flag_that_only_names_a_file_has_no_meaning(text: str):
    found = from_environment({"XLA_FLAGS": text, "TF_XLA_FLAGS": "--tf_xla_auto_jit=2"})
    assert found.xla_flags == ("--tf_xla_auto_jit=2",)


def test_the_order_of_flags_has_no_meaning():
    one, other = ({"XLA_FLAGS": text} for text in ("--a=1  --b=2", "--b=2 --a=1"))
    assert from_environment(one) == from_environment(other)


def test_recorded_flags_of_xla_are_never_applied():
    """Some name files to write or programs to run, and a record may come from anyone."""
    hostile = Settings(xla_flags=("--xla_dump_to=/home/me",), intra_op_threads=2)
    assert hostile.variables() == {ONEDNN: "0", "TF_NUM_INTRAOP_THREADS": "2"}


def test_a_huge_number_of_threads_in_the_environment_can_be_recorded():
    found = from_environment({"TF_NUM_INTRAOP_THREADS": "5000"})
    recorded = PlanHistory().with_settings(0, found)
    assert plan_record.parsed(json.loads(recorded.text())) == recorded


@pytest.mark.parametrize(
    ("text", "asked"), [("1", True), ("true", True), ("0", False), ("", None), ("2", None)]
)
def test_the_variable_of_onednn_is_read_as_tensorflow_reads_it(text: str, asked: bool | None):
    expected = launch.onednn_by_default() if asked is None else asked
    assert from_environment({ONEDNN: text}).onednn is expected


def history() -> PlanHistory:
    return PlanHistory().changed(0, Plan()).with_settings(0, OFF).with_settings(40, ON)


def test_a_history_says_which_settings_ran_which_steps():
    recorded = history()
    assert [recorded.settings_after(step) for step in (0, 39, 40, 900)] == [OFF, OFF, ON, ON]
    assert PlanHistory().settings_after(7) is None


def test_settings_that_stay_are_recorded_once():
    assert history().with_settings(60, ON) == history()
    assert len(history().with_settings(60, OFF).settings) == 3


def test_settings_that_ran_no_step_are_not_recorded():
    assert history().with_settings(40, OFF).settings == history().settings[:1]


def test_a_history_that_is_cut_ends_with_the_settings_of_its_last_step():
    assert history().until(40).settings == history().settings[:1]
    assert history().until(41) == history()


def test_a_history_survives_its_file(tmp_path: Path):
    recorded = history().with_settings(60, Settings(True, ("--a=false",), 2, 1))
    recorded.save(tmp_path / "plan.json")
    assert plan_record.load(tmp_path / "plan.json") == recorded


def test_a_history_of_an_earlier_version_has_no_settings():
    content = history().content()
    del content["settings"]
    assert plan_record.parsed(content).settings == ()


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ([{"step": 0, "onednn": True, "malloc": "arena"}], "settings.0: unknown field 'malloc'"),
        ([{"step": 0}], "settings.0.onednn: missing"),
        ([{"step": 0, "onednn": "perhaps"}], "settings.0.onednn: expected a valid boolean"),
        ([{"step": 0, "onednn": 1}], "onednn: expected a valid boolean, received 1"),
        ([{"step": 0, "onednn": True, "xla_flags": "--a"}], "xla_flags: expected a valid array"),
        ([{"step": 0, "onednn": True, "xla_flags": [7]}], "xla_flags.0: expected a valid string"),
        ([{"step": 0, "onednn": True, "intra_op_threads": "2"}], "integer, received '2'"),
        ([{"step": 0, "onednn": True, "inter_op_threads": -1}], "greater than or equal to 0"),
        ([{"step": 0, "onednn": True, "inter_op_threads": True}], "expected a valid integer"),
        ([{"step": 0, "onednn": True, "intra_op_threads": 10**9}], "less than or equal to 1024"),
        ([{"step": 2**60, "onednn": True}], "settings.0.step: expected less than"),
        ([{"onednn": True}], "settings.0.step: missing"),
        ([7], "settings.0: expected an object"),
        (7, "settings: expected a valid array"),
    ],
)
def test_a_plan_file_with_unknown_settings_is_refused_in_four_parts(
    tmp_path: Path, written: object, why: str
):
    content = history().content() | {"settings": written}
    (tmp_path / "plan.json").write_text(json.dumps(content))
    with pytest.raises(ConfigurationError) as caught:
        plan_record.load(tmp_path / "plan.json")
    text = str(caught.value)
    assert "The plan history cannot be read." in text
    assert why in text
    assert all(part in text for part in ("expected:", "received:", "do:"))


# --- remembered by command, machine and versions ---

CHOICE = SettingsChoice("ab12", Settings(), Settings(True, intra_op_threads=1), 1.5, "/runs/a")


@pytest.fixture
def remembered_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOOPWRIGHT_CACHE_DIR", str(tmp_path))
    return tmp_path / "settings" / "run-1.json"


@pytest.mark.usefixtures("remembered_file")
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


# --- which variables Loopwright gave a process, and which choice they are from ---


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    for name in (ONEDNN, launch.THREADS["intra_op_threads"]):
        monkeypatch.delenv(name, raising=False)
    with patch.dict(os.environ):
        yield dict(os.environ)


def test_a_process_knows_its_choice_and_children_are_not_marked(
    given: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    assert launch.own_key() is None
    launch.apply(ON, "run-1")
    assert os.environ[ONEDNN] == "1"
    assert launch.own_key() == "run-1"
    monkeypatch.setattr(os, "getpid", lambda: 1)
    assert launch.own_key() is None
    assert {*launch.unmarked(os.environ)} == {*given}
    launch.apply(None)
    assert ONEDNN not in os.environ


def test_what_the_user_has_set_stays(given: dict[str, str]):
    os.environ[ONEDNN] = "0"
    launch.apply(replace(ON, intra_op_threads=1))
    assert (os.environ[ONEDNN], os.environ[launch.THREADS["intra_op_threads"]]) == ("0", "1")
    assert {*launch.unmarked(os.environ)} == {*given, ONEDNN}


@pytest.mark.parametrize("text", ["", "7", "x"])
def test_a_mark_that_cannot_be_read_marks_nothing(monkeypatch: pytest.MonkeyPatch, text: str):
    monkeypatch.setenv(launch.MARK, text)
    assert launch.own_key() is None
    assert launch.unmarked({launch.MARK: text, "A": "1"}) == {"A": "1"}


def test_only_a_child_of_its_parent_is_measured(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(launch.MEASURED, "1")
    monkeypatch.setenv(launch.PARENT, f"{os.getppid()} 5")
    assert launch.is_measured()
    assert launch.parent_socket() == 5
    monkeypatch.setenv(launch.PARENT, f"{os.getppid() + 1} 5")
    assert not launch.is_measured()


@pytest.mark.parametrize(
    ("words", "program"),
    [
        (["train.py", "-u"], ["train.py", "-u"]),
        (["-u", "-X", "dev", "train.py"], ["train.py"]),
        (["-P", "-m", "train", "a"], ["-m", "train", "a"]),
        ([], []),
    ],
)
def test_a_program_is_named_as_run_names_it(
    monkeypatch: pytest.MonkeyPatch, words: list[str], program: list[str]
):
    monkeypatch.setattr(sys, "orig_argv", ["python", *words])
    assert launch.program() == program
