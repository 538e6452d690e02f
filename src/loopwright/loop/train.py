"""The training loop: everything a run does, in the order it does it."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Protocol

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
from loopwright.loop.schedule import Position, Schedule, after, at_end_of_epoch, moved, validated

Happened = tuple[Event, Position, Metrics]
"""An event, where the run is then, and the scores of the last validation in this epoch."""


class Steps(Protocol):
    """The steps of a run, on its data."""

    def start_epoch(self, position: Position) -> None:
        """Reset the metrics of the epoch that begins at this position."""
        ...

    def run_steps(self, position: Position, steps: int) -> int:
        """Run that many steps from here; fewer mean that the data of the epoch ended."""
        ...

    def report(self) -> Metrics:
        """Return the metrics since the epoch began."""
        ...

    def pending_events(self) -> Iterable[Event]:
        """Return what else happened in the last steps."""
        ...


class Stops(Protocol):
    """What is done between steps, and what can end the run there."""

    def clock(self) -> float:
        """Return the time in seconds."""
        ...

    def validate(self) -> Metrics | None:
        """Return the scores on the validation data; None if a signal arrived."""
        ...

    def is_best(self, step: int, scores: Metrics) -> bool:
        """Return whether the scores after a step are worth a checkpoint."""
        ...

    def save(self, position: Position, scores: Metrics, *, is_due: bool = True) -> None:
        """Save a checkpoint; not `is_due`: only because its scores are among the best."""
        ...

    def stop_requested(self) -> bool:
        """Return whether a callback asked to stop training."""
        ...

    def interrupted(self) -> bool:
        """Return whether a signal arrived."""
        ...


def train(
    schedule: Schedule,
    steps: Steps,
    stops: Stops,
    *,
    position: Position,  # where to start; a resumed run starts further on
    scores: Metrics,  # of the last validation in this epoch
    first_step: int,  # steps done before this call of fit
    pace: Pace,
) -> Iterator[Happened]:
    """Train to the end, yielding each event with the position that a run left there resumes from.

    To stop early, stop iterating: between two events only the caller's code runs.
    """
    began, leaving = stops.clock() - position.seconds, False
    started = Started(
        step=first_step + position.step,
        epochs=schedule.until.epochs,
        steps_per_epoch=schedule.steps_per_epoch,
        total_steps=schedule.total_steps,
        resumed_steps=position.step,
    )
    yield started, position, scores
    while not position.is_over:
        if not position.is_due:
            if position.step_in_epoch == 0:
                steps.start_epoch(position)
                scores = {}
                yield (
                    EpochStarted(epoch=position.epoch, step=first_step + position.step),
                    position,
                    scores,
                )
                leaving = stops.stop_requested()  # Keras runs one more step then
            most_steps = 1 if leaving else pace.at_most_steps
            asked = schedule.next_stop(position, at_most_steps=most_steps).step - position.step
            call_began = stops.clock()
            ran = steps.run_steps(position, asked)
            call_seconds = stops.clock() - call_began
            pace.add(steps=ran, seconds=call_seconds)
            position = moved(
                position, steps=ran, seconds=stops.clock() - began, epoch_ended=ran < asked
            )
            if ran:
                trained = Trained(
                    step=first_step + position.step,
                    epoch=position.epoch,
                    step_in_epoch=position.step_in_epoch,
                    steps=ran,
                    seconds=call_seconds,
                    metrics=steps.report(),
                )
                yield trained, position, scores
                for event in steps.pending_events():
                    yield event, position, scores

        leaving = stops.stop_requested()
        stop, step = schedule.stop_at(position, leaving=leaving), first_step + position.step
        best = False
        if stop.validate and not stops.interrupted():
            validation_began = stops.clock()
            found = stops.validate()
            if found is not None:
                scores, best = found, stops.is_best(step, found)
                seconds = stops.clock() - validation_began
                position = validated(position, seconds=stops.clock() - began)
                told = Validated(step=step, epoch=position.epoch, seconds=seconds, metrics=scores)
                yield told, position, scores
            if stops.stop_requested():  # perhaps because of these scores
                leaving, stop = True, schedule.stop_at(position, leaving=True)
        if stops.interrupted():
            break
        if stop.ends_epoch:
            ended = EpochEnded(
                epoch=position.epoch,
                step=step,
                steps=position.step_in_epoch,
                seconds=stops.clock() - began - position.epoch_began_seconds,
                metrics=steps.report(),
                validation=scores,
            )
            yield ended, at_end_of_epoch(position, seconds=stops.clock() - began), scores
            if stops.stop_requested():  # a callback may ask at the end of an epoch
                leaving, stop = True, schedule.stop_at(position, leaving=True)
        saves = stop.save or best
        position = after(replace(stop, save=saves), position, seconds=stops.clock() - began)
        if saves:
            saving_began = stops.clock()
            stops.save(position, scores, is_due=stop.save)
            yield Saved(step=step, seconds=stops.clock() - saving_began), position, scores

    interrupted = stops.interrupted()
    if interrupted:
        position = replace(position, seconds=stops.clock() - began)
        stops.save(position, scores)
    reason = "interrupted" if interrupted else "stopped" if leaving else "complete"
    finished = Finished(
        step=first_step + position.step,
        seconds=stops.clock() - began,
        reason=reason,
        saved=interrupted,
    )
    yield finished, position, scores
