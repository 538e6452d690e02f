"""Every guard has its row in `docs/debugging.md` and its test; every warning id has both."""

import ast
from pathlib import Path

import pytest

from docs import warning_table
from loopwright import step_warnings
from loopwright.guards import arrays
from loopwright.guards.guard import Guard
from loopwright.guards.step_guards import FAILED_TRACE_GUARDS, GUARDS

TESTS = Path(__file__).parents[1]
PAGE = warning_table.PAGE.read_text()
ALL: dict[str, Guard] = {
    f"{guard.look.__module__.rpartition('.')[2]}.{guard.look.__name__}": guard
    for guard in [*GUARDS, *FAILED_TRACE_GUARDS, *arrays.GUARDS]
}


def strings_in_tests() -> list[str]:
    """Every string of the wrong programs and of the tests of guards, apart from this file."""
    files = [*TESTS.glob("programs/wrong/*.py"), *TESTS.glob("guards/test_*.py")]
    return [
        node.value
        for file in files
        if file != Path(__file__)
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


TESTED = strings_in_tests()


def test_the_table_of_warning_ids_is_made_from_what_modules_declare():
    assert warning_table.rewritten(PAGE) == PAGE, "run `python -m docs.warning_table`"


@pytest.mark.parametrize("id", step_warnings.documented())
def test_every_warning_id_says_what_it_warns_of_and_has_a_test(id: str):
    assert step_warnings.documented()[id]
    assert id in TESTED


@pytest.mark.parametrize("name", ALL)
def test_every_guard_has_its_rows_and_its_tests(name: str):
    guard = ALL[name]

    assert guard.warns or guard.refuses
    for id in guard.warns:
        assert f"\n| `{id}` |" in PAGE
    for words in guard.refuses:
        assert words in PAGE
        assert any(words in text for text in TESTED)


def test_a_guard_is_listed_once():
    assert len({id(guard) for guard in GUARDS}) == len(GUARDS)
    assert len(ALL) == len(GUARDS) + len(FAILED_TRACE_GUARDS) + len(arrays.GUARDS) - 1
