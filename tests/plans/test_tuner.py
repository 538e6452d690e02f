"""The tuner in a world where every plan has a known speed and time is an argument."""

import itertools
import random
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import pytest

from loopwright.events import PlanChosen
from loopwright.loop.clock import Stopwatch
from loopwright.plans.evidence import Budget, CacheRow, Evidence
from loopwright.plans.plan import Plan
from loopwright.plans.record import PlanChoice, PlanHistory, PlanLog
from loopwright.plans.tuner import Candidate, Timing, Tuner, TunerState

GRAPH, FUSED, XLA = Plan(), Plan("xla", "fused"), Plan("xla", "graph")
FIRST_CALL_SECONDS = 0.5
RECORDED = PlanChoice(FUSED, "before")
"""What a run has recorded, without the evidence."""


class Compile(Future[None]):
    """A compile that takes so long, or fails, or never ends."""

    def __init__(self, world: "World", over_at: float, error: str | None = None) -> None:
        super().__init__()
        self.world, self.over_at, self.error = world, over_at, error

    def done(self) -> bool:
        return self.world.now >= self.over_at

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait until it is over, and at most that long."""
        alone = max(0.0, self.over_at - self.world.now) / 1.5
        self.world.now += min(alone, timeout or 0.0)
        self.over_at = self.world.now if alone <= (timeout or 0.0) else self.over_at
        return None if self.error is None else RuntimeError(self.error)

    def result(self, timeout: float | None = None) -> None:
        if self.error is not None:
            raise RuntimeError(self.error)


@dataclass
class World:
    """Runs steps by what the tuner says, and remembers what it said."""

    seconds_per_step: dict[Plan, float]
    compile_seconds: float = 1.0
    errors: dict[Plan, str] = field(default_factory=dict[Plan, str])
    remembered: PlanChoice | None = None
    row: CacheRow | None = None
    untraceable: tuple[Plan, ...] = ()
    stalls: dict[Plan, float] = field(default_factory=dict[Plan, float])
    """How much longer the first call of a plan takes, because the machine is busy then."""
    noise: Iterator[float] = field(default_factory=lambda: itertools.repeat(1.0))
    """How much longer each call takes than it should."""
    call_delay: float = 0.0
    knows_batches: bool = True
    now: float = 0.0
    compiling: Compile | None = None
    prepared: list[Plan] = field(default_factory=list[Plan])
    ran: list[tuple[Plan, int, float]] = field(default_factory=list[tuple[Plan, int, float]])
    log: PlanLog = field(default_factory=PlanLog)
    rows: list[CacheRow] = field(default_factory=list[CacheRow])
    """What it has remembered, since somebody looked."""
    announced: list[PlanChosen] = field(default_factory=list[PlanChosen])

    def __post_init__(self) -> None:
        self.watch = Stopwatch(lambda: self.now)
        is_recorded = self.remembered is not None and self.row is None
        faster = [] if is_recorded else [Candidate(FUSED, 0.5), Candidate(XLA, 0.1)]
        self.tuner = Tuner(
            GRAPH,
            faster,
            self.log,
            remembered=self.remembered,
            row=self.row,
            remember=self.rows.append,
        )

    @property
    def notes(self) -> tuple[str, ...]:
        return self.log.history.notes

    @property
    def choice(self) -> PlanChoice | None:
        """What this run has chosen itself."""
        return self.log.history.choices.get("")

    def can_prepare(self) -> bool:
        return self.knows_batches or bool(self.ran)

    def prepare(self, plan: Plan) -> Compile:
        assert self.can_prepare()
        self.prepared.append(plan)
        if plan in self.untraceable:
            raise ValueError("no such operation\nand a stack of internals")
        self.compiling = Compile(self, self.now + self.compile_seconds, self.errors.get(plan))
        return self.compiling

    def fit(
        self,
        *,
        steps: int | None = None,
        seconds: float | None = None,
        for_seconds: float = 1e9,
        call_seconds: float = 0.25,
    ) -> float:
        """Trains in calls that take about a quarter of a second; returns how long it took."""
        began, done = self.now, 0
        self.tuner.begin(self, self.watch, Budget(steps, seconds), PlanHistory())
        for_seconds = min(for_seconds, seconds or 1e9)
        while done < (steps or 1e12) and self.now - began < for_seconds:
            fitting = int(call_seconds / self.seconds_per_step[self.tuner.plan])
            left = max(1, min(fitting, int((steps or 1e12) - done)))
            while left:
                plan, asked = self.tuner.next(done, left)
                assert 1 <= asked <= left
                first = FIRST_CALL_SECONDS if not self.ran else 0.0
                took = asked * self.seconds_per_step[plan] * next(self.noise) + first
                if self.compiling is not None and not self.compiling.done():
                    took /= 0.6  # measured on two cores
                took += self.stalls.pop(plan, 0.0) + self.call_delay
                self.now += took
                self.ran.append((plan, asked, took))
                self.tuner.ran(done, Timing(plan, asked, took, first))
                done, left = done + asked, left - asked
            self.announced += self.tuner.pending_events(done)
        self.tuner.end()
        return self.now - began

    def left_row(self) -> CacheRow:
        """What this run leaves in the cache."""
        row = self.rows[-1]
        self.rows.clear()
        return row

    def seconds_by(self, plan: Plan) -> float:
        return sum(seconds for ran_by, _, seconds in self.ran if ran_by == plan)


def world(fused: float = 1.0, xla: float = 1.0, step_seconds: float = 0.0002, **kwargs) -> World:
    """Speeds of the other plans, as multiples of the graph plan's."""
    speeds = {GRAPH: 1.0, FUSED: fused, XLA: xla}
    return World({plan: step_seconds / speed for plan, speed in speeds.items()}, **kwargs)


