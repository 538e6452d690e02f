"""Which plans a trainer follows: those of a record first, then those that it measures."""

import time
from concurrent.futures import Future

from loopwright.loop.clock import Stopwatch
from loopwright.plans.plan import Plan, Terms
from loopwright.plans.plan_history import PlanHistory
from loopwright.plans.selector import PlanSelector, StepKind
from loopwright.plans.tuner import Budget, Candidate, Timing

GRAPH, FUSED = Plan(), Plan("xla", "fused", rewrites=())
HISTORY = PlanHistory().changed(0, GRAPH).changed(10, FUSED, is_trial=True).changed(25, GRAPH)


class Compiler:
    """Compiles nothing, and remembers what it was asked for."""

    def __init__(self) -> None:
        self.prepared = list[Plan]()

    def can_prepare(self) -> bool:
        return True

    def prepare(self, plan: Plan) -> "Future[None]":
        self.prepared.append(plan)
        return Future()


def begin(selector: PlanSelector, *, is_shared: bool = False) -> Compiler:
    kind = StepKind(
        Terms("none"),
        is_shared,
        candidates=lambda: [Candidate(FUSED, 0.5)],
        identity=lambda: "kind",
        digest=lambda: "digest",
    )
    compiler = Compiler()
    selector.begin(kind, compiler, Stopwatch(time.perf_counter), Budget(steps=10**6))
    return compiler


def test_plans_that_were_asked_for_never_run_beyond_their_change():
    selector = PlanSelector(HISTORY)
    begin(selector)
    asked = [selector.next(step, steps) for step, steps in ((0, 100), (10, 4), (14, 100), (25, 9))]
    assert asked == [(GRAPH, 10), (FUSED, 4), (FUSED, 11), (GRAPH, 9)]
    assert selector.history.changes == HISTORY.changes


def test_a_resumed_run_repeats_its_record_and_measures_only_after_it():
    selector, written = PlanSelector(None), list[PlanHistory]()
    selector.log.write_to(written.append)
    selector.resume(HISTORY, 5, is_continued=True)
    compiler = begin(selector)
    assert selector.next(5, 100) == (GRAPH, 5)
    selector.ran(5, Timing(GRAPH, 5, 9.0, 0.0))
    assert selector.next(10, 100) == (FUSED, 15)
    selector.ran(10, Timing(FUSED, 15, 9.0, 0.0))
    assert [change.is_trial for change in written[-1].changes] == [False, True]
    assert selector.plan_in_force == GRAPH
    assert selector.next(25, 5) == (GRAPH, 5)
    assert not compiler.prepared, "what was repeated was not measured"
    selector.ran(25, Timing(GRAPH, 5, 9.0, 0.0))
    selector.next(30, 5)
    assert compiler.prepared == [FUSED]


def test_workers_repeat_their_record_and_then_share_the_first_plan():
    selector = PlanSelector(None)
    selector.resume(PlanHistory().changed(0, FUSED).changed(10, FUSED), 0, is_continued=True)
    compiler = begin(selector, is_shared=True)
    assert selector.next(0, 100) == (GRAPH, 100)
    selector.resume(HISTORY, 5, is_continued=True)
    begin(selector, is_shared=True)
    asked = [selector.next(step, 100) for step in (5, 10, 25)]
    assert asked == [(GRAPH, 5), (FUSED, 15), (GRAPH, 100)]
    assert not compiler.prepared


def test_a_plan_that_is_held_runs_every_step_from_then_on():
    selector = PlanSelector(None)
    compiler = begin(selector)
    selector.next(0, 5)
    selector.ran(0, Timing(GRAPH, 5, 9.0, 0.0))
    selector.hold(FUSED)
    assert selector.next(5, 100) == (FUSED, 100)
    assert selector.plan_after(900) == FUSED
    assert not compiler.prepared
