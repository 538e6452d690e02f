"""Ctrl-C while `fit` builds and traces: always `KeyboardInterrupt`, and the next `fit` works."""

import contextlib
import json
import os
import signal
import sys
from typing import Any

import pytest
from tests.fit import interrupted_early
from tests.processes import run_command

from loopwright.loop import signals


def outcomes(moments: int) -> dict[str, dict[str, Any]]:
    command = [sys.executable, "-m", "tests.fit.interrupted_early", str(moments)]
    done = run_command(command)
    return {line.pop("place"): line for line in map(json.loads, done.stdout.splitlines())}


def require_next_fit(found: dict[str, dict[str, Any]]) -> None:
    whole = found.pop("none")
    assert whole["raised"] == "nothing"
    for place, one in found.items():
        assert one["pressed"], place
        told = {key: one[key] for key in ("raised", "after", "losses", "variables", "handler")}
        assert told == {
            "raised": "KeyboardInterrupt",
            "after": "fits",
            "losses": whole["losses"],
            "variables": 4,
            "handler": True,
        }, place


@pytest.mark.usefixtures("_ctrl_c_raises")
def test_ctrl_c_inside_the_build_of_an_optimizer_is_an_interrupt_and_the_next_fit_works():
    found = interrupted_early.outcome(interrupted_early.PLACES["slots"])
    told = {key: found[key] for key in ("pressed", "raised", "after", "handler")}
    assert told == {"pressed": 1, "raised": "KeyboardInterrupt", "after": "fits", "handler": True}


def test_ctrl_c_at_any_moment_of_fit_is_an_interrupt_and_the_next_fit_works():
    require_next_fit(outcomes(moments=40))


@pytest.fixture
def _ctrl_c_raises() -> Any:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def fail(words: str, presses: int) -> None:
    """Raise an error in which TensorFlow hides the interrupts before it."""
    for _ in range(presses):
        with contextlib.suppress(KeyboardInterrupt):
            press()
    raise ValueError(words)


@pytest.mark.usefixtures("_ctrl_c_raises")
def test_an_error_after_ctrl_c_is_an_interrupt():
    with pytest.raises(KeyboardInterrupt), signals.deferred():
        fail("made of the interrupt", presses=1)
    with pytest.raises(ValueError, match="its own"), signals.deferred():
        fail("its own", presses=0)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("watch", [signals.watched, lambda: signals.interrupts(signals.Signals())])
@pytest.mark.usefixtures("_ctrl_c_raises")
def test_an_error_that_was_made_of_a_second_ctrl_c_is_an_interrupt(watch: Any):
    with pytest.raises(KeyboardInterrupt), watch():
        fail("made of the interrupt", presses=2)
    with pytest.raises(ValueError, match="its own"), watch():
        fail("its own", presses=1)


@pytest.mark.usefixtures("_ctrl_c_raises")
def test_a_second_ctrl_c_leaves_at_once_except_from_what_is_short():
    reached = list[str]()

    def build() -> None:
        press()
        reached.append("after the first")
        with signals.blocked():
            press()
            reached.append("inside")
        reached.append("never")

    with pytest.raises(KeyboardInterrupt), signals.deferred():
        build()
    assert reached == ["after the first", "inside"]