@pytest.mark.parametrize(
    ("fused", "xla", "best"),
    [(6.0, 1.1, FUSED), (0.9, 1.5, XLA), (0.7, 0.6, GRAPH), (1.01, 1.02, GRAPH)],
)
def test_training_begins_on_the_graph_plan_and_leaves_it_for_one_that_is_clearly_faster(
    fused: float, xla: float, best: Plan
):
    run = world(fused=fused, xla=xla, step_seconds=0.01)
    run.fit(steps=30_000)
    assert (run.ran[0][0], run.tuner.plan) == (GRAPH, best)
    said = run.choice.why if run.choice is not None else ""
    assert ("x the speed of the first plan" in said) == (best != GRAPH), said
    assert ("nothing faster was found" in said) == ((fused, xla) == (0.7, 0.6)), said


@pytest.mark.parametrize("budget", [{"steps": 15_000}, {"seconds": 3.0}, {"for_seconds": 3.0}])
def test_a_run_too_short_to_pay_for_a_compile_tries_nothing(budget: dict[str, Any]):
    run = world(fused=6.0)
    run.fit(**budget)
    assert run.prepared == []
    assert run.choice is None


def test_without_a_known_end_trying_begins_when_training_has_lasted_long_enough():
    run = world(fused=6.0)
    run.fit(for_seconds=60.0)
    assert run.tuner.plan == FUSED


def test_many_short_fits_are_tuned_like_one_long_one():
    run = world(fused=6.0)
    for _ in range(40):
        run.fit(steps=5_000)
    assert run.tuner.plan == FUSED


def test_a_second_candidate_is_not_tried_when_it_can_save_less_than_it_costs():
    run = world(fused=6.0, compile_seconds=10.0)
    run.fit(steps=100_000)  # twenty seconds on the graph plan
    assert run.prepared == [FUSED]
    assert run.choice is not None
    run = world(fused=0.9)
    run.fit(steps=105_000)
    assert run.prepared == [FUSED], "what is left decides, not the whole run"


def test_the_compile_goes_on_beside_the_training():
    run = world(fused=6.0, compile_seconds=5.0)
    run.fit(steps=1_000_000)
    assert run.seconds_by(GRAPH) > 5.0


