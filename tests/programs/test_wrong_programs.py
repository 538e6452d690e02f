"""Wrong programs: each is named, on every plan with the same text; without the mistake, silent."""

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from tests.programs.wrong import datasets, learning, losses_and_metrics, run_time, steps
from tests.programs.wrong.wrong_program import Wrong, marked_line, plans_of, programs_of

import loopwright as lw

PROGRAMS = programs_of(datasets, learning, losses_and_metrics, run_time, steps)
MESSAGES = Path(__file__).parent / "wrong" / "messages.txt"
TRIALS = [(name, plan) for name, build in PROGRAMS.items() for plan in plans_of(build)]


def train(build: Callable[[bool], Wrong], plan: str, *, mistake: bool) -> Wrong:
    keras.utils.set_random_seed(1)
    program = build(mistake)
    arrays = {"batch_size": 8} if isinstance(program.x, np.ndarray | dict | list) else {}
    fixed = {"verbose": 0} if "until" in program.options else {"epochs": 2, "verbose": 0}
    arguments: dict[str, Any] = {"x": program.x, "y": program.y, **arrays, **fixed}
    lw.Trainer(program.trained, plan=plan).fit(**{**arguments, **program.options})
    return program


def outcome(
    build: Callable[[bool], Wrong], plan: str
) -> tuple[lw.LoopwrightError | None, list[Any]]:
    """The error that ended the training, and every other warning once."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        error = None
        try:
            train(build, plan, mistake=True)
        except lw.LoopwrightError as raised:
            error = raised
    return error, list({str(warning.message): warning.message for warning in caught}.values())


def messages(name: str, plan: str) -> str:
    """What a person reads: one error, or one warning; `{line}` is the line marked `# here`."""
    build = PROGRAMS[name]
    error, caught = outcome(build, plan)
    said = [*([] if error is None else [error]), *caught]
    text = "\n".join(f"{type(message).__name__}: {message}" for message in said)
    return re.sub(rf"(line |py:){marked_line(build)}\b", r"\1{line}", text)


@pytest.mark.parametrize(("name", "plan"), TRIALS)
def test_a_wrong_program_is_named_in_one_message(name: str, plan: str):
    expected = dict(re.findall(r"^## (\S+)\n(.*?)\n(?=\n|\Z)", MESSAGES.read_text(), re.S | re.M))
    assert messages(name, plan) == expected[name], "If this is meant: python -m tests.net.golden"


@pytest.mark.parametrize("name", PROGRAMS)
def test_without_its_mistake_it_trains_in_silence(name: str):
    train(PROGRAMS[name], "graph", mistake=False)
