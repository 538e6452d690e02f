"""The training loop: everything a run does, in the order it does it."""

from collections.abc import Callable, Iterator
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
from loopwright.schedule import Place, Schedule, after


def train(
    *,
    schedule: Schedule,
    run_steps: Callable[[int], int],  # runs that many steps; fewer mean that the epoch's data ended
    start_epoch: Callable[[], None],  # forgets the metrics of the epoch before
    report: Callable[[], Metrics],  # running values since the epoch began
    validate: Callable[[], Metrics],
    stop_requested: Callable[[], bool],
    first_step: int,  # steps done before this call of fit
    pace: Pace,
    clock: Callable[[], float],
) -> Iterator[Event]:
    """Trains to the end, yielding an event after each thing that happened.

    To stop early, stop iterating: between two events only the caller's code runs.
    """
    began, place, leaving = clock(), Place(), False
    yield Started(
        step=first_step,
        epochs=schedule.until.epochs,
        steps_per_epoch=schedule.steps_per_epoch,
        total_steps=schedule.total_steps,
    )
    while True:
        epoch_began, epoch, scores, ended = clock(), place.epoch, {}, False
        start_epoch()
        yield EpochStarted(epoch=epoch, step=first_step + place.step)

        while not ended:
            planned = schedule.next_stop(place, at_most_steps=pace.at_most_steps)
            asked = planned.step - place.step
            call_began = clock()
            ran = run_steps(asked)
            call_seconds = clock() - call_began
            pace.add(steps=ran, seconds=call_seconds)

            here = replace(
                place,
                step=place.step + ran,
                step_in_epoch=place.step_in_epoch + ran,
                seconds=clock() - began,
            )
            means = report()
            if ran:
                yield Trained(
                    step=first_step + here.step,
                    epoch=epoch,
                    step_in_epoch=here.step_in_epoch,
                    steps=ran,
                    seconds=call_seconds,
                    metrics=means,
                )
            leaving = stop_requested()
            stop = schedule.stop_at(here, epoch_ended=ran < asked, leaving=leaving)
            if stop.validate:
                validation_began = clock()
                scores = validate()
                yield Validated(
                    step=first_step + here.step,
                    epoch=epoch,
                    seconds=clock() - validation_began,
                    metrics=scores,
                )
            steps_in_epoch, ended = here.step_in_epoch, stop.ends_epoch
            place = after(stop, replace(place, seconds=here.seconds))

        yield EpochEnded(
            epoch=epoch,
            step=first_step + place.step,
            steps=steps_in_epoch,
            seconds=clock() - epoch_began,
            metrics=means,
            validation=scores,
        )
        # A callback may ask to stop when it hears the end of an epoch.
        if stop.ends_run or stop_requested():
            break

    finished_early = leaving or not stop.ends_run
    yield Finished(
        step=first_step + place.step,
        seconds=clock() - began,
        reason="stopped" if finished_early else "complete",
    )
