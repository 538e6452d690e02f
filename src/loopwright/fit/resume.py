"""Resuming: a call of `fit` in a run directory goes on where the run was saved."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

from loopwright.checkpoints.run_directory import Run
from loopwright.checkpoints.snapshot import Reached, Snapshot
from loopwright.config.edits import OnChange
from loopwright.errors import ConfigurationError, message
from loopwright.events import Event, Finished
from loopwright.exactness import Exact, Inexact, require_replayable
from loopwright.fit import declaration
from loopwright.fit.attempt import LastAttempt
from loopwright.fit.leg import FitRequest, Leg, Lent
from loopwright.fit.moment import (
    at_start_of_epoch,
    declare,
    objection,
    put_back,
    require_resumable,
    restarts_epoch,
)
from loopwright.fit.saved_leg import SavedLeg, on_disk
from loopwright.fit.sharing import Found, accepted_data, held, start_over
from loopwright.loop import signals
from loopwright.loop.schedule import Every, Place
from loopwright.sinks.log import WorkerLog
from loopwright.sinks.notify import notify
from loopwright.sinks.run_files import Files, RunFiles
from loopwright.step_warnings import warn_at_call
from loopwright.task import variables
from loopwright.task.optimizers import finalize_averages


def entry(
    leg: int, until: Every, reached: Reached | None
) -> Literal["begin", "go on", "end", "skip"]:
    """What a call of `fit` that is number `leg` of its run has to do.

    "end": nothing is left to train, but the leg has no checkpoint of its end yet.

    >>> two_epochs = Every(epochs=2)
    >>> over = Reached(leg=0, place=Place(step=20, epoch=2, is_over=True), until=two_epochs)
    >>> [entry(leg, two_epochs, over) for leg in (0, 1)], entry(0, Every(epochs=3), over)
    (['skip', 'begin'], 'go on')
    """
    if reached is None or reached.leg < leg:
        return "begin"
    if reached.leg > leg:
        return "skip"
    if reached.place.is_over:
        # A leg that was left early is over as well, unless it is now asked to go further.
        return "go on" if _is_further(until, reached.until) else "skip"
    return "end" if _is_complete(reached.place, until) else "go on"


def excess(place: Place, until: Every) -> str:
    """How far a leg has gone beyond what is asked, for people; empty if it has not.

    >>> excess(Place(step=60, epoch=5, step_in_epoch=10), Every(epochs=3))
    'at epoch 6 of the 3 epochs asked for'
    >>> excess(Place(step=30, epoch=3), Every(epochs=3))
    ''
    """
    begun = place.epoch + (place.step_in_epoch > 0)
    if until.epochs is not None and begun > until.epochs:
        return f"at epoch {begun} of the {until} asked for"
    if until.steps is not None and place.step > until.steps:
        return f"at step {place.step:,} of the {until} asked for"
    return ""


def _is_complete(place: Place, until: Every) -> bool:
    """Whether everything that is asked was done; not if something is due where the leg is."""
    if until.epochs is not None:
        return place.epoch >= until.epochs
    if until.steps is not None:
        return place.step > until.steps or (place.step == until.steps and not place.is_due)
    return place.seconds >= (until.seconds or 0.0) and not place.is_due


def _is_further(until: Every, before: Every) -> bool:
    pairs = [
        (until.epochs, before.epochs),
        (until.steps, before.steps),
        (until.seconds, before.seconds),
    ]
    return any(now is not None and then is not None and now > then for now, then in pairs)


def leg_events(
    lent: Lent,
    asked: FitRequest,
    run: Run,
    leg: int,
    attempt: LastAttempt,
    *,
    first_epoch: int,
    exact: Exact,
    on_change: OnChange,
    begun: Callable[[Leg], None],
) -> Iterator[Event]:
    """The events of one call of `fit`, number `leg` of its run: begun, resumed or skipped."""
    data, team = accepted_data(asked, exact), lent.team
    # Heard until the last checkpoint is on disk: another SIGTERM must not cut it off.
    with signals.watched() as heard, held(run, team) as last:
        found = last
        what = entry(leg, asked.until, None if found is None else found[1].reached)
        if what == "skip":
            found = run.end_of(leg)
        notes = list[str]()
        if what == "go on" and found is not None:
            notes = _restart_notes(found[1], data, asked)
            if restarts_epoch(found[1], data):
                found = found[0], at_start_of_epoch(found[1])
        changed = attempt.continued(leg, lent.task)
        # They are opened when everything was compared, and not before.
        files: Files = (
            RunFiles(run.directory, time.time)
            if team.is_chief
            else WorkerLog(run.directory, team.index, time.time)
        )

        def fitted(snapshot: Snapshot | None) -> tuple[Leg, dict[str, Any]]:
            saved = None if found is None else found[1]
            _resume_plans(lent, run, saved, is_begun=what != "begin")
            made = Leg(
                lent,
                replace(
                    asked,
                    sinks=[*asked.sinks, files],
                    is_observed=team.is_chief,
                    run_dir=run.directory,
                ),
                first_epoch=first_epoch,
                snapshot=snapshot,
                heard=heard,
            )
            begun(made)
            named, reasons = require_resumable(made, exact)
            made.inexact = data.with_reasons(reasons)
            require_replayable(made.inexact, lent.on_nan)
            known = [] if saved is None else saved.inexact.get("reasons", [])
            made.reasons = [*dict.fromkeys([*known, *made.inexact.reasons])]
            made.notes = [*([str(made.inexact)] if made.inexact else []), *notes]
            declare(made, leg, snapshot, changed)
            return made, named

        snapshot = None if what == "begin" or found is None else found[1]
        if snapshot is None:
            attempt.rewind(lent.task)
        fitting, named = fitted(snapshot)
        differs = None if snapshot is None else objection(fitting, named, snapshot, on_change)
        if differs is not None:
            if on_change != "start_over":
                raise ConfigurationError(differs)
            found, what, snapshot = start_over(run, team, leg, differs), "begin", None
            changed, notes = [], []
            fitting, named = fitted(None)
            _warn_of_trained(fitting.first_step, 0 if found is None else found[1].step)
        if what != "skip" and found is not None and team.is_chief:
            run.go_on_from(found[0])
        if snapshot is not None:
            _warn_of_excess(leg, excess(snapshot.place, asked.until))
        declaration.accept(lent.task, fitting.declared)
        resumed = None if snapshot is None else found
        if what == "skip":
            yield _skipped(fitting, named, resumed, exact)
        else:
            if team.is_chief and not asked.sets:
                _warn_of_no_validation(run)
            ends = what == "end"
            trained = SavedLeg(
                fitting, named, run, leg, files, resumed, exact, heard, attempt, ends=ends
            )
            _warn_of_changes(leg, fitting.training.step, changed)
            files.open({} if found is None else found[1].lengths, is_new_leg=what == "begin")
            # A checkpoint under way still brings these files to disk: it ends before they close.
            with contextlib.closing(files), run.written():
                try:
                    yield from trained.events()
                finally:
                    attempt.ends(named, is_over=fitting.is_over)
            team.barrier()  # nobody leaves before the chief has written everything
    heard.raise_received()


def _restart_notes(snapshot: Snapshot, data: Inexact, asked: FitRequest) -> list[str]:
    """Return what a resumed run reads again because the position in its data was not saved."""
    epoch = snapshot.place.epoch + 1
    if restarts_epoch(snapshot, data):
        return [f"restarting epoch {epoch}: the data source cannot be saved"]
    is_lost = data.loses_position or snapshot.inexact.get("loses_position")
    if is_lost and asked.steps_per_epoch is not None:
        return [
            f"epoch {epoch} reads the data source from its beginning: its position cannot be saved"
        ]
    return []


def _warn_of_trained(steps: int, expected: int) -> None:
    if steps != expected:
        warn_at_call(
            f"The task has already trained for {steps:,} steps in this process: starting over from "
            "its current weights. Build the task again to start from its initial weights."
        )


def _resume_plans(lent: Lent, run: Run, saved: Snapshot | None, *, is_begun: bool) -> None:
    """Goes by the plans that the run has recorded, also where they are newer than `saved`."""
    step = int(lent.task.step_counter.read_value())
    recorded = run.recorded_plans() if saved is None else run.plans(saved)
    if recorded is None:
        lent.piloting.go_back(step)
    else:
        step = step if saved is None else saved.step
        lent.piloting.resume(recorded, step, is_continued=is_begun)


def _skipped(fitting: Leg, named: dict[str, Any], found: Found | None, exact: Exact) -> Finished:
    if found is not None:
        put_back(fitting, named, *on_disk(found), exact)
        fitting.lent.state_is_set()
        fitting.bridge.recall()
    finalize_averages(fitting.lent.task)
    declaration.leave(fitting.lent.task)
    fitting.is_over = True
    numbers = fitting.history.history
    skipped = Finished(fitting.training.step, 0.0, "skipped", history=numbers)
    notify(fitting.asked.sinks, skipped)
    return skipped


def _warn_of_excess(leg: int, excess: str) -> None:
    if excess:
        text = f"Leg {leg + 1} of this run is already {excess}: it is complete, with that state."
        warn_at_call(text)


def _warn_of_changes(leg: int, step: int, changed: Sequence[str]) -> None:
    if changed:
        names = ", ".join(variables.shortened(changed))
        warn_at_call(
            f"This call of fit continues leg {leg + 1} from step {step:,}, with the values that "
            f"were set since the leg was interrupted: {names}."
        )


def _warn_of_no_validation(run: Run) -> None:
    names = [rule.metric for rule in run.asked_rules]
    if names:
        warn_at_call(
            message(
                f"No checkpoint can be the best by {', '.join(names)}: fit does not validate.",
                expected="validation_data or validation_split",
                received="neither",
                do="pass validation_data to fit, or leave KeepBest out of keep",
            )
        )