@pytest.mark.parametrize(("fused", "calls"), [(1 / 30, [1]), (1 / 5, [1, 1, 1])])
def test_a_candidate_far_slower_is_given_up_after_its_first_calls(fused: float, calls: list[int]):
    run = world(fused=fused, step_seconds=0.05)
    run.fit(steps=10_000)
    assert run.tuner.plan == GRAPH
    assert [steps for plan, steps, _ in run.ran if plan == FUSED] == calls


def test_a_comparison_never_breaks_the_bound_between_two_stops():
    for fused in (1 / 300, 1 / 30, 1 / 3, 1.0, 30.0):
        run = world(fused=fused, xla=fused, step_seconds=0.0005)
        run.fit(steps=1_000_000)
        calls = [seconds for plan, _, seconds in run.ran if plan != GRAPH]
        assert max(calls) < 0.3


@pytest.mark.parametrize(
    ("failing", "note"),
    [
        ({"errors": {FUSED: "no kernel"}}, "could not be compiled (RuntimeError: no kernel)"),
        ({"untraceable": (FUSED,)}, "could not be traced (ValueError: no such operation)"),
    ],
)
def test_a_plan_that_cannot_be_compiled_is_skipped_and_noted(failing: dict[str, Any], note: str):
    run = world(fused=6.0, **failing)
    run.fit(steps=1_000_000)
    assert run.seconds_by(FUSED) == 0
    assert run.notes[0] == f"loop inside XLA: {note}"


def test_a_compile_without_end_is_left_alone_and_nothing_else_is_compiled_beside_it():
    run = world(fused=6.0, compile_seconds=float("inf"), step_seconds=0.01)
    run.fit(steps=100_000)
    assert run.prepared == [FUSED]
    assert run.tuner.plan == GRAPH
    assert all("skipped, compiling with XLA takes more than" in note for note in run.notes)
    assert len(run.notes) == 2


def test_what_a_comparison_loses_counts_as_tuning():
    run = world(fused=1 / 2, xla=1 / 2, step_seconds=0.01)
    run.fit(steps=30_000)
    lost = 0.5 * (run.seconds_by(FUSED) + run.seconds_by(XLA))
    assert run.watch.seconds["tuning"] == pytest.approx(lost)
    assert run.watch.seconds["step"] == pytest.approx(-lost), "each second is counted once"


def test_the_choice_says_once_what_was_won():
    run = world(fused=6.0, xla=0.9)
    run.fit(steps=1_000_000)
    choice = run.choice
    assert choice is not None
    assert (choice.plan, choice.why) == (FUSED, "30,000 steps/s, 6.0x the speed of the first plan")
    assert run.notes[0] == (
        "loop inside XLA: 30,000 steps/s against 5,000 steps/s of graph step, graph loop"
    )
    run.fit(steps=1_000_000)
    assert len(run.announced) == 1


def test_tuning_a_minute_costs_less_than_a_tenth_of_it():
    for fused, xla, step_seconds in [(6.0, 0.9, 0.0002), (1.6, 1.5, 0.015), (0.5, 0.5, 0.02)]:
        run = world(fused=fused, xla=xla, step_seconds=step_seconds, compile_seconds=3.0)
        best = step_seconds / max(1.0, fused, xla)
        assert run.fit(steps=int(60 / best)) < 60 * 1.10


def test_a_remembered_plan_is_used_as_soon_as_it_is_compiled_and_without_a_comparison():
    run = world(fused=6.0, remembered=PlanChoice(FUSED, "before"))
    run.fit(steps=1_000_000)
    plans = [plan for plan, _, _ in run.ran]
    assert plans == sorted(plans, key=[GRAPH, FUSED].index)  # one switch
    assert run.seconds_by(GRAPH) < FIRST_CALL_SECONDS + run.compile_seconds + 1
    assert [event.why for event in run.announced] == ["measured before: before"]
    assert (run.tuner.plan, run.choice) == (FUSED, None)
    assert run.notes == ()


