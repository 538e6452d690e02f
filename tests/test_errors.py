"""Errors: the four parts of a message, and what each class can be caught as."""

import warnings

import pytest

from loopwright import errors
from loopwright.errors import message

RAISED = [
    (errors.DataError, ValueError),
    (errors.StepError, ValueError),
    (errors.ConfigurationError, ValueError),
    (errors.MissingStepError, NotImplementedError),
    (errors.CheckpointError, Exception),
    (errors.NotFiniteError, FloatingPointError),
    (errors.WorkerLostError, SystemExit),
]
WITH: dict[type[Exception], dict[str, int]] = {errors.NotFiniteError: {"step": 3}}
WARNED = [errors.StepWarning, errors.RetraceWarning]


def classes(root: type) -> set[type]:
    return {
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, root) and value is not root
    }


def test_a_message_says_what_happened_what_was_expected_what_came_and_what_to_do():
    text = message("No data.", expected="arrays", received="None", do="pass x")
    assert text == "No data.\n  expected: arrays\n  received: None\n  do: pass x"


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ({}, "What.\n  do: this"),
        ({"expected": "a"}, "What.\n  expected: a\n  do: this"),
        ({"received": "b"}, "What.\n  received: b\n  do: this"),
    ],
)
def test_a_part_that_says_nothing_leaves_no_line(parts: dict[str, str], text: str):
    assert message("What.", **parts, do="this") == text


def test_a_message_without_what_to_do_cannot_be_written():
    with pytest.raises(TypeError, match="do"):
        message("What.")  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize(("error", "builtin"), RAISED)
def test_an_error_is_caught_as_ours_and_as_the_builtin(
    error: type[Exception], builtin: type[Exception]
):
    for caught in (errors.LoopwrightError, builtin):
        with pytest.raises(caught, match=r"^it says this$"):
            raise error("it says this", **WITH.get(error, {}))


@pytest.mark.parametrize("warning", WARNED)
def test_all_warnings_can_be_silenced_by_their_root(warning: type[Warning]):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", errors.LoopwrightWarning)
        warnings.warn("not heard", warning, stacklevel=1)


def test_every_error_and_warning_of_the_module_is_tried_here():
    assert classes(errors.LoopwrightError) == {error for error, _ in RAISED}
    assert classes(errors.LoopwrightWarning) == set(WARNED)
    assert issubclass(errors.LoopwrightWarning, UserWarning)
