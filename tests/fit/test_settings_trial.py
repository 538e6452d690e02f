"""A trial of settings with real child processes: they may do what they like to the run."""

import os
import signal
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from loopwright.events import Trained
from loopwright.fit.settings_trial import Child, SettingsTrial
from loopwright.loop.signals import Signals
from loopwright.plans.launch import TRIAL

ANSWERS = """
import json, os, sys
from loopwright.plans import launch
told = launch.trial()
def answer(**content):
    os.write(told.answered, json.dumps(content).encode() + b"\\n")
asked = os.fdopen(told.asked)
"""


@contextmanager
def trial(program: str, signals: Signals | None = None) -> Iterator[SettingsTrial]:
    code = ANSWERS + textwrap.dedent(program)
    made = SettingsTrial(
        Child([sys.executable, "-c", code], os.environ), signals or Signals(), time.monotonic
    )
    try:
        yield made
    finally:
        made.end()


def steps(count: int, seconds: float) -> Trained:
    return Trained(0, 0, 0, steps=count, seconds=seconds, metrics={})


def run_until_decided(made: SettingsTrial, *, steps_per_second: int) -> str:
    outcome = "open"
    deadline = time.monotonic() + 60
    while outcome == "open" and time.monotonic() < deadline:
        outcome = made.after(steps(steps_per_second, 1.0))
    return outcome


TRAINS = """
answer(identity="i")
for line in asked:
    answer(steps=70 * float(line), seconds=float(line))
"""


def test_a_child_that_is_faster_wins():
    with trial(TRAINS) as made:
        assert run_until_decided(made, steps_per_second=48) == "won"
        assert made.duel.challenger == [70.0] * 3
        assert made.duel.own == [48.0] * 3


def test_a_child_that_is_slower_loses():
    with trial(TRAINS) as made:
        assert run_until_decided(made, steps_per_second=200) == "lost"


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("os.kill(os.getpid(), 4)", "ended by SIGILL: no output"),
        ("answer(identity='i'); asked.readline(); os.kill(os.getpid(), 9)", "ended by SIGKILL"),
        ("print('no memory'); sys.exit(3)", "ended with exit code 3: no memory"),
        ("answer(failure='MemoryError: 8 GB')", "MemoryError: 8 GB"),
        ("answer(identity='i'); asked.readline(); answer(steps=3)", "seconds"),
        ("os.write(told.answered, b'garbage\\n')", "Expecting value"),
    ],
)
def test_a_child_that_fails_harms_nothing(program: str, why: str):
    with trial(program) as made:
        assert run_until_decided(made, steps_per_second=48) == "failed"
        assert why in made.failure


def test_a_signal_to_the_run_ends_the_turn_of_a_child():
    signals = Signals()
    parent = os.getpid()
    previous = signal.signal(signal.SIGUSR1, signals.note)
    try:
        silent = f"answer(identity='i'); asked.readline(); os.kill({parent}, 10); asked.readline()"
        with trial(silent, signals) as made:
            while not signals.received():
                assert made.after(steps(48, 1.0)) == "open"
    finally:
        signal.signal(signal.SIGUSR1, previous)


def test_a_child_ends_when_its_parent_is_gone():
    with trial(f"answer(identity='i'){TRAINS}") as made:
        run_until_decided(made, steps_per_second=200)
        process = made._child._process
        os.close(made._child._ask)
        assert process.wait(timeout=60) == 0
        made._child._ask = os.open(os.devnull, os.O_WRONLY)


def test_a_child_is_told_by_its_environment_alone():
    assert TRIAL not in os.environ
