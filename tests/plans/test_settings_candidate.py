"""Which process settings are worth a trial."""

from dataclasses import replace

import pytest

from loopwright.plans.plan import WORDS, Plan
from loopwright.plans.settings import Settings
from loopwright.plans.settings_candidate import Candidate, StepFacts, candidate, parsed, word

SHORT = StepFacts(
    plan=Plan("xla", "fused", "resident"),
    step_seconds=6e-5,
    has_convolutions=False,
    has_products=True,
    onednn_is_open=True,
    threads_are_open=True,
)
LONG = replace(SHORT, step_seconds=0.7)
CONVOLUTIONS = replace(SHORT, step_seconds=0.02, has_convolutions=True, plan=WORDS["graph"])


def test_short_steps_may_be_faster_on_one_thread_by_the_plan_they_have():
    assert candidate(Settings(), SHORT) == Candidate(Settings(intra_op_threads=1), "fused")


@pytest.mark.parametrize("step", [LONG, CONVOLUTIONS, replace(CONVOLUTIONS, step_seconds=1e-4)])
def test_convolutions_and_large_products_may_be_faster_by_onednn(step: StepFacts):
    assert candidate(Settings(), step) == Candidate(Settings(onednn=True), "graph")


@pytest.mark.parametrize(
    "step",
    [
        replace(SHORT, threads_are_open=False),
        replace(SHORT, step_seconds=0.02),
        replace(LONG, onednn_is_open=False),
        replace(LONG, has_products=False),
        replace(CONVOLUTIONS, onednn_is_open=False),
    ],
)
def test_nothing_is_tried_where_nothing_may_help(step: StepFacts):
    assert candidate(Settings(), step) is None


def test_what_the_user_has_set_stays_in_a_candidate():
    now = Settings(xla_flags=("--a=1",), inter_op_threads=2)
    found = candidate(now, SHORT)
    assert found is not None
    assert found.settings == replace(now, intra_op_threads=1)


def test_a_candidate_survives_json_and_garbage_is_refused():
    found = Candidate(Settings(intra_op_threads=1), "fused")
    assert parsed(found.content()) == found
    assert parsed(None) is None
    with pytest.raises(ValueError, match="unknown plan 'warp'"):
        parsed(found.content() | {"plan": "warp"})


@pytest.mark.parametrize("name", WORDS)
def test_every_plan_has_a_word(name: str):
    assert word(WORDS[name]) == name
