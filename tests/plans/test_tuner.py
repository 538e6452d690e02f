"""The tuner in a world where every plan has a known speed and time is an argument."""

from collections import deque
from dataclasses import dataclass, field

from loopwright.loop.clock import Stopwatch
from loopwright.plans.plan import Plan
from loopwright.plans.plan_history import Choice
from loopwright.plans.tuner import Budget, Candidate, Tuner

GRAPH, FUSED, XLA = Plan(), Plan("xla", "fused"), Plan("xla", "graph")
FIRST_CALL_SECONDS = 0.5


@dataclass
class Compile:
    """A compile that takes so long, or fails, or never ends."""

    world: "World"
    over_at: float
    error: str | None = None

    def is_over(self) -> bool:
        return self.world.now >= self.over_at

    def failure(self) -> str | None:
        return self.error


@dataclass
class World:
    """Runs steps by what the tuner says, and remembers what it said."""

    seconds_per_step: dict[Plan, float]
    compile_seconds: float = 1.0
    errors: dict[Plan, str] = field(default_factory=dict[Plan, str])
    remembered: Choice | None = None
    untraceable: tuple[Plan, ...] = ()
    now: float = 0.0
    prepared: list[Plan] = field(default_factory=list[Plan])
    ran: list[tuple[Plan, int, float]] = field(default_factory=list[tuple[Plan, int, float]])
    notes: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self.watch = Stopwatch(lambda: self.now)
        candidates = deque([Candidate(FUSED, 0.5), Candidate(XLA, 0.1)])
        if self.remembered is not None:
            candidates = deque([Candidate(self.remembered.plan, 0.5)])
        self.tuner = Tuner(GRAPH, candidates, self.notes.append, self.remembered)

    def prepare(self, plan: Plan) -> Compile:
        self.prepared.append(plan)
        if plan in self.untraceable:
            raise ValueError("no such operation\nand a stack of internals")
        return Compile(self, self.now + self.compile_seconds, self.errors.get(plan))

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
        self.tuner.begin(self, self.watch, Budget(steps, seconds))
        for_seconds = min(for_seconds, seconds or 1e9)
        while done < (steps or 1e12) and self.now - began < for_seconds:
            fitting = int(call_seconds / self.seconds_per_step[self.tuner.plan])
            left = max(1, min(fitting, int((steps or 1e12) - done)))
            while left:
                plan, asked = self.tuner.next(done, left)
                assert 1 <= asked <= left
                first = FIRST_CALL_SECONDS if not self.ran else 0.0
                took = asked * self.seconds_per_step[plan] + first
                self.now += took
                self.ran.append((plan, asked, took))
                self.tuner.ran(plan, asked, took, first)
                done, left = done + asked, left - asked
        self.tuner.end()
        return self.now - began

    def seconds_by(self, plan: Plan) -> float:
        return sum(seconds for ran_by, _, seconds in self.ran if ran_by == plan)


def world(fused: float = 1.0, xla: float = 1.0, step_seconds: float = 0.0002, **kwargs) -> World:
    """Speeds of the other plans, as multiples of the graph plan's."""
    speeds = {GRAPH: 1.0, FUSED: fused, XLA: xla}
    return World({plan: step_seconds / speed for plan, speed in speeds.items()}, **kwargs)


def test_training_begins_on_the_graph_plan_and_ends_on_the_fastest():
    run = world(fused=6.0)
    run.fit(steps=1_000_000)
    assert run.ran[0][0] == GRAPH
    assert run.tuner.plan == FUSED
    assert run.seconds_by(FUSED) > 0.9 * run.now


def test_every_workload_ends_on_its_own_best_plan():
    for fused, xla, best in [(6.0, 1.1, FUSED), (0.9, 1.5, XLA), (0.7, 0.6, GRAPH)]:
        run = world(fused=fused, xla=xla, step_seconds=0.01)
        run.fit(steps=30_000)
        assert run.tuner.plan == best


def test_a_candidate_must_be_clearly_faster():
    run = world(fused=1.01, xla=1.02)
    run.fit(steps=1_000_000)
    assert run.tuner.plan == GRAPH


def test_a_run_too_short_to_pay_for_a_compile_tries_nothing():
    run = world(fused=6.0)
    run.fit(steps=15_000)  # three seconds
    assert run.prepared == []
    assert run.tuner.choice is None


def test_a_short_run_is_known_from_its_seconds_as_well():
    run = world(fused=6.0)
    run.fit(seconds=3.0)
    assert run.prepared == []


def test_without_a_known_end_trying_begins_when_training_has_lasted_long_enough():
    run = world(fused=6.0)
    run.fit(for_seconds=3.0)
    assert run.prepared == []
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
    assert run.tuner.choice is not None


def test_the_compile_goes_on_beside_the_training():
    run = world(fused=6.0, compile_seconds=5.0)
    run.fit(steps=1_000_000)
    assert run.seconds_by(GRAPH) > 5.0


