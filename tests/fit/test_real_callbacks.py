"""Callbacks of other packages do the same as in Keras `fit`; the page lists those tested here."""

import importlib.util
import json
import sys
from typing import Any

import pytest
from tests.fit.real_callbacks import CASES
from tests.processes import run_command

from docs import callback_table

MODULES = {"optuna-integration": "optuna_integration"}


def test_the_page_lists_the_tested_callbacks():
    page = callback_table.PAGE.read_text()
    assert callback_table.rewritten(page) == page


def nearly(found: Any) -> Any:
    """Numbers are equal up to rounding: both frameworks add in their own order."""
    if isinstance(found, dict):
        return {name: nearly(value) for name, value in found.items()}
    if isinstance(found, list):
        return [nearly(value) for value in found]
    return pytest.approx(found, rel=1e-4, abs=1e-5) if isinstance(found, float) else found


@pytest.mark.parametrize("name", CASES)
def test_a_callback_does_the_same_as_in_keras_fit(name: str):
    package = CASES[name].package
    if importlib.util.find_spec(MODULES.get(package, package)) is None:
        pytest.skip(f"{package} is not installed")
    command = [sys.executable, "-m", "tests.fit.real_callbacks", name]
    done = run_command(command, env={"TF_CPP_MIN_LOG_LEVEL": "3"})
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["keras"]["output"] or found["keras"]["history"]
    assert found["loopwright"] == nearly(found["keras"])
