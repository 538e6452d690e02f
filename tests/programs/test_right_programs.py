"""Right programs: each trains in silence, and reports what Keras' own `fit` reports.

Warnings are errors here as everywhere (`filterwarnings` in pyproject.toml), so that a guard that
fires on one of them is a failure. `make test` trains a few, `make test-all` every third program,
`make faults` all.
"""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from tests.programs.right import (
    generative,
    keras_guides,
    own_tasks,
    regimes,
    representations,
    sequences,
    tables_and_text,
)
from tests.programs.right.right_program import BATCH, Program, assert_same_as_keras, programs_of
from tests.resume.faults import ALL

import loopwright as lw

PROGRAMS = programs_of(
    keras_guides, generative, representations, regimes, sequences, tables_and_text
)
TASKS = programs_of(own_tasks)


def fresh(build: Callable[[], Program]) -> tuple[Program, dict[str, Any]]:
    """The program, and the arguments of `fit`, the same each time."""
    keras.utils.set_random_seed(1)
    program = build()
    arrays = {"batch_size": BATCH} if isinstance(program.x, np.ndarray | dict | list) else {}
    fixed = {"epochs": 2, "shuffle": False, "verbose": 0}
    return program, {"x": program.x, "y": program.y, **arrays, **fixed, **program.options}


@pytest.mark.parametrize("name", list(PROGRAMS)[:: None if ALL else 3])
def test_a_right_program_trains_in_silence_as_it_does_in_keras(name: str):
    reference, arguments = fresh(PROGRAMS[name])
    reference.trained.jit_compile = False  # the same numbers, without a compile by XLA each
    expected = reference.trained.fit(**arguments).history
    program, arguments = fresh(PROGRAMS[name])

    history = lw.Trainer(program.trained, plan=program.plan).fit(**arguments).history

    assert_same_as_keras(program, history, reference, expected)


@pytest.mark.parametrize("name", TASKS)
def test_a_right_task_trains_in_silence(name: str):
    program, arguments = fresh(TASKS[name])

    history = lw.Trainer(program.trained, plan=program.plan).fit(**arguments).history

    assert history
    assert all(len(values) == 2 and np.isfinite(values).all() for values in history.values())


def test_the_corpus_has_at_least_sixty_programs():
    assert len(PROGRAMS) + len(TASKS) >= 60
