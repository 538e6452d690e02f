"""Slow programs: the verdict names the slow part, its share, why, and what to write instead."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest
from tests.programs.slow import slow_programs
from tests.programs.slow.slow_program import Slow

import loopwright as lw

PROGRAMS: dict[str, Callable[[bool], Slow]] = {
    name: function
    for name, function in vars(slow_programs).items()
    if getattr(function, "__annotations__", {}).get("return") is Slow
}


@pytest.fixture(scope="module")
def trainers(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., lw.Trainer]:
    """One trainer for all programs that train the same thing: most have nothing to compile."""
    made: dict[Any, lw.Trainer] = {}

    def trainer_of(make: Callable[[Path], lw.Trainer]) -> lw.Trainer:
        if make not in made:
            keras.utils.set_random_seed(1)
            made[make] = make(tmp_path_factory.mktemp("runs"))
        return made[make]

    return trainer_of


def finished(trainer: lw.Trainer, program: Slow) -> lw.Finished:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lw.RetraceWarning)
        *_, last = trainer.events(program.x, program.y, verbose=0, **program.options)
    assert isinstance(last, lw.Finished)
    return last


def is_usual(is_right: Callable[[], bool]) -> bool:
    """Return whether a run of a second is right; if it is not, whether the next two both are.

    A pause of the machine in one run says nothing of the program; a verdict that is wrong for
    another reason is wrong again.
    """
    return is_right() or (is_right() and is_right())


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_verdict_says_why_a_program_is_slow(name: str, trainers: Any):
    build, said = PROGRAMS[name], list[Any]()

    def is_said(*, slow: bool) -> bool:
        program = build(slow)  # again: a generator is read once
        end = finished(trainers(program.trainer), program)
        said.append((slow, end.advice, end.spent))
        return build(True).is_said_by(end.advice, build)

    assert is_usual(lambda: not is_said(slow=False)), said
    slow = build(True)
    if slow.warms:
        finished(trainers(slow.trainer), slow)
    assert is_usual(lambda: is_said(slow=True)), said


@pytest.mark.parametrize(
    ("runs", "usual"), [("1", True), ("011", True), ("010", False), ("00", False)]
)
def test_one_wrong_run_is_a_pause_and_two_are_not(runs: str, usual: bool):
    assert is_usual(iter([run == "1" for run in runs]).__next__) is usual


def test_nothing_is_said_of_a_program_whose_step_takes_the_time(trainers: Any):
    wide = slow_programs.float64(False)
    trainer = trainers(wide.trainer)
    finished(trainer, wide)
    assert finished(trainer, wide).advice == ""