def test_a_start_with_a_remembered_plan_is_never_slower_than_the_first_start():
    for steps in (100, 15_000, 100_000, 1_000_000):
        first, second = world(fused=6.0), world(fused=6.0, remembered=RECORDED)
        assert second.fit(steps=steps) <= first.fit(steps=steps)


def test_a_remembered_plan_that_cannot_be_compiled_any_more_is_left_alone():
    run = world(fused=6.0, remembered=RECORDED, errors={FUSED: "out of memory"})
    run.fit(steps=1_000_000)
    assert run.tuner.plan == GRAPH
    assert run.notes == ("loop inside XLA: could not be compiled (RuntimeError: out of memory)",)


# --- noise ---


def test_one_slow_call_on_a_busy_machine_does_not_decide():
    """Seen with the transformer: 36.8 steps/s were possible, and 15.8 were remembered for ever."""
    run = world(fused=2.3, step_seconds=1 / 15.8, stalls={FUSED: 0.6})
    run.fit(steps=2_000)
    assert run.tuner.plan == FUSED


def noise(seed: int, most: float) -> Iterator[float]:
    rng = random.Random(seed)
    while True:
        yield rng.uniform(1.0, most)


def test_a_difference_inside_the_spread_does_not_decide_and_is_said_so():
    reasons = set[str]()
    for seed in range(8):
        run = world(fused=1.01, xla=0.99, step_seconds=0.01, noise=noise(seed, 1.2))
        run.fit(steps=5_000)
        choice = run.choice
        assert choice is not None
        assert choice.plan == GRAPH
        reasons.add(choice.why.partition(": ")[0])
    assert reasons <= {"no difference beyond the noise", "nothing faster was found"}
    assert "no difference beyond the noise" in reasons


def test_calls_beside_a_compile_do_not_count_as_the_speed_of_a_plan():
    run = world(compile_seconds=3.0, errors={FUSED: "no memory"})
    run.fit(steps=100_000, for_seconds=5)
    assert run.left_row().evidence[0].rate == pytest.approx(5_000)


def test_a_run_without_a_known_end_announces_at_its_end_what_it_has_found_so_far():
    run = world(fused=0.5)
    run.fit(for_seconds=10)
    choice = run.choice
    assert choice is not None
    assert choice.why.startswith("nothing faster was found so far, not tried: XLA step")


def test_a_clear_difference_decides_on_a_noisy_machine_too():
    for seed in range(8):
        run = world(fused=2.3, xla=1.5, step_seconds=0.06, noise=noise(seed, 3.0))
        run.fit(steps=2_000)
        assert run.tuner.plan == FUSED


def test_a_comparison_on_a_machine_too_busy_to_decide_is_left_to_the_next_run():
    for seed in range(8):
        run = world(fused=1.2, xla=1.1, step_seconds=0.06, noise=noise(seed, 6.0))
        run.fit(steps=3_000)
        if not run.left_row().is_complete and run.tuner.plan == GRAPH:
            break
    else:
        raise AssertionError("every comparison was decided")
    assert "too noisy to decide: " in run.notes[0]
    assert run.choice is not None
    assert run.choice.why.startswith("nothing faster was found so far, not tried: ")


def test_calls_that_still_get_faster_are_not_counted():
    """On a busy machine each call takes long, and the first ones run few steps."""
    run = world(fused=30.0, xla=1.0, call_delay=0.02)
    run.fit(steps=1_000_000)
    row = run.left_row()
    fused = evidence_of(row, FUSED)
    assert max(fused.rates) < 2 * min(fused.rates)
    assert run.tuner.plan == FUSED


# --- what is remembered ---


def transformer(row: CacheRow | None = None, speed: float = 1.0, **kwargs) -> World:
    """Speeds and compile times of the transformer of the benchmarks; `speed`: of the machine."""
    seconds = {GRAPH: 1 / 15.8, FUSED: 1 / 36.8, XLA: 1 / 33.0}
    speeds = {plan: each / speed for plan, each in seconds.items()}
    is_choice = row is not None and (row.is_complete or row.choice.plan != GRAPH)
    choice = row.choice if row is not None and is_choice else None
    return World(speeds, **{"remembered": choice, "row": row, "compile_seconds": 8.0, **kwargs})


