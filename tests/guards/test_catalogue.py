"""Every guard has its row in `docs/debugging.md` and its test; every warning id has both."""

import ast
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from tests.guards.changed_step import Regression, fit

import loopwright as lw
from docs import warning_table
from loopwright import step_warnings
from loopwright.engine.trace import FAILED_TRACE_GUARDS, GUARDS
from loopwright.guards import arrays
from loopwright.guards.guard import Guard

TESTS = Path(__file__).parents[1]
PAGE = warning_table.PAGE.read_text()
ALL: dict[str, Guard] = {
    f"{guard.look.__module__.rpartition('.')[2]}.{guard.look.__name__}": guard
    for guard in [*GUARDS, *FAILED_TRACE_GUARDS, *arrays.GUARDS]
}


def strings_in_tests() -> list[str]:
    """What wrong programs are told, and every string of the tests of guards but of this file."""
    files = TESTS.glob("guards/test_*.py")
    return [
        (TESTS / "programs/wrong/messages.txt").read_text(),
        *(
            node.value
            for file in files
            if file != Path(__file__)
            for node in ast.walk(ast.parse(file.read_text()))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ),
    ]


TESTED = strings_in_tests()


def test_the_table_of_warning_ids_is_made_from_what_modules_declare():
    assert warning_table.rewritten(PAGE) == PAGE, "run `python -m docs.warning_table`"


@pytest.mark.parametrize("id", step_warnings.documented())
def test_every_warning_id_says_what_it_warns_of_and_has_a_test(id: str):
    assert step_warnings.documented()[id]
    assert any(id in text for text in TESTED)


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


# --- warnings by id -----------------------------------------------------------------------------


@pytest.mark.parametrize("plan", ["graph", "eager"])
def test_a_warning_carries_its_id_and_is_silenced_by_it(plan: str):
    class Unused(Regression):
        def __init__(self):
            super().__init__()
            self.unused = tf.Variable(1.0)

        def train_step(self, batch):
            x, y = batch
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(y - self.model(x, training=True)))
            variables = [*self.model.trainable_variables, self.unused]
            self.minimize(loss, variables, self.optimizer, tape)
            return {"loss": loss}

    with pytest.warns(lw.StepWarning, match="have no gradient") as caught:
        fit(Unused(), plan=plan)
    assert {warning.message.id for warning in caught} == {"no-gradient"}  # pyright: ignore
    fit(Unused(), plan=plan, silence=["no-gradient"])
    with pytest.warns(lw.StepWarning, match="have no gradient"):
        fit(Unused(), plan=plan, silence=["broadcast"])


@pytest.mark.parametrize("given", [["no-gradients"], "no-gradient"])
def test_an_unknown_warning_is_refused_with_the_known_ones(given: Any):
    with pytest.raises(lw.ConfigurationError, match="silence") as caught:
        lw.Trainer(Regression(), silence=given)
    assert "baked-in-array, broadcast" in str(caught.value)
