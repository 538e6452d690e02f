"""The training loop: everything a run does, in the order it does it."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from loopwright.events import (
    EpochEnded,
    EpochStarted,
    Event,
    Finished,
    Metrics,
    Saved,
    Started,
    Trained,
    Validated,
)
from loopwright.loop.clock import Pace
from loopwright.loop.schedule import (
    Place,
    Schedule,
    after,
    moved,
    validated,
)


def train(
    *,
    schedule: Schedule,
    place: Place,  # where to begin; further on if a run is resumed
    scores: Metrics,  # of the last validation in this epoch
    run_steps: Callable[[int], int],  # runs that many steps; fewer mean that the epoch's data ended
    start_epoch: Callable[[], None],  # forgets the metrics of the epoch before
    report: Callable[[], Metrics],  # running values since the epoch began
    news: Callable[[], Iterable[Event]],  # what was found out about the run, to be told
    validate: Callable[[], Metrics | None],  # None: a signal came
    is_best: Callable[[int, Metrics], bool],  # whether the scores after a step are worth saving
    save: Callable[[Place, Metrics], None],
    save_best: Callable[[Place, Metrics], None],  # where no other checkpoint is due
    stop_requested: Callable[[], bool],
    interrupted: Callable[[], bool],  # whether a signal came
    first_step: int,  # steps done before this call of fit
    pace: Pace,
    clock: Callable[[], float],
) -> Iterator[Event]:
    """Trains to the end, yielding an event after each thing that happened.

    To stop early, stop iterating: between two events only the caller's code runs.
    """
    began, leaving = clock() - place.seconds, False
    yield Started(
        step=first_step + place.step,
        epochs=schedule.until.epochs,
        steps_per_epoch=schedule.steps_per_epoch,
        total_steps=schedule.total_steps,
        resumed_steps=place.step,
    )
    while not place.is_over:
        if not place.is_due:
            if place.step_in_epoch == 0:
                start_epoch()
                scores = {}
                yield EpochStarted(epoch=place.epoch, step=first_step + place.step)
            asked = schedule.next_stop(place, at_most_steps=pace.at_most_steps).step - place.step
            call_began = clock()
            ran = run_steps(asked)
            call_seconds = clock() - call_began
            pace.add(steps=ran, seconds=call_seconds)
            place = moved(place, steps=ran, seconds=clock() - began, epoch_ended=ran < asked)
            if ran:
                yield Trained(
                    step=first_step + place.step,
                    epoch=place.epoch,
                    step_in_epoch=place.step_in_epoch,
                    steps=ran,
                    seconds=call_seconds,
                    metrics=report(),
                )
                yield from news()

        leaving = stop_requested()
        stop, step = schedule.stop_at(place, leaving=leaving), first_step + place.step
        best = False
        if stop.validate and not interrupted():
            validation_began = clock()
            found = validate()
            if found is not None:
                scores, best = found, is_best(step, found)
                seconds = clock() - validation_began
                yield Validated(step=step, epoch=place.epoch, seconds=seconds, metrics=scores)
                place = validated(place, seconds=clock() - began)
            if stop_requested():  # perhaps because of these scores
                leaving, stop = True, schedule.stop_at(place, leaving=True)
        if interrupted():
            break
        if stop.ends_epoch:
            yield EpochEnded(
                epoch=place.epoch,
                step=step,
                steps=place.step_in_epoch,
                seconds=clock() - began - place.epoch_began_seconds,
                metrics=report(),
                validation=scores,
            )
            if stop_requested():  # a callback may ask at the end of an epoch
                leaving, stop = True, schedule.stop_at(place, leaving=True)
        saves = stop.save or best
        place = after(replace(stop, save=saves), place, seconds=clock() - began)
        if saves:
            saving_began = clock()
            (save if stop.save else save_best)(place, scores)
            yield Saved(step=step, seconds=clock() - saving_began)

    if interrupted():
        save(replace(place, seconds=clock() - began), scores)
    reason = "interrupted" if interrupted() else "stopped" if leaving else "complete"
    yield Finished(
        step=first_step + place.step,
        seconds=clock() - began,
        reason=reason,
        saved=interrupted(),
    )