def states(row: CacheRow) -> dict[Plan, str]:
    return {known.plan: known.state for known in row.evidence}


def evidence_of(row: CacheRow, plan: Plan) -> Evidence:
    return next(known for known in row.evidence if known.plan == plan)


@pytest.mark.parametrize("seconds", [4.0, 6.0, 9.0, 9.5, 10.0])
def test_a_run_that_ends_before_its_comparisons_do_is_not_remembered_as_if_they_had(seconds: float):
    short = transformer()
    short.fit(steps=4_000, for_seconds=seconds)
    row = short.rows[-1] if short.rows else None
    assert row is None or not row.is_complete
    longer = transformer(row)
    longer.fit(steps=4_000)
    assert longer.tuner.plan == FUSED


def test_a_choice_is_complete_when_every_candidate_was_tried_to_its_end_or_failed():
    run = transformer()
    run.fit(steps=100_000)
    row = run.left_row()
    assert row.choice == PlanChoice(FUSED, "36.8 steps/s, 2.3x the speed of the first plan")
    assert row.is_complete
    run.fit(steps=1_000)
    assert run.rows == [], "nothing was found out since"
    fused = evidence_of(row, FUSED)
    assert round(fused.rate, 1) == 36.8
    assert 5 < fused.compile_seconds < 6
    run = transformer(errors={FUSED: "no kernel"}, untraceable=(XLA,))
    run.fit(steps=100_000)
    row = run.left_row()
    assert states(row) == {GRAPH: "measured", FUSED: "failed", XLA: "failed"}
    assert row.is_complete


def test_what_a_short_run_left_out_is_tried_by_a_longer_one_and_nothing_is_measured_twice():
    run = transformer()
    run.fit(steps=2_000)
    row = run.left_row()
    assert states(row) == {GRAPH: "measured", FUSED: "measured", XLA: "not tried"}
    assert row.evidence[1].reason == "not worth it in a run this short" or row.evidence[2].reason
    second = transformer(row)
    second.fit(steps=2_000)
    assert second.prepared == [FUSED]
    longer = transformer(row)
    longer.fit(steps=100_000)
    assert longer.prepared == [FUSED, XLA]
    assert longer.tuner.plan == FUSED
    assert longer.left_row().is_complete


def test_a_remembered_plan_is_compiled_before_the_first_step_if_that_ends_sooner():
    run = transformer()
    run.fit(steps=2_000)
    row = run.left_row()
    second = transformer(row)
    second.fit(steps=2_000)
    assert {plan for plan, _, _ in second.ran} == {FUSED}
    assert second.watch.seconds["compile"] > 5
    pipeline = transformer(row, knows_batches=False)
    pipeline.fit(steps=2_000)
    assert [pipeline.ran[0][0], pipeline.tuner.plan] == [GRAPH, FUSED]
    short = transformer(row)
    short.fit(steps=20)
    assert {plan for plan, _, _ in short.ran} == {GRAPH}
    assert short.prepared == []


@pytest.mark.parametrize(
    ("step_seconds", "fused", "compile_seconds", "most", "most_again"),
    [(1 / 15.8, 2.3, 8.0, 1.15, 1.03), (1 / 3_700, 6.0, 3.0, 1.10, 1.03)],
)
def test_a_minute_takes_hardly_longer_than_by_the_best_plan(
    step_seconds: float, fused: float, compile_seconds: float, most: float, most_again: float
):
    def run(row: CacheRow | None = None) -> World:
        speeds = {GRAPH: step_seconds, FUSED: step_seconds / fused, XLA: step_seconds / 1.1}
        choice = None if row is None else row.choice
        return World(speeds, compile_seconds, remembered=choice, row=row)

    steps = int(60 * fused / step_seconds)
    best = compile_seconds / 1.5 + 60
    first = run()
    assert first.fit(steps=steps) < most * best
    assert run(first.left_row()).fit(steps=steps) < most_again * best


