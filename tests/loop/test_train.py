"""The training loop, driven by plain Python in position of a device, on a clock that is told."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import MappingProxyType
from typing import final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.loop.test_schedule import stops_of

from loopwright.events import (
    EpochEnded,
    EpochStarted,
    Event,
    Finished,
    Metrics,
    PlanChosen,
    Saved,
    Started,
    Trained,
    Validated,
)
from loopwright.loop import train as loop
from loopwright.loop.clock import Pace
from loopwright.loop.schedule import Every, Position, Schedule

ENDLESS = itertools.repeat(10**9)
BEGIN = Position()


@final
class World:
    """What the loop calls: data that ends, steps and validations that take their time.

    `epoch_lengths` are found out only by running into the end, as with a stream of unknown
    length: a call that ends exactly there does not notice, the next one runs no step.
    """

    def __init__(
        self,
        epoch_lengths: Iterator[int] = ENDLESS,
        *,
        step_seconds: Iterator[float] | None = None,
        validation_seconds: float = 0.0,
        stop_when: Callable[["World"], bool] = lambda world: False,
    ) -> None:
        self.now = 100.0
        self.steps = 0
        self.steps_in_epoch = 0
        self.validated_at: list[int] = []
        self.calls: list[tuple[int, int]] = []
        self.heard: list[Event] = []
        self.found: list[Event] = []
        self.saved: list[tuple[Position, Metrics]] = []
        self.saved_best: list[tuple[Position, Metrics]] = []
        self.best_steps: set[int] = set()
        self.position = BEGIN
        self.scores: Metrics = {}
        self.cut_validation = False
        self.interrupt_when: Callable[[World], bool] = lambda world: False
        self._epoch_lengths = epoch_lengths
        self._left = next(epoch_lengths)
        self._step_seconds = itertools.repeat(1.0) if step_seconds is None else step_seconds
        self._validation_seconds = validation_seconds
        self._stop_when = stop_when

    def run_steps(self, position: Position, steps: int) -> int:
        ran = min(steps, self._left)
        self.calls.append((steps, ran))
        assert len(self.calls) < 2000, "the run does not end"
        self.steps += ran
        self.steps_in_epoch += ran
        self._left = self._left - ran if ran == steps else next(self._epoch_lengths)
        self.now += ran * next(self._step_seconds)
        return ran

    def start_epoch(self, position: Position) -> None:
        self.steps_in_epoch = 0

    def report(self) -> Metrics:
        return {"seen": self.steps_in_epoch}

    def pending_events(self) -> list[Event]:
        found, self.found = self.found, []
        return found

    def save(self, position: Position, scores: Metrics, *, is_due: bool = True) -> None:
        (self.saved if is_due else self.saved_best).append((position, scores))

    def clock(self) -> float:
        return self.now

    def stop_requested(self) -> bool:
        return self._stop_when(self)

    def interrupted(self) -> bool:
        return self.interrupt_when(self)

    def is_best(self, step: int, scores: Metrics) -> bool:
        assert scores == {"after": self.steps}
        return step in self.best_steps

    def validate(self) -> Metrics | None:
        if self.cut_validation:
            self.interrupt_when = lambda world: True
            return None
        self.validated_at.append(self.steps)
        self.now += self._validation_seconds
        return {"after": self.steps}

    def train(
        self,
        schedule: Schedule,
        *,
        first_step: int = 0,
        position: Position = BEGIN,
        scores: Metrics = MappingProxyType({}),
        pace: Pace | None = None,
    ) -> Iterator[Event]:
        """The events; each is kept in `heard` before anything else happens."""
        happened = loop.train(
            schedule,
            self,
            self,
            position=position,
            scores=scores,
            first_step=first_step,
            pace=pace or unbounded(),
        )
        for event, self.position, self.scores in happened:
            self.heard.append(event)
            yield event


def unbounded() -> Pace:
    """One step in the first call, then sixteen times as many as before."""
    return Pace(seconds_per_call=1e9)


def calls_of(steps: int) -> Pace:
    """Calls of this many steps of one second each, after a first call of one step."""
    return Pace(seconds_per_call=float(steps))


def in_words(event: Event) -> str:
    """An event in short; numbers that only the clock knows are tested apart."""
    match event:
        case Started():
            length = f"{event.epochs} epochs of {event.steps_per_epoch}"
            return f"start at {event.step}: {length}, {event.total_steps} steps"
        case EpochStarted():
            return f"epoch {event.epoch} at {event.step}"
        case Trained():
            assert event.metrics == {"seen": event.step_in_epoch}
            return f"  {event.steps} steps to {event.step}, {event.step_in_epoch} in epoch"
        case PlanChosen():
            return f"  plan chosen: {event.plan}"
        case Validated():
            return f"  validated at {event.step}: {event.metrics}"
        case EpochEnded():
            assert event.metrics == {"seen": event.steps}
            scores = f": {event.validation}" if event.validation else ""
            return f"end of epoch {event.epoch} at {event.step}, {event.steps} steps{scores}"
        case Saved():
            return f"saved at {event.step}"
        case Finished():
            return f"{event.reason} at {event.step}"
        case _:
            raise AssertionError(f"the loop does not yield {event}")


def told(events: Iterator[Event]) -> list[str]:
    return [in_words(event) for event in events]


# --- the order of events ---


def test_a_run_of_known_epochs_tells_everything_in_order():
    schedule = Schedule(20, until=Every(epochs=2), validate_every=Every(epochs=1))
    assert told(World().train(schedule)) == [
        "start at 0: 2 epochs of 20, 40 steps",
        "epoch 0 at 0",
        "  1 steps to 1, 1 in epoch",
        "  16 steps to 17, 17 in epoch",
        "  3 steps to 20, 20 in epoch",
        "  validated at 20: {'after': 20}",
        "end of epoch 0 at 20, 20 steps: {'after': 20}",
        "epoch 1 at 20",
        "  20 steps to 40, 20 in epoch",
        "  validated at 40: {'after': 40}",
        "end of epoch 1 at 40, 20 steps: {'after': 40}",
        "complete at 40",
    ]


def test_a_second_call_of_fit_counts_its_steps_on_and_its_epochs_from_zero():
    schedule = Schedule(3, until=Every(epochs=2), validate_every=Every(steps=2))
    assert told(World().train(schedule, first_step=1001)) == [
        "start at 1001: 2 epochs of 3, 6 steps",
        "epoch 0 at 1001",
        "  1 steps to 1002, 1 in epoch",
        "  1 steps to 1003, 2 in epoch",
        "  validated at 1003: {'after': 2}",
        "  1 steps to 1004, 3 in epoch",
        "end of epoch 0 at 1004, 3 steps: {'after': 2}",
        "epoch 1 at 1004",
        "  1 steps to 1005, 1 in epoch",
        "  validated at 1005: {'after': 4}",
        "  2 steps to 1007, 3 in epoch",
        "  validated at 1007: {'after': 6}",
        "end of epoch 1 at 1007, 3 steps: {'after': 6}",
        "complete at 1007",
    ]


@pytest.mark.parametrize(
    ("first", "second", "every", "calls"),
    [
        (5, 3, Every(epochs=1), None),
        # The next call runs no step: it shows that the epoch is over.
        (4, 4, Every(steps=4), [(1, 1), (3, 3), (4, 0), (4, 4), (4, 0)]),
    ],
)
def test_an_epoch_of_unknown_length_ends_when_its_data_does(first, second, every, calls):
    world, end = World(iter([first, second, 9 if first == 5 else 4])), first + second
    schedule = Schedule(None, until=Every(epochs=2), validate_every=every)
    assert told(world.train(schedule)) == [
        "start at 0: 2 epochs of None, None steps",
        "epoch 0 at 0",
        "  1 steps to 1, 1 in epoch",
        f"  {first - 1} steps to {first}, {first} in epoch",
        f"  validated at {first}: {{'after': {first}}}",
        f"end of epoch 0 at {first}, {first} steps: {{'after': {first}}}",
        f"epoch 1 at {first}",
        f"  {second} steps to {end}, {second} in epoch",
        f"  validated at {end}: {{'after': {end}}}",
        f"end of epoch 1 at {end}, {second} steps: {{'after': {end}}}",
        f"complete at {end}",
    ]
    assert calls in (None, world.calls)


def test_a_number_of_steps_may_end_the_run_inside_an_epoch():
    schedule = Schedule(4, until=Every(steps=6), validate_every=Every(epochs=1))
    assert told(World().train(schedule)) == [
        "start at 0: None epochs of 4, 6 steps",
        "epoch 0 at 0",
        "  1 steps to 1, 1 in epoch",
        "  3 steps to 4, 4 in epoch",
        "  validated at 4: {'after': 4}",
        "end of epoch 0 at 4, 4 steps: {'after': 4}",
        "epoch 1 at 4",
        "  2 steps to 6, 2 in epoch",
        "  validated at 6: {'after': 6}",
        "end of epoch 1 at 6, 2 steps: {'after': 6}",
        "complete at 6",
    ]


@pytest.mark.parametrize(
    ("until", "validation_seconds", "last"),
    [(6, 0.0, "complete at 7"), (12, 10.0, "complete at 7")],
)
def test_a_number_of_seconds_with_those_of_validation_ends_the_run_at_the_first_stop_after_them(
    until: int, validation_seconds: float, last: str
):
    world = World(validation_seconds=validation_seconds)
    schedule = Schedule(4, until=Every(seconds=until), validate_every=Every(epochs=1))
    assert told(world.train(schedule, pace=calls_of(3)))[-1] == last


def test_a_validation_that_takes_longer_than_its_interval_leaves_time_to_train():
    world = World(validation_seconds=60.0)
    schedule = Schedule(1000, until=Every(seconds=600), validate_every=Every(seconds=30))
    list(world.train(schedule, pace=calls_of(1)))
    gaps = [b - a for a, b in itertools.pairwise(world.validated_at)]
    assert min(gaps[:-1]) >= 30


# --- stopping early ---


@pytest.mark.parametrize(
    ("stop_when", "step"),
    [
        (lambda world: world.steps >= 5, 5),
        (lambda world: isinstance(world.heard[-1], EpochEnded), 20),
        (lambda world: bool(world.validated_at), 10),
    ],
    ids=["after a call", "at the end of an epoch", "by a validation"],
)
def test_a_callback_may_stop_the_run_and_its_end_is_validated(
    stop_when: Callable[[World], bool], step: int
):
    world = World(stop_when=stop_when)
    schedule = Schedule(20, until=Every(epochs=3), validate_every=Every(steps=10))
    assert told(world.train(schedule, pace=calls_of(4)))[-2:] == [
        f"end of epoch 0 at {step}, {step} steps: {{'after': {step}}}",
        f"stopped at {step}",
    ]
    assert world.validated_at[-1] == step


def test_whoever_stops_iterating_stops_the_run_there():
    world = World()
    schedule = Schedule(4, until=Every(epochs=9), validate_every=Every(epochs=1))
    for event in world.train(schedule):
        if isinstance(event, Validated) and event.step == 8:
            break
    assert (world.steps, world.validated_at) == (8, [4, 8])
    assert in_words(world.heard[-1]) == "  validated at 8: {'after': 8}"


@pytest.mark.parametrize("heard", range(1, 12))
def test_nothing_runs_before_it_is_asked_for(heard: int):
    world = World()
    schedule = Schedule(4, until=Every(epochs=2), validate_every=Every(epochs=1))
    events = list(itertools.islice(world.train(schedule, pace=calls_of(2)), heard))
    trained = [event for event in events if isinstance(event, Trained)]
    assert len(world.calls) == len(trained)
    assert len(world.validated_at) == sum(isinstance(event, Validated) for event in events)


def test_an_error_in_a_step_reaches_the_caller_and_nothing_is_told_after_it():
    def durations() -> Iterator[float]:
        yield 1.0
        raise ArithmeticError("in the step")

    world = World(step_seconds=durations())
    with pytest.raises(ArithmeticError, match="in the step"):
        list(world.train(Schedule(4, until=Every(epochs=1)), pace=calls_of(2)))
    assert in_words(world.heard[-1]) == "  1 steps to 1, 1 in epoch"


def test_what_was_found_out_is_told_after_the_steps_and_before_the_validation():
    world = World()
    world.found = [PlanChosen(0, "loop inside XLA", "", "")]
    schedule = Schedule(2, until=Every(epochs=1), validate_every=Every(epochs=1))
    assert told(world.train(schedule, pace=calls_of(2)))[2:6] == [
        "  1 steps to 1, 1 in epoch",
        "  plan chosen: loop inside XLA",
        "  1 steps to 2, 2 in epoch",
        "  validated at 2: {'after': 2}",
    ]


# --- saving and going on ---


def test_a_checkpoint_is_due_at_its_interval_and_at_the_end():
    world = World()
    schedule = Schedule(4, until=Every(epochs=2), save_every=Every(steps=3))
    assert told(world.train(schedule)) == [
        "start at 0: 2 epochs of 4, 8 steps",
        "epoch 0 at 0",
        "  1 steps to 1, 1 in epoch",
        "  2 steps to 3, 3 in epoch",
        "saved at 3",
        "  1 steps to 4, 4 in epoch",
        "end of epoch 0 at 4, 4 steps",
        "epoch 1 at 4",
        "  2 steps to 6, 2 in epoch",
        "saved at 6",
        "  2 steps to 8, 4 in epoch",
        "end of epoch 1 at 8, 4 steps",
        "saved at 8",
        "complete at 8",
    ]
    assert [position.is_over for position, _ in world.saved] == [False, False, True]


def test_a_best_validation_is_saved_at_its_step_once_and_resets_the_interval():
    world = World()
    world.best_steps = {4, 6}
    schedule = Schedule(
        4,
        until=Every(epochs=2),
        validate_every=Every(steps=2),
        save_every=Every(seconds=3.0),
    )
    assert told(world.train(schedule, pace=calls_of(1))) == [
        "start at 0: 2 epochs of 4, 8 steps",
        "epoch 0 at 0",
        "  1 steps to 1, 1 in epoch",
        "  1 steps to 2, 2 in epoch",
        "  validated at 2: {'after': 2}",
        "  1 steps to 3, 3 in epoch",
        "saved at 3",
        "  1 steps to 4, 4 in epoch",
        "  validated at 4: {'after': 4}",
        "end of epoch 0 at 4, 4 steps: {'after': 4}",
        "saved at 4",  # the best so far: the next one is due three seconds later
        "epoch 1 at 4",
        "  1 steps to 5, 1 in epoch",
        "  1 steps to 6, 2 in epoch",
        "  validated at 6: {'after': 6}",
        "saved at 6",
        "  1 steps to 7, 3 in epoch",
        "  1 steps to 8, 4 in epoch",
        "  validated at 8: {'after': 8}",
        "end of epoch 1 at 8, 4 steps: {'after': 8}",
        "saved at 8",
        "complete at 8",
    ]
    assert [position.step for position, _ in world.saved] == [3, 8]
    assert [(position.step, scores) for position, scores in world.saved_best] == [
        (4, {"after": 4}),
        (6, {"after": 6}),
    ]


def test_where_a_checkpoint_is_due_a_best_validation_is_saved_as_one_that_is_due():
    world = World()
    world.best_steps = {4, 8}
    schedule = Schedule(
        4, until=Every(epochs=2), validate_every=Every(epochs=1), save_every=Every(steps=4)
    )
    assert [step for step in told(world.train(schedule)) if "saved" in step] == [
        "saved at 4",
        "saved at 8",
    ]
    assert [position.step for position, _ in world.saved] == [4, 8]
    assert world.saved_best == []


def test_a_signal_saves_where_it_is_heard_and_leaves_everything_else_undone():
    schedule = Schedule(
        4, until=Every(epochs=2), validate_every=Every(epochs=1), save_every=Every(epochs=1)
    )
    world = World()
    world.interrupt_when = lambda world: world.steps >= 4
    assert told(world.train(schedule)) == [
        "start at 0: 2 epochs of 4, 8 steps",
        "epoch 0 at 0",
        "  1 steps to 1, 1 in epoch",
        "  3 steps to 4, 4 in epoch",
        "interrupted at 4",
    ]
    ((position, scores),) = world.saved
    assert (position.step, position.epoch, position.is_due, position.is_over) == (4, 0, True, False)

    rest = World()
    rest.steps = rest.steps_in_epoch = 4
    assert told(rest.train(schedule, position=position, scores=scores))[1:5] == [
        "  validated at 4: {'after': 4}",
        "end of epoch 0 at 4, 4 steps: {'after': 4}",
        "saved at 4",
        "epoch 1 at 4",
    ]


def test_a_validation_that_a_signal_cuts_short_is_done_again_after_going_on():
    schedule = Schedule(2, until=Every(epochs=1), validate_every=Every(epochs=1))
    world = World()
    world.cut_validation = True
    assert told(world.train(schedule))[-2:] == ["  1 steps to 2, 2 in epoch", "interrupted at 2"]
    ((position, _),) = world.saved
    assert position.is_due
    assert position.validated_step is None


def test_a_validation_that_was_whole_when_a_signal_came_is_not_done_again():
    schedule = Schedule(2, until=Every(epochs=1), validate_every=Every(epochs=1))
    world = World(validation_seconds=5.0)
    world.interrupt_when = lambda world: bool(world.validated_at)
    assert told(world.train(schedule))[-2:] == [
        "  validated at 2: {'after': 2}",
        "interrupted at 2",
    ]
    ((position, scores),) = world.saved
    assert (position.validated_step, position.seconds) == (2, 7.0)  # the time it took is spent

    rest = World()
    rest.steps = rest.steps_in_epoch = 2
    assert told(rest.train(schedule, position=position, scores=scores))[1:] == [
        "end of epoch 0 at 2, 2 steps: {'after': 2}",
        "complete at 2",
    ]


# --- numbers ---


def test_seconds_are_those_of_each_thing_and_of_nothing_else():
    world = World(validation_seconds=50.0)
    schedule = Schedule(4, until=Every(epochs=2), validate_every=Every(epochs=1))
    seconds: list[tuple[str, float]] = []
    for event in world.train(schedule, pace=calls_of(3)):
        if isinstance(event, Trained | Validated | EpochEnded | Saved | Finished):
            seconds.append((type(event).__name__, event.seconds))
        world.now += 1000.0 if isinstance(event, EpochEnded) else 0.0
    assert seconds == [
        ("Trained", 1.0),
        ("Trained", 3.0),
        ("Validated", 50.0),
        ("EpochEnded", 54.0),
        ("Trained", 3.0),
        ("Trained", 1.0),
        ("Validated", 50.0),
        ("EpochEnded", 54.0),
        ("Finished", 2108.0),
    ]


def test_the_pace_learns_from_steps_and_not_from_validation():
    pace = calls_of(5)
    world = World(validation_seconds=1e6)
    list(world.train(Schedule(20, Every(epochs=2), Every(steps=5)), pace=pace))
    assert pace.at_most_steps == 5


# --- what holds for every run ---

rates = st.lists(st.floats(1e-4, 1e2), min_size=1).map(itertools.cycle)
paces = st.builds(Pace, st.floats(1e-3, 1e2))
intervals = st.one_of(
    st.builds(Every, epochs=st.integers(1, 3)), st.builds(Every, steps=st.integers(1, 30))
)
durations = st.one_of(
    st.builds(Every, epochs=st.integers(1, 4)), st.builds(Every, steps=st.integers(1, 80))
)
known_schedules = st.builds(Schedule, st.integers(1, 25), durations, st.none() | intervals)


def test_a_callback_that_counts_steps_hears_of_its_multiples_whatever_the_pace():
    heard = [100]
    pace = Pace(seconds_per_call=3.0, limit=lambda: 4 - heard[-1] % 4)
    for event in World().train(Schedule(10, until=Every(epochs=2)), first_step=100, pace=pace):
        if isinstance(event, Trained):
            heard.append(event.step)
    assert heard[1:] == [101, 104, 107, 108, 110, 112, 115, 116, 119, 120]


@given(known_schedules, paces, rates)
def test_the_planned_validations_happen_however_the_pace_cuts_the_calls(
    schedule: Schedule, pace: Pace, step_seconds: Iterator[float]
):
    world = World(step_seconds=step_seconds)
    events = list(world.train(schedule, pace=pace))
    stops = stops_of(schedule)
    assert world.validated_at == [stop.step for stop in stops if stop.validate]
    ends = [event.step for event in events if isinstance(event, EpochEnded)]
    assert ends == [stop.step for stop in stops if stop.ends_epoch]


epochs_of_data = st.lists(st.integers(1, 12), min_size=1, max_size=5)


@given(epochs_of_data, intervals, paces, rates)
def test_validations_of_unknown_epochs_happen_however_the_pace_cuts_the_calls(
    epoch_lengths: list[int], interval: Every, pace: Pace, step_seconds: Iterator[float]
):
    world = World(itertools.chain(epoch_lengths, ENDLESS), step_seconds=step_seconds)
    schedule = Schedule(None, Every(epochs=len(epoch_lengths)), interval)
    events = list(world.train(schedule, pace=pace))
    ends = list(itertools.accumulate(epoch_lengths))
    if interval.steps is not None:
        planned = {*range(interval.steps, ends[-1] + 1, interval.steps), ends[-1]}
    else:
        planned = {*ends[(interval.epochs or 1) - 1 :: interval.epochs], ends[-1]}
    assert world.validated_at == sorted(planned)
    assert [e.step for e in events if isinstance(e, EpochEnded)] == ends


@st.composite
def runs(draw: st.DrawFn) -> tuple[World, Schedule]:
    """A run of any kind: known or found-out epochs, any duration, maybe stopped early."""
    known = draw(st.booleans())
    step_seconds = draw(rates)
    lengths = draw(epochs_of_data)
    stop_at = draw(st.none() | st.integers(1, 60))
    world = World(
        ENDLESS if known else itertools.cycle(lengths),
        step_seconds=step_seconds,
        stop_when=lambda world: stop_at is not None and world.steps >= stop_at,
    )
    length = lengths[0] if known else None
    return world, Schedule(length, draw(durations), draw(st.none() | intervals))


@given(runs(), paces, st.integers(0, 1000))
def test_every_step_is_told_once(run: tuple[World, Schedule], pace: Pace, first_step: int):
    world, schedule = run
    events = list(world.train(schedule, first_step=first_step, pace=pace))
    trained = [event for event in events if isinstance(event, Trained)]
    ends = [event for event in events if isinstance(event, EpochEnded)]
    assert all(event.steps > 0 for event in trained)
    assert sum(event.steps for event in trained) == world.steps
    assert sum(event.steps for event in ends) == world.steps
    done = list(itertools.accumulate((event.steps for event in trained), initial=first_step))
    assert [event.step for event in trained] == done[1:]
    assert isinstance(events[-1], Finished)
    assert (events[-1].step, events[-1].seconds) == (done[-1], world.now - 100.0)


ORDER = {
    Started: {EpochStarted},
    EpochStarted: {Trained},
    Trained: {Trained, Validated, EpochEnded},
    Validated: {Trained, EpochEnded},
    EpochEnded: {EpochStarted, Finished},
}


@given(runs(), paces)
def test_events_follow_each_other_as_the_words_say(run: tuple[World, Schedule], pace: Pace):
    world, schedule = run
    events = list(world.train(schedule, pace=pace))
    assert isinstance(events[0], Started)
    assert isinstance(events[-1], Finished)
    for before, event in itertools.pairwise(events):
        assert type(event) in ORDER[type(before)]
    starts = [event.epoch for event in events if isinstance(event, EpochStarted)]
    ends = [event.epoch for event in events if isinstance(event, EpochEnded)]
    assert starts == ends == list(range(len(ends)))


intervals_of_steps = st.builds(Every, steps=st.integers(1, 9)) | st.builds(
    Every, epochs=st.integers(1, 2)
)


@given(st.integers(1, 7), st.integers(1, 3), intervals_of_steps, st.integers(1, 5), st.data())
def test_a_run_left_at_any_event_resumes_from_the_place_that_came_with_it(
    length: int, epochs: int, interval: Every, pace: int, data: st.DataObject
):
    schedule = Schedule(length, until=Every(epochs=epochs), validate_every=interval)
    whole, left = World(), World()
    events = list(whole.train(schedule, pace=calls_of(pace)))
    at = data.draw(st.integers(0, len(events) - 1))
    for number, _ in enumerate(left.train(schedule, pace=calls_of(pace))):
        if number == at:
            break
    # As a leg does: one with every epoch done has nothing left to train.
    position = replace(left.position, is_over=left.position.epoch >= epochs)
    list(left.train(schedule, position=position, scores=left.scores, pace=calls_of(pace)))
    assert (left.steps, left.validated_at) == (whole.steps, whole.validated_at)
    ends = [[e for e in world.heard if isinstance(e, EpochEnded)] for world in (whole, left)]
    assert [(e.epoch, e.step, e.validation) for e in ends[0]] == [
        (e.epoch, e.step, e.validation) for e in ends[1]
    ]
