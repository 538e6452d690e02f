"""Which plan ran which steps, as a value and as a file."""

import json
from pathlib import Path

import pytest

import loopwright as lw
from loopwright.plans.record import (
    PlanChange,
    PlanChoice,
    PlanHistory,
    load,
    parsed,
)

GRAPH, FUSED = lw.Plan(), lw.Plan("xla", "fused", "resident")


def history() -> PlanHistory:
    return PlanHistory().changed(0, GRAPH).changed(10, FUSED).changed(25, GRAPH)


def test_a_plan_on_trial_is_not_in_force():
    plans = PlanHistory().changed(0, GRAPH).changed(10, FUSED, is_trial=True)
    assert plans.in_force == GRAPH
    assert (plans.is_trial_at(9), plans.is_trial_at(10)) == (False, True)
    won = plans.changed(20, FUSED)
    assert won.in_force == FUSED
    assert won.until(20) == plans
    assert plans.changed(15, FUSED, is_trial=True) == plans
    assert parsed(won.content()) == won


def test_the_same_plan_again_is_no_change():
    assert PlanHistory().changed(0, GRAPH).changed(10, GRAPH).changes == (PlanChange(0, GRAPH),)


def test_a_plan_that_ran_no_step_leaves_nothing_behind():
    plans = PlanHistory().changed(0, GRAPH).changed(10, FUSED).changed(10, GRAPH)
    assert plans.changes == (PlanChange(0, GRAPH),)


def test_it_knows_the_plan_of_every_step_and_when_it_changes():
    assert [history().at(step) for step in (0, 9, 10, 24, 25, 900)] == [
        (GRAPH, 10),
        (GRAPH, 1),
        (FUSED, 15),
        (FUSED, 1),
        (GRAPH, None),
        (GRAPH, None),
    ]


def test_steps_before_the_first_change_run_by_the_first_plan():
    assert PlanHistory().changed(50, FUSED).at(7) == (FUSED, None)


def test_the_history_until_a_step_is_that_of_the_steps_before_it():
    assert [len(history().until(step).changes) for step in (0, 1, 10, 11, 99)] == [0, 1, 1, 2, 3]


def test_a_file_gives_back_the_same_history(tmp_path: Path):
    kept = history().noted("loop inside XLA: 9 steps/s against 3 steps/s of graph step")
    kept = kept.chosen("a model on a machine", PlanChoice(FUSED, "9 steps/s"))
    kept.save(tmp_path / "plan.json")
    assert load(tmp_path / "plan.json") == kept


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "JSONDecodeError"),
        ("[]", "the file: expected an object"),
        ('{"format": 2}', "format: expected 1, received 2"),
        ('{"format": 1, "changes": [], "notes": [], "choices": {}}', "no step was run yet"),
        (
            '{"format": 1, "changes": [], "notes": [], "choices": {}, "x": 1}',
            "the file: unknown field 'x'",
        ),
        (
            json.dumps({"format": 1, "changes": [{"step": 0, "plan": {"step": "warp"}}]}),
            "changes.0.plan.step: expected 'eager', 'graph' or 'xla', received 'warp'",
        ),
    ],
)
def test_a_file_that_is_no_history_is_refused_in_words(tmp_path: Path, content: str, reason: str):
    path = tmp_path / "plan.json"
    path.write_text(content)
    with pytest.raises(lw.ConfigurationError, match="cannot be read") as refusal:
        load(path)
    assert reason in str(refusal.value)
    assert str(path) in str(refusal.value)


def test_a_missing_file_is_said_to_be_missing(tmp_path: Path):
    with pytest.raises(lw.ConfigurationError, match="the file does not exist"):
        load(tmp_path / "nowhere.json")


# --- rewrites -------------------------------------------------------------------------------------


def test_a_plan_recorded_without_rewrites_had_none():
    kept = PlanHistory().changed(0, GRAPH).changed(4, lw.Plan("xla", "fused", rewrites=()))
    content = kept.chosen("a step", PlanChoice(lw.Plan("xla", rewrites=()), "fast")).content()
    for recorded in (*content["changes"], *content["choices"].values()):
        assert recorded["plan"].pop("rewrites") == ()
    found = parsed(json.loads(json.dumps(content)))
    assert found.changes == kept.changes
    assert found.choices["a step"].plan.rewrites == ()


def test_rewrites_are_recorded_and_those_left_open_stay_open():
    settled = lw.Plan("xla", "fused", rewrites=("threefry",))
    for plan in (settled, lw.Plan("xla", "fused")):
        kept = PlanHistory().changed(0, plan)
        assert parsed(json.loads(kept.text())) == kept


def test_a_plan_asked_for_takes_the_rewrites_of_the_run_it_goes_on_with():
    asked = PlanHistory().changed(0, lw.Plan("xla", "fused"))
    old = PlanHistory().changed(0, GRAPH).changed(10, lw.Plan("xla", "fused", rewrites=()))
    assert asked.with_rewrites_of(old).changes[0].plan.rewrites == ()
    assert asked.with_rewrites_of(PlanHistory().changed(0, GRAPH)) == asked
    given = PlanHistory().changed(0, lw.Plan("xla", "fused", rewrites=("threefry",)))
    assert given.with_rewrites_of(old) == given
