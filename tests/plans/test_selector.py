"""Which plans a trainer follows: those of a record first, then those that it measures."""

import time
from concurrent.futures import Future

from loopwright.loop.clock import Stopwatch
from loopwright.plans.evidence import Budget
from loopwright.plans.plan import Plan, Terms
from loopwright.plans.record import PlanHistory
from loopwright.plans.selector import PlanSelector, StepKind
from loopwright.plans.tuner import Candidate, Timing, Tuner

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


def begin(selector: PlanSelector, *, is_shared: bool = False) -> tuple[Tuner, Compiler]:
    kind = StepKind(
        Terms("none"),
        is_shared,
        candidates=lambda: [Candidate(FUSED, 0.5)],
        identity=lambda: "kind",
        digest=lambda: "digest",
    )
    compiler = Compiler()
    watch = Stopwatch(time.perf_counter)
    return selector.begin(kind, compiler, watch, Budget(steps=10**6)), compiler


def test_plans_that_were_asked_for_never_run_beyond_their_change():
    selector = PlanSelector(HISTORY)
    tuner, _ = begin(selector)
    asked = [tuner.next(step, steps) for step, steps in ((0, 100), (10, 4), (14, 100), (25, 9))]
    assert asked == [(GRAPH, 10), (FUSED, 4), (FUSED, 11), (GRAPH, 9)]
    assert selector.log.history.changes == HISTORY.changes


def test_a_resumed_run_repeats_its_record_and_measures_only_after_it():
    selector, written = PlanSelector(None), list[PlanHistory]()
    selector.log.write_to(written.append)
    selector.resume(HISTORY, 5, is_continued=True)
    tuner, compiler = begin(selector)
    assert tuner.next(5, 100) == (GRAPH, 5)
    tuner.ran(5, Timing(GRAPH, 5, 9.0, 0.0))
    assert tuner.next(10, 100) == (FUSED, 15)
    tuner.ran(10, Timing(FUSED, 15, 9.0, 0.0))
    assert [change.is_trial for change in written[-1].changes] == [False, True]
    assert selector.plan_in_force == GRAPH
    assert tuner.next(25, 5) == (GRAPH, 5)
    assert not compiler.prepared, "what was repeated was not measured"
    tuner.ran(25, Timing(GRAPH, 5, 9.0, 0.0))
    tuner.next(30, 5)
    assert compiler.prepared == [FUSED]


def test_workers_repeat_their_record_and_then_share_the_first_plan():
    selector = PlanSelector(None)
    selector.resume(PlanHistory().changed(0, FUSED).changed(10, FUSED), 0, is_continued=True)
    tuner, compiler = begin(selector, is_shared=True)
    assert tuner.next(0, 100) == (GRAPH, 100)
    selector.resume(HISTORY, 5, is_continued=True)
    tuner, compiler = begin(selector, is_shared=True)
    asked = [tuner.next(step, 100) for step in (5, 10, 25)]
    assert asked == [(GRAPH, 5), (FUSED, 15), (GRAPH, 100)]
    assert not compiler.prepared


def test_a_plan_that_is_held_runs_every_step_from_then_on():
    selector = PlanSelector(None)
    tuner, compiler = begin(selector)
    tuner.next(0, 5)
    tuner.ran(0, Timing(GRAPH, 5, 9.0, 0.0))
    tuner.hold(FUSED)
    assert tuner.next(5, 100) == (FUSED, 100)
    assert tuner.plan_after(900) == FUSED
    assert not compiler.prepared