def test_a_candidate_far_slower_is_given_up_after_its_first_calls():
    run = world(fused=1 / 30, step_seconds=0.05)
    run.fit(steps=10_000)
    assert run.tuner.plan == GRAPH
    assert [steps for plan, steps, _ in run.ran if plan == FUSED] == [1]


def test_a_trial_never_breaks_the_bound_between_two_stops():
    for fused in (1 / 300, 1 / 30, 1 / 3, 1.0, 30.0):
        run = world(fused=fused, xla=fused, step_seconds=0.0005)
        run.fit(steps=1_000_000)
        calls = [seconds for plan, _, seconds in run.ran if plan != GRAPH]
        assert max(calls) < 0.3


def test_a_compile_that_fails_is_skipped_and_noted():
    run = world(fused=6.0, errors={FUSED: "InvalidArgumentError: unsupported operation"})
    run.fit(steps=1_000_000)
    assert run.seconds_by(FUSED) == 0
    assert run.notes[0] == (
        "loop inside XLA: could not be compiled (InvalidArgumentError: unsupported operation)"
    )


def test_a_trace_that_fails_is_skipped_and_noted_in_one_line():
    run = world(fused=6.0, untraceable=(FUSED,))
    run.fit(steps=1_000_000)
    assert run.notes[0] == "loop inside XLA: could not be traced (ValueError: no such operation)"


def test_a_compile_without_end_is_left_alone_and_nothing_else_is_compiled_beside_it():
    run = world(fused=6.0, compile_seconds=float("inf"), step_seconds=0.01)
    run.fit(steps=100_000)
    assert run.prepared == [FUSED]
    assert run.tuner.plan == GRAPH
    assert all("skipped, compiling with XLA takes more than" in note for note in run.notes)
    assert len(run.notes) == 2


def test_what_a_trial_loses_counts_as_tuning():
    run = world(fused=1 / 2, xla=1 / 2, step_seconds=0.01)
    run.fit(steps=30_000)
    lost = 0.5 * (run.seconds_by(FUSED) + run.seconds_by(XLA))
    assert abs(run.watch.seconds["tuning"] - lost) < 1e-6


def test_the_choice_says_what_was_won():
    run = world(fused=6.0, xla=0.9)
    run.fit(steps=1_000_000)
    choice = run.tuner.choice
    assert choice is not None
    assert (choice.plan, choice.why) == (FUSED, "30,000 steps/s, 6.0x the speed of the first plan")
    assert run.notes[0] == (
        "loop inside XLA: 30,000 steps/s against 5,000 steps/s of graph step, graph loop"
    )


def test_the_choice_says_when_nothing_was_faster():
    run = world(fused=0.5, xla=0.5)
    run.fit(steps=1_000_000)
    choice = run.tuner.choice
    assert choice is not None
    assert (choice.plan, choice.why) == (GRAPH, "nothing faster was found")


def test_tuning_a_minute_costs_less_than_a_tenth_of_it():
    for fused, xla, step_seconds in [(6.0, 0.9, 0.0002), (1.6, 1.5, 0.015), (0.5, 0.5, 0.02)]:
        run = world(fused=fused, xla=xla, step_seconds=step_seconds, compile_seconds=3.0)
        best = step_seconds / max(1.0, fused, xla)
        assert run.fit(steps=int(60 / best)) < 60 * 1.10


def test_a_choice_is_made_once():
    run = world(fused=6.0, xla=0.9)
    run.fit(steps=1_000_000)
    assert run.tuner.choice is not None
    run.tuner.take_choice()
    run.fit(steps=1_000_000)
    assert run.tuner.choice is None


def test_a_remembered_plan_is_used_as_soon_as_it_is_compiled_and_without_a_trial():
    run = world(fused=6.0, remembered=Choice(FUSED, "measured before"))
    run.fit(steps=1_000_000)
    plans = [plan for plan, _, _ in run.ran]
    assert plans == sorted(plans, key=[GRAPH, FUSED].index)  # one switch
    assert run.seconds_by(GRAPH) < FIRST_CALL_SECONDS + run.compile_seconds + 1
    assert (run.tuner.plan, run.tuner.choice) == (FUSED, run.remembered)
    assert run.notes == []


def test_a_start_with_a_remembered_plan_is_never_slower_than_the_first_start():
    for steps in (100, 15_000, 100_000, 1_000_000):
        first, second = world(fused=6.0), world(fused=6.0, remembered=Choice(FUSED, "before"))
        assert second.fit(steps=steps) <= first.fit(steps=steps)


def test_a_remembered_plan_that_cannot_be_compiled_any_more_is_left_alone():
    run = world(fused=6.0, remembered=Choice(FUSED, "before"), errors={FUSED: "out of memory"})
    run.fit(steps=1_000_000)
    assert run.tuner.plan == GRAPH
    assert run.notes == ["loop inside XLA: could not be compiled (out of memory)"]
