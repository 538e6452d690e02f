"""Wrong programs: each is named, on every plan with the same text; without the mistake, silent."""

import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from tests.programs.wrong import datasets, learning, losses_and_metrics, run_time, steps
from tests.programs.wrong.wrong_program import Wrong, plans_of, programs_of

import loopwright as lw

PROGRAMS = programs_of(datasets, learning, losses_and_metrics, run_time, steps)
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


@pytest.mark.parametrize(("name", "plan"), TRIALS)
def test_a_wrong_program_is_named_in_one_message(name: str, plan: str):
    build = PROGRAMS[name]
    error, caught = outcome(build, plan)
    program = build(True)

    if program.id is None:
        assert error is not None, f"no error; warnings: {caught}"
        assert not caught
        said = str(error)
    else:
        assert error is None
        (warning,) = caught
        assert isinstance(warning, lw.StepWarning)
        assert warning.id == program.id
        said, silence = str(warning).rsplit("\n", 1)
        assert silence == f'  silence: Trainer(..., silence=["{program.id}"]), if this is intended'
    assert said == program.text(build)


@pytest.mark.parametrize("name", PROGRAMS)
def test_without_its_mistake_it_trains_in_silence(name: str):
    train(PROGRAMS[name], "graph", mistake=False)
