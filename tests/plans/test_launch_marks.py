"""Marks of processes that Loopwright launched."""

import os
import sys
import types
from dataclasses import replace

import pytest

from loopwright.plans import launch
from loopwright.plans.launch import Launch
from loopwright.plans.settings import ONEDNN, THREADS, Settings

INTRA = THREADS["intra_op_threads"]
ON = Settings(onednn=True)


def test_a_launched_process_may_replace_itself_once():
    first = launch.marked({}, ON, key="k")
    assert launch.may_restart(first)
    assert launch.own(first) == Launch(os.getpid(), "k", 0, (ONEDNN,))
    again = launch.marked(first, ON, key="k", restarts=1)
    assert not launch.may_restart(again)


def test_a_launched_process_may_follow_a_record_more_than_once_but_not_for_ever():
    marked = [launch.marked({}, ON, restarts=restarts) for restarts in range(6)]
    found = [launch.may_follow(Settings(), ON, each) for each in marked]
    assert found == [True] * 4 + [False] * 2
    assert not launch.may_follow(Settings(), ON, {})


def test_a_process_follows_a_record_only_in_what_the_user_has_not_set():
    by_hand = launch.marked({ONEDNN: "1"}, ON)
    assert not launch.may_follow(Settings(), ON, by_hand)
    assert launch.may_follow(replace(ON, intra_op_threads=1), ON, by_hand)
    threads = launch.marked({INTRA: "2"}, replace(ON, intra_op_threads=1))
    assert (threads[ONEDNN], threads[INTRA]) == ("1", "2")
    assert not launch.may_follow(Settings(intra_op_threads=1), Settings(), threads)


def test_a_child_of_a_launched_process_is_not_launched():
    inherited = launch.marked({}, ON, process=os.getpid() + 1)
    assert launch.own(inherited) is None
    assert not launch.may_restart(inherited)


def test_what_the_user_has_set_wins():
    found = launch.marked({ONEDNN: "0"}, ON)
    assert found[ONEDNN] == "0"
    assert launch.read(found) == Launch(os.getpid())
    assert launch.unmarked(found) == {ONEDNN: "0"}


def test_what_loopwright_has_set_is_not_taken_for_the_users():
    above = launch.marked({"HOME": "/h"}, ON, process=1)
    assert above[ONEDNN] == "1"
    assert launch.unmarked(above) == {"HOME": "/h"}
    assert ONEDNN not in launch.marked(above, None)


@pytest.mark.parametrize("text", ["", "x", "7", "7 x k", "-1 0 k", "\0"])
def test_a_mark_that_is_garbage_marks_nothing(text: str):
    assert launch.read({launch.MARK: text}) is None
    assert not launch.may_restart({launch.MARK: text})


def test_variables_of_this_process_are_replaced_as_a_whole():
    given = {"HOME": "/h", ONEDNN: "1"}
    launch.apply(given, {"HOME": "/h", "X": "1"})
    assert given == {"HOME": "/h", "X": "1"}


def test_only_the_child_of_a_trial_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(launch.TRIAL, f"{os.getppid()} 5 6 graph")
    assert launch.trial() == launch.Trial(5, 6, "graph")
    monkeypatch.setenv(launch.TRIAL, f"{os.getppid() + 1} 5 6 graph")
    assert launch.trial() is None


def test_a_script_whose_packages_import_ipykernel_is_no_session(monkeypatch: pytest.MonkeyPatch):
    """As W&B and others do; a notebook has a prompt."""
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    assert not launch.is_interactive()
    monkeypatch.setattr(sys, "ps1", "In : ", raising=False)
    assert launch.is_interactive()
