"""Resuming: a call of `fit` in a run directory goes on where the run was saved."""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Literal

from loopwright import environment, plan_history, repeatable, signals, state, tensors
from loopwright.data.source import changed_data
from loopwright.errors import ConfigurationError, LoopwrightWarning, StepError, message
from loopwright.events import EpochEnded, Event, Finished, Metrics, Trained
from loopwright.fitting import Asked, Fitting, Lent, finalize_averages, tell
from loopwright.legs import entry
from loopwright.manifest import Checkpoint
from loopwright.runs import Run, Snapshot
from loopwright.schedule import Place

Exact = Literal["warn", "require"]


def leg_events(
    lent: Lent,
    asked: Asked,
    run: Run,
    leg: int,
    *,
    first_epoch: int,
    exact: Exact,
    begun: Callable[[Fitting], None],
) -> Iterator[Event]:
    """The events of one call of `fit`, number `leg` of its run: begun, resumed or skipped."""
    refuse_data(asked)
    with run.opened(), signals.watched() as heard:
        found = run.newest()
        what = entry(leg, asked.until, None if found is None else found[1].reached)
        if what == "skip":
            found = run.end_of(leg)
        checkpoint, snapshot = (None, None) if what == "begin" or found is None else found
        fitting = Fitting(
            lent, asked, first_epoch=first_epoch, snapshot=snapshot, is_interrupted=heard.received
        )
        begun(fitting)
        named = require_resumable(fitting)
        exact_until: int | None = None
        if checkpoint is not None and snapshot is not None:
            exact_until = restore(fitting, named, checkpoint, snapshot, exact)
        if what == "skip":
            finalize_averages(lent.task)
            skipped = Finished(fitting.training.step, 0.0, "skipped")
            tell(asked.sinks, skipped)
            yield skipped
            return

        def save(place: Place, scores: Metrics) -> None:
            with fitting.watch.timing("checkpoint"):
                held = tensors.snapshot(named) | fitting.bridge.tensors()
                run.save(taken(fitting, leg, place, scores, named, exact_until), held)

        place = Place() if snapshot is None else replace(snapshot.place, is_over=False)
        if snapshot is not None:
            run.write_plans(lent.piloting.history)  # what came after the checkpoint is undone
        lent.piloting.record(run.write_plans)
        last = place
        try:
            for event in fitting.events(place, {} if snapshot is None else snapshot.scores, save):
                last = _after(last, event, fitting.first_step)
                yield event
        except GeneratorExit:
            save(replace(last, is_over=True), {})
            raise
    heard.raise_received()


def refuse_data(asked: Asked) -> None:
    """Raises in words if the data has no place that could be found again."""
    objection = None if asked.data is None else asked.data.objection_to_resume()
    if objection is not None:
        raise ConfigurationError(objection)


def require_resumable(fitting: Fitting) -> dict[str, Any]:
    """Every variable of the task by name; raises if the step uses what could not be saved."""
    lent = fitting.lent
    spec = None if fitting.feed is None else fitting.feed.batch_spec
    built = lent.runners.built("train_step", spec)
    named = state.named(lent.task)
    title = f"{type(lent.task).__name__}.train_step"
    state.require_complete(named, built.captured, title)
    drawn = repeatable.unrepeatable(built.operations)
    if drawn:
        raise StepError(
            message(
                f"{title} draws random numbers that cannot be repeated when it is resumed.",
                expected="random numbers from a state that is saved with the run",
                received=", ".join(drawn),
                do="hold a keras.random.SeedGenerator or a tf.random.Generator in the task and "
                "draw from it; or train without run_dir",
            )
        )
    return named


def taken(
    fitting: Fitting,
    leg: int,
    place: Place,
    scores: Metrics,
    named: dict[str, Any],
    exact_until: int | None,
) -> Snapshot:
    """The moment as it is now; the tensors are taken beside it."""
    asked, training = fitting.asked, fitting.training
    return Snapshot(
        leg=leg,
        until=str(asked.until),
        place=place,
        scores=dict(scores),
        first_step=fitting.first_step,
        first_epoch=fitting.first_epoch,
        read=training.read,
        data={} if asked.data is None else asked.data.fingerprint(),
        tally=fitting.tally.state(),
        history=fitting.history.state(),
        callbacks=fitting.bridge.state(),
        plans=fitting.lent.piloting.history.content(),
        variables=state.table(named),
        environment=environment.environment(),
        exact_until_step=exact_until,
    )


def restore(
    fitting: Fitting,
    named: dict[str, Any],
    checkpoint: Checkpoint,
    snapshot: Snapshot,
    exact: Exact,
) -> int | None:
    """Puts everything back; nothing is touched before everything was read and compared.

    Returns since which step the bits may differ from those of a run without interruption.
    """
    changed = state.compare(snapshot.variables, state.table(named))
    if changed is not None:
        raise ConfigurationError(changed)
    data = fitting.asked.data
    other = "" if data is None else changed_data(snapshot.data, data.fingerprint())
    if other:
        raise ConfigurationError(
            message(
                "This run was saved with other data.",
                expected="the data that the run began with",
                received=other,
                do="pass the same data and batch_size, or start over with fresh=True",
            )
        )
    exact_until = _still_exact(snapshot, exact)
    read = tensors.read(checkpoint.path / "state")
    tensors.assign(named, read)
    fitting.tally.restore(snapshot.tally)
    fitting.history.restore(snapshot.history)
    fitting.bridge.restore(snapshot.callbacks, read)
    fitting.lent.piloting.history = plan_history.parsed(snapshot.plans).until(snapshot.step)
    place, length = snapshot.place, fitting.schedule.steps_per_epoch
    in_epoch = 0 < place.step_in_epoch != length and not place.epoch_ended
    fitting.training.resume(snapshot.read, place.step_in_epoch, in_epoch=in_epoch)
    return exact_until


def _after(place: Place, event: Event, first_step: int) -> Place:
    """Where a run is after an event, for somebody who leaves it there."""
    if isinstance(event, Trained):
        step = event.step - first_step
        return replace(place, step=step, epoch=event.epoch, step_in_epoch=event.step_in_epoch)
    if isinstance(event, EpochEnded):
        return replace(place, epoch=event.epoch + 1, step_in_epoch=0)
    return place


def _still_exact(snapshot: Snapshot, exact: Exact) -> int | None:
    changes = environment.changes(snapshot.environment, environment.environment())
    if not changes:
        return snapshot.exact_until_step
    if exact == "require":
        raise ConfigurationError(
            message(
                "This run cannot be resumed bit for bit: its environment has changed.",
                expected="the environment that the checkpoint was written in",
                received="; ".join(changes),
                do='resume there, or pass exact="warn" to go on all the same',
            )
        )
    until = snapshot.step if snapshot.exact_until_step is None else snapshot.exact_until_step
    warnings.warn(
        f"The environment has changed ({'; '.join(changes)}): this run goes on, and is bit-exact "
        f"until step {until}.",
        LoopwrightWarning,
        stacklevel=2,
    )
    return until
