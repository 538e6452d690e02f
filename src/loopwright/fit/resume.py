"""A call of `fit` in a run directory: begun, resumed where the run was saved, or skipped."""

import contextlib
import os
import time
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any, Literal

from loopwright.checkpoints.run_directory import Run
from loopwright.checkpoints.snapshot import Snapshot
from loopwright.config.edits import OnChange
from loopwright.config.file import saved_in
from loopwright.dispatch import RunFile, notify
from loopwright.distribute.team import Team
from loopwright.errors import ConfigurationError, LoopwrightError, NotFiniteError, message
from loopwright.events import Event, Finished
from loopwright.exactness import Exact, Inexact, require_replayable
from loopwright.fit import declaration
from loopwright.fit.attempt import LastAttempt
from loopwright.fit.journal import RunFiles, run_files
from loopwright.fit.leg import Leg
from loopwright.fit.moment import (
    at_start_of_epoch,
    declare,
    objection,
    put_back,
    require_resumable,
    restarts_epoch,
)
from loopwright.fit.parts import Parts
from loopwright.fit.request import FitRequest, accepted_data
from loopwright.fit.saved_leg import Found, SavedLeg, as_left, newest
from loopwright.loop import signals
from loopwright.loop.schedule import Every, Place, every
from loopwright.step_warnings import warn_at_call
from loopwright.task import variables
from loopwright.task.optimizers import finalize_averages


def entry(
    leg: int, until: Every, reached: Snapshot | None
) -> Literal["begin", "resume", "end", "skip"]:
    """Return what a call of `fit`, number `leg` of its run, has to do after the newest checkpoint.

    "end": nothing is left to train, but the end of the leg is not saved yet.
    """
    if reached is None or reached.leg < leg:
        return "begin"
    if reached.leg > leg:
        return "skip"
    if reached.place.is_over:
        # A leg that was left early is over as well, unless it is now asked to go further.
        if is_further(until, every(reached.until)):
            return "resume"
        return "end" if reached.end.get("is_due") else "skip"
    return "end" if _is_complete(reached.place, until) else "resume"


