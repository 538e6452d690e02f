"""Every guard has its row in `docs/debugging.md` and its test; every warning id has both."""

import ast
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from tests.guards.changed_step import Regression
from tests.guards.regression_step import fit

import loopwright as lw
from docs import warning_table
from loopwright import step_warnings
from loopwright.engine.trace import GUARDS, TRAIN_GUARDS
from loopwright.guards import arrays

TESTS = Path(__file__).parents[1]
PAGE = warning_table.PAGE.read_text()
ERRORS = [
    "compares labels and predictions for equality",
    "compares one label with",
    "a single class",
    "does not read its batch",
    "does not update the metrics that the model was compiled with",
    "holds NaN or infinity",
    "is not a loss but a number of updates",
    "takes class numbers",
    "takes one-hot labels",
    "takes strings for numbers",
]
"""Words of the errors of guards, as the page quotes them."""


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


@pytest.mark.parametrize("words", ERRORS)
def test_every_error_of_a_guard_has_its_row_and_its_test(words: str):
    assert words in PAGE
    assert any(words in text for text in TESTED)


def test_a_guard_is_listed_once():
    guards = [*GUARDS, *TRAIN_GUARDS, *arrays.GUARDS]
    assert len(set(guards)) == len(guards)


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
