"""What a plan may be, what is left open in it, and how it is printed."""

from typing import Any

import pytest

import loopwright as lw
from loopwright.plans.plan import Rewrite, Terms, nearest, objection, settled

HERE = Terms("memory", rewrites=("threefry",))
ELSEWHERE = Terms("memory")


def test_open_rewrites_are_those_of_the_machine_and_given_ones_stay():
    assert settled(lw.Plan("xla", "fused"), HERE).rewrites == ("threefry",)
    assert settled(lw.Plan("xla", "fused"), ELSEWHERE).rewrites == ()
    assert settled(lw.Plan("xla", "fused", rewrites=()), HERE).rewrites == ()


def test_a_step_without_xla_has_no_rewrites_so_equal_plans_compare_equal():
    assert settled(lw.Plan("graph", "graph"), HERE) == lw.Plan("graph", "graph", "resident")
    assert lw.Plan("eager", "python").rewrites == ()


def test_a_rewrite_that_does_not_apply_on_this_machine_is_objected_to():
    plan = lw.Plan("xla", "fused", rewrites=("threefry",))
    assert objection(plan, HERE) is None
    found = objection(plan, ELSEWHERE)
    assert found is not None
    assert "those that apply on this machine are ()" in found[0]
    assert settled(nearest(plan, ELSEWHERE), ELSEWHERE).rewrites == ()


def test_the_nearest_plan_keeps_its_rewrites():
    python = Terms("python", rewrites=("threefry",))
    assert nearest(lw.Plan("xla", "fused", rewrites=()), python).rewrites == ()
    stream = lw.Plan("xla", "fused", "stream", rewrites=())
    assert nearest(stream, HERE) == lw.Plan("xla", "fused", rewrites=())


@pytest.mark.parametrize(
    ("step", "rewrites"),
    [
        ("xla", ("warp",)),
        ("xla", ("threefry", "threefry")),
        ("xla", ["threefry"]),
        ("xla", "threefry"),
        ("xla", 3),
        ("graph", ("threefry",)),
    ],
)
def test_unknown_rewrites_are_refused(step: Any, rewrites: Any):
    with pytest.raises(lw.ConfigurationError, match="Unknown plan") as refusal:
        lw.Plan(step, "graph", rewrites=rewrites)
    assert f"rewrites={rewrites!r}" in str(refusal.value)


def test_rewrites_are_printed_where_they_are_not_left_open():
    assert repr(lw.Plan("xla", "fused")) == "Plan(step='xla', loop='fused', feed=None)"
    assert repr(lw.Plan()) == "Plan(step='graph', loop='graph', feed=None)"
    given: list[tuple[Rewrite, ...]] = [(), ("threefry",)]
    for rewrites in given:
        plan = lw.Plan("xla", "fused", "chunk", rewrites)
        assert eval(repr(plan), {"Plan": lw.Plan}) == plan
        assert f"rewrites={rewrites!r}" in repr(plan)
    assert str(lw.Plan("xla", "fused")) == "'fused'"


def test_records_made_before_there_were_rewrites_name_the_same_kinds_of_step():
    """The identity of a kind of step is a digest of this text, among others."""
    assert repr(HERE) == "Terms(batches='memory', plain=True, replicas=1)"
