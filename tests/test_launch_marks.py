"""Which variables Loopwright gave a process, and which choice they are from."""

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from unittest.mock import patch

import pytest

from loopwright import launch
from loopwright.launch import ONEDNN, Settings

ON = Settings(onednn=True)


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
