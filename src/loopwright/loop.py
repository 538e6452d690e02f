"""The training loop: everything a run does, in the order it does it."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from loopwright.events import (
    EpochEnded,
    EpochStarted,
    Event,
    Finished,
    Metrics,
    Started,
    Trained,
    Validated,
)
from loopwright.meter import Pace
from loopwright.schedule import Place, Schedule, Stop, after, moved


def train(
    *,
    schedule: Schedule,
    run_steps: Callable[[int], int],  # runs that many steps; fewer mean that the epoch's data ended
    start_epoch: Callable[[], None],  # forgets the metrics of the epoch before
    report: Callable[[], Metrics],  # running values since the epoch began
    news: Callable[[], Iterable[Event]],  # what was found out about the run, to be told
    validate: Callable[[], Metrics],
    stop_requested: Callable[[], bool],
    first_step: int,  # steps done before this call of fit
    pace: Pace,
    clock: Callable[[], float],
) -> Iterator[Event]:
    """Trains to the end, yielding an event after each thing that happened.

    To stop early, stop iterating: between two events only the caller's code runs.
    """
    began = epoch_began = clock()
    place, leaving = Place(), False
    scores: Metrics = {}
    stop = Stop(step=0, ends_epoch=True)  # as if an epoch had just ended
    yield Started(
        step=first_step,
        epochs=schedule.until.epochs,
        steps_per_epoch=schedule.steps_per_epoch,
        total_steps=schedule.total_steps,
    )
    while not (leaving or stop.ends_run):
        if stop.ends_epoch:
            start_epoch()
            scores = {}
            epoch_began = clock()
            yield EpochStarted(epoch=place.epoch, step=first_step + place.step)

        asked = schedule.next_stop(place, at_most_steps=pace.at_most_steps).step - place.step
        call_began = clock()
        ran = run_steps(asked)
        call_seconds = clock() - call_began
        pace.add(steps=ran, seconds=call_seconds)
        here = moved(place, steps=ran, seconds=clock() - began)
        step, means = first_step + here.step, report()
        if ran:
            yield Trained(
                step=step,
                epoch=here.epoch,
                step_in_epoch=here.step_in_epoch,
                steps=ran,
                seconds=call_seconds,
                metrics=means,
            )
            yield from news()

        leaving = stop_requested()
        stop = schedule.stop_at(here, epoch_ended=ran < asked, leaving=leaving)
        if stop.validate:
            validation_began = clock()
            scores = validate()
            seconds = clock() - validation_began
            yield Validated(step=step, epoch=here.epoch, seconds=seconds, metrics=scores)
            if stop_requested():  # perhaps because of these scores
                leaving, stop = True, replace(stop, ends_epoch=True, ends_run=True)
        if stop.ends_epoch:
            yield EpochEnded(
                epoch=here.epoch,
                step=step,
                steps=here.step_in_epoch,
                seconds=clock() - epoch_began,
                metrics=means,
                validation=scores,
            )
            leaving = leaving or stop_requested()  # a callback may ask at the end of an epoch
        place = after(stop, here, seconds=clock() - began)

    yield Finished(
        step=first_step + place.step,
        seconds=clock() - began,
        reason="stopped" if leaving else "complete",
    )