def excess(place: Place, until: Every) -> str:
    """Return in words how far a leg is beyond what is asked; empty if it is not.

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
    """Return whether everything asked was done, and nothing is due at this place."""
    if until.epochs is not None:
        return place.epoch >= until.epochs
    if until.steps is not None:
        return place.step > until.steps or (place.step == until.steps and not place.is_due)
    return place.seconds >= (until.seconds or 0.0) and not place.is_due


def is_further(until: Every, before: Every) -> bool:
    """Return whether a target is beyond an earlier one of the same kind."""
    pairs = [
        (until.epochs, before.epochs),
        (until.steps, before.steps),
        (until.seconds, before.seconds),
    ]
    return any(now is not None and then is not None and now > then for now, then in pairs)


def leg_events(
    parts: Parts,
    request: FitRequest,
    run: Run,
    number: int,
    attempt: LastAttempt,
    *,
    first_epoch: int,
    exact: Exact,
    on_change: OnChange,
) -> Generator[Event]:
    """Run one call of `fit`, leg `number` of its run: begun, resumed or skipped."""
    data, team = accepted_data(request, exact), parts.team
    # Watched until the last checkpoint is on disk: another SIGTERM must not cut it off.
    with signals.watched() as received, contextlib.ExitStack() as opened:
        # Held by the chief; the newest checkpoint is the same for all.
        found = last = newest(run, team, lambda: opened.enter_context(run.opened()))
        what = entry(number, request.until, None if found is None else found[1])
        if what == "skip":
            found = run.end_of(number)
        notes = list[str]()
        if what == "resume" and found is not None:
            notes = _restart_notes(found[1], data, request)
            if restarts_epoch(found[1], data):
                found = found[0], at_start_of_epoch(found[1])
        changed = attempt.continued(number, parts.task)
        # They are opened when everything was compared, and not before.
        files = run_files(run.directory, team.index, time.time)

        def built(snapshot: Snapshot | None) -> tuple[Leg, dict[str, Any]]:
            saved = None if found is None else found[1]
            _resume_plans(parts, run, saved, is_begun=what != "begin")
            leg = Leg(
                parts,
                replace(
                    request,
                    # First: what a tracker sends was written into the run directory before.
                    sinks=[files, *request.sinks],
                    is_observed=team.is_chief,
                    run_dir=run.directory,
                ),
                first_epoch=first_epoch,
                snapshot=snapshot,
                signals=received,
            )
            named, reasons = require_resumable(leg, exact)
            leg.inexact = data.with_reasons(reasons)
            require_replayable(leg.inexact, parts.engine.on_nan)
            known = [] if saved is None else saved.inexact.get("reasons", [])
            leg.reasons = [*dict.fromkeys([*known, *leg.inexact.reasons])]
            leg.notes = [*([str(leg.inexact)] if leg.inexact else []), *notes]
            declare(leg, number, snapshot, changed)
            return leg, named

        snapshot = None if what == "begin" or found is None else found[1]
        if snapshot is None:
            attempt.rewind(parts.task)
        leg, named = built(snapshot)
        differs = None if snapshot is None else objection(leg, named, snapshot, on_change)
        if snapshot is not None and attempt.open_until is not None:
            differs = _left_open(differs, attempt.open_until, request.until)
        if differs is not None:
            if on_change != "start_over":
                raise ConfigurationError(differs)
            found, what, snapshot = _start_over(run, team, number, differs), "begin", None
            changed, notes = [], []
            leg, named = built(None)
            _warn_of_trained(leg.first_step, 0 if found is None else found[1].step)
        if what != "skip" and found is not None and team.is_chief:
            run.set_aside_after(found[0])
        if snapshot is not None:
            _warn_of_excess(number, excess(snapshot.place, request.until))
        declaration.accept(parts.task, leg.declared)
        resumed = None if snapshot is None else found
        if what == "skip":
            skipped = _skipped(leg, named, resumed, exact)
            if resumed is not None and last is not None and resumed[0].step == last[0].step:
                _finish(files, resumed[1], skipped, leg.reasons)
            yield skipped
        else:
            if team.is_chief and not request.sets:
                warn_of_no_validation(run)
            ends = what == "end"
            saved_leg = SavedLeg(
                leg, named, run, number, files, resumed, exact, received, attempt, ends=ends
            )
            _warn_of_changes(number, leg.stepper.step, changed)
            attempt.open_until = None
            files.open({} if found is None else found[1].lengths, is_new_leg=what == "begin")
            # A checkpoint under way still brings these files to disk: it ends before they close.
            with contextlib.closing(files), run.written():
                try:
                    yield from leg.told(saved_leg.events())
                except Exception as error:
                    _add_replay_hint(error, leg, run)
                    raise
                finally:
                    attempt.ends(named, is_over=leg.is_over)
            team.barrier()  # no worker leaves before the chief has written everything
    received.raise_received()


def _start_over(run: Run, team: Team, leg: int, why: str) -> Found | None:
    """Move a leg and the later ones aside; return the end of the previous leg."""

    def move() -> int:
        aside = run.start_over(leg)
        differs = why.partition("\n  do: ")[0]
        warn_at_call(f"{differs}\nStarting over; the previous run is kept in {aside}.")
        return 0

    team.from_chief(move)
    return run.end_of(leg - 1) if leg else None


def _add_replay_hint(error: Exception, leg: Leg, run: Run) -> None:
    """Add to an error how to replay the step that raised it, if the run can be replayed."""
    step = error.step if isinstance(error, NotFiniteError) else leg.stepper.failed_step
    if step is None or leg.inexact or not leg.parts.team.is_alone:
        return
    config = None
    with contextlib.suppress(LoopwrightError):
        config = saved_in(run.directory)
    how = f"trainer.replay({step}, ...) with the arguments of fit"
    if config is not None:
        code = "".join(f" --task {name}" for name in config.code)
        how = f"loopwright replay {os.fspath(run.directory)} --step {step}{code}"
    hint = f"to look into this step: {how}"
    if isinstance(error, LoopwrightError) and error.args:
        error.args = (f"{error.args[0]}; {hint}", *error.args[1:])
    else:
        error.add_note(hint)


def _left_open(differs: str | None, before: Every, until: Every) -> str | None:
    """Return why a call of `fit` does not continue the loop over `events` that was left open."""
    finish = "to finish a loop that you leave early, write `with trainer.events(...) as events:`"
    if differs is None and until != before:
        return message(
            "The last loop over events() was left before its end, and this call asks for more or "
            "less.",
            expected=f"{before}, as in that loop: this call continues it",
            received=str(until),
            do=f"ask for {before}; {finish} around it",
        )
    return None if differs is None else f"{differs}; {finish} around it"


def _restart_notes(snapshot: Snapshot, data: Inexact, request: FitRequest) -> list[str]:
    """Return what a resumed run reads again because the position in its data was not saved."""
    epoch = snapshot.place.epoch + 1
    if restarts_epoch(snapshot, data):
        return [f"restarting epoch {epoch}: the data source cannot be saved"]
    is_lost = data.loses_position or snapshot.inexact.get("loses_position")
    if is_lost and request.steps_per_epoch is not None:
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


def _resume_plans(parts: Parts, run: Run, saved: Snapshot | None, *, is_begun: bool) -> None:
    """Follow the plans that the run has recorded, also where they are newer than `saved`."""
    step = int(parts.task.step_counter.read_value())
    recorded = run.recorded_plans() if saved is None else run.plans(saved)
    if recorded is None:
        parts.engine.plans.log.go_back(step)
    else:
        step = step if saved is None else saved.step
        parts.engine.plans.resume(recorded, step, is_continued=is_begun)


def _skipped(leg: Leg, named: dict[str, Any], found: Found | None, exact: Exact) -> Finished:
    if found is not None:
        put_back(leg, named, *as_left(found), exact)
        leg.parts.state.is_set_by_leg()
        leg.callbacks.recall()
    if found is None or not found[1].has_end:
        finalize_averages(leg.parts.task)
    declaration.leave(leg.parts.task)
    leg.is_over = True
    skipped = Finished(
        leg.stepper.step,
        0.0,
        "skipped",
        history=leg.history.history,
        run_dir=leg.request.run_dir,
    )
    notify(leg.request.sinks, skipped)
    return skipped


def _finish(files: RunFile, end: Snapshot, skipped: Finished, inexact: Sequence[str]) -> None:
    """Write the files of a run that was killed between its last checkpoint and its end."""
    reason = "complete" if _is_complete(end.place, every(end.until)) else "stopped"
    finished = replace(skipped, reason=reason, seconds=end.place.seconds)
    if isinstance(files, RunFiles):
        files.finish(end.lengths, finished, inexact)


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


def warn_of_no_validation(run: Run | None) -> None:
    """Warn of rules that keep the best checkpoint, where nothing is scored."""
    names = [] if run is None else [rule.metric for rule in run.asked_rules]
    if names:
        warn_at_call(
            message(
                f"No checkpoint can be the best by {', '.join(names)}: fit does not validate.",
                expected="validation_data or validation_split",
                received="neither",
                do="pass validation_data to fit, or leave KeepBest out of keep",
            )
        )
