"""The sentence at the end of a run: the slow part, its share, why, and what to do."""

from collections.abc import Callable

import pytest

from loopwright.loop import verdict
from loopwright.loop.clock import PARTS
from loopwright.loop.schedule import Every


def said(**seconds: float) -> str:
    named = {name.replace("_", " "): value for name, value in seconds.items()}

    def cause(part: str) -> Callable[[], str]:
        return lambda: "" if part == "step" else f": {part}"

    causes = {part: cause(part) for part in PARTS}
    return verdict.verdict(dict.fromkeys(PARTS, 0.0) | named, causes)


def test_every_part_above_a_third_is_said_in_a_long_and_in_a_short_run():
    for part in set(PARTS) - {"step"}:
        for scale in (1e-3, 1e6):
            told = said(**{part.replace(" ", "_"): 34.0 * scale, "step": 66.0 * scale})
            assert told.endswith(f" took 34% of the time: {part}."), told


def test_the_slowest_part_comes_first():
    told = said(validation=4.0, data_wait=6.0)
    assert told == (
        "Waiting for data took 60% of the time: data wait. "
        "Validation took 40% of the time: validation."
    )


@pytest.mark.parametrize(
    "seconds",
    [
        {"step": 10.0},
        {"step": 9.0, "data_wait": 1.0},
        {"step": 6.7, "data_wait": 3.3},
        {"step": 4.0, "data_wait": 3.0, "validation": 3.0},
        {},
    ],
)
def test_nothing_is_said_where_no_part_but_the_step_takes_a_third(seconds: dict[str, float]):
    assert said(**seconds) == ""


def test_the_interval_to_validate_by_is_longer_than_the_one_that_was_asked_for():
    spent = {"validation": 6.0, "step": 4.0, "data wait": 0.0}
    told = {
        asked: verdict.slow_validation(spent, asked, waits=False)
        for asked in (Every(epochs=2), Every(steps=10))
    }
    assert 'validate_every="10 epochs"' in told[Every(epochs=2)]
    assert 'validate_every="1 epoch"' in told[Every(steps=10)]


def test_saving_less_often_is_not_advised_to_a_run_that_saved_once():
    assert "save_every" not in verdict.slow_saving(Every(steps=5), checkpoints=1)


def test_checkpoints_of_the_best_validations_are_told_from_those_that_were_due():
    told = verdict.slow_saving(Every(seconds=600.0), checkpoints=40)
    assert "keep=[lw.KeepLatest(3)]" in told
    assert "save_every" not in told


def test_a_callback_that_is_called_after_every_step_is_named():
    assert "Plotter has a batch hook" in verdict.slow_python("Plotter")
    assert "epochs longer" in verdict.slow_python("")