def complete(rate: float = 36.8, plan: Plan = FUSED) -> CacheRow:
    rates = {GRAPH: 15.8, FUSED: 12.0, XLA: 11.0} | {plan: rate}
    evidence = tuple(
        Evidence(p, "measured", "", (rates[p],) * 3, compile_seconds=5.0) for p in rates
    )
    return CacheRow(PlanChoice(plan, "fast"), evidence, date=0.0)


def test_a_recorded_choice_is_used_and_neither_checked_nor_remembered():
    run = transformer(remembered=RECORDED, speed=5.0)
    run.fit(steps=50_000)
    assert run.prepared == [FUSED]
    assert run.rows == []


def test_a_complete_choice_is_used_and_not_measured_again():
    run = transformer(complete())
    run.fit(steps=50_000)
    assert run.prepared == [FUSED]
    assert run.tuner.state is TunerState.SETTLED
    assert run.rows == []


def test_a_choice_whose_speed_is_far_from_the_remembered_one_is_checked_again():
    run = transformer(complete(15.8, GRAPH), speed=1.0)
    run.fit(steps=10_000)
    assert run.prepared == [], "as fast as remembered"
    run = transformer(complete(6.0, GRAPH))
    run.fit(steps=10_000)
    assert run.tuner.plan == FUSED
    assert run.notes[0] == (
        "graph step, graph loop: 15.8 steps/s, 6 were remembered; the other plans are due again"
    )
    assert run.left_row().choice.plan == FUSED
    choice = run.choice
    assert choice is not None
    assert choice.why == "checked again: 36.8 steps/s, 2.3x the speed of the first plan"
    run = transformer(complete(80.0))
    run.fit(steps=10_000)
    assert run.tuner.plan == FUSED
    assert XLA in run.prepared


def test_a_check_that_does_not_come_to_its_end_is_continued_by_the_next_run():
    run = transformer(complete(80.0))
    run.fit(steps=10_000, for_seconds=20)
    first = run.left_row()
    assert first.choice.plan == FUSED
    assert not first.is_complete, "no rates of another day among those of now"
    again = transformer(first)
    again.fit(steps=100_000)
    row = again.left_row()
    assert row.is_complete
    assert [round(known.rate, 1) for known in row.evidence] == [15.8, 36.8, 33.0]


def test_what_was_measured_in_this_run_is_not_checked_again_in_it():
    remembered = complete(20.0)
    left = Evidence(XLA, "not tried", "short")
    part = CacheRow(remembered.choice, (*remembered.evidence[:2], left), 0.0)
    run = transformer(part)
    run.fit(steps=100_000)
    assert sorted(map(str, run.prepared)) == sorted(map(str, [FUSED, GRAPH, XLA]))
    assert run.left_row().is_complete


def test_a_remembered_plan_that_fails_once_is_not_forgotten_for_good():
    run = transformer(complete(), errors={FUSED: "out of memory"})
    run.fit(steps=2_000)
    assert run.tuner.plan in (GRAPH, XLA)
    row = run.left_row()
    assert states(row)[FUSED] == "not tried"


@pytest.mark.parametrize("budget", [{"seconds": 6.0}, {"steps": 100}, {"for_seconds": 6.0}])
def test_a_short_run_does_not_wait_for_the_compile_of_the_remembered_plan(budget: dict[str, Any]):
    first = transformer()
    first.fit(steps=100_000)
    short = transformer(first.left_row())
    short.fit(**budget)
    assert short.ran[0][0] == GRAPH


def test_the_time_to_compile_is_remembered_as_it_was_seen_last():
    run = transformer(complete(), compile_seconds=0.9)
    run.fit(steps=2_000)
    row = run.left_row()
    fused = evidence_of(row, FUSED)
    assert fused.compile_seconds == pytest.approx(0.9 / 1.5), "as if nothing ran beside it"
    assert (row.choice.plan, fused.rates) == (FUSED, (36.8,) * 3)
