"""Calls of `fit` in a run directory: begun, resumed where they were saved, or skipped."""

import contextlib
import os
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, final

from loopwright.checkpoints.run_directory import Run
from loopwright.checkpoints.snapshot import Saved, Snapshot, load_end
from loopwright.config.file import saved_in
from loopwright.dispatch import RunFile, notify
from loopwright.distribute.team import Team
from loopwright.errors import ConfigurationError, LoopwrightError, NotFiniteError, message
from loopwright.events import Event, Finished
from loopwright.exactness import Exact, Inexact
from loopwright.fit import run_spec
from loopwright.fit.attempt import LastAttempt
from loopwright.fit.checkpointing import DiskCheckpoints, newest, still_exact
from loopwright.fit.journal import RunFiles, run_files
from loopwright.fit.parts import Parts
from loopwright.fit.request import FitRequest, Start, accepted_data
from loopwright.fit.session import Session
from loopwright.fit.snapshots import at_start_of_epoch, objection, restarts_epoch
from loopwright.loop import signals
from loopwright.loop.schedule import Every, Position, every
from loopwright.loop.signals import Signals
from loopwright.run_changes import OnChange
from loopwright.step_warnings import warn_at_call
from loopwright.task import variables
from loopwright.task.optimizers import finalize_averages

What = Literal["begin", "resume", "end", "skip"]


def entry(leg: int, until: Every, reached: Snapshot | None) -> What:
    """Return what a call of `fit`, number `leg` of its run, has to do after the newest checkpoint.

    "end": nothing is left to train, but the end of the leg is not saved yet.
    """
    if reached is None or reached.leg < leg:
        return "begin"
    if reached.leg > leg:
        return "skip"
    if reached.position.is_over:
        # A leg that was left early is over as well, unless it is now asked to go further.
        if is_further(until, every(reached.until)):
            return "resume"
        return "end" if reached.end.get("is_due") else "skip"
    return "end" if _is_complete(reached.position, until) else "resume"


def excess(position: Position, until: Every) -> str:
    """Return in words how far a leg is beyond what is asked; empty if it is not.

    >>> excess(Position(step=60, epoch=5, step_in_epoch=10), Every(epochs=3))
    'at epoch 6 of the 3 epochs asked for'
    >>> excess(Position(step=30, epoch=3), Every(epochs=3))
    ''
    """
    begun = position.epoch + (position.step_in_epoch > 0)
    if until.epochs is not None and begun > until.epochs:
        return f"at epoch {begun} of the {until} asked for"
    if until.steps is not None and position.step > until.steps:
        return f"at step {position.step:,} of the {until} asked for"
    return ""


def _is_complete(position: Position, until: Every) -> bool:
    """Return whether everything asked was done, and nothing is due at this position."""
    if until.epochs is not None:
        return position.epoch >= until.epochs
    if until.steps is not None:
        return position.step > until.steps or (position.step == until.steps and not position.is_due)
    return position.seconds >= (until.seconds or 0.0) and not position.is_due


def is_further(until: Every, before: Every) -> bool:
    """Return whether a target is beyond an earlier one of the same kind."""
    pairs = [
        (until.epochs, before.epochs),
        (until.steps, before.steps),
        (until.seconds, before.seconds),
    ]
    return any(now is not None and then is not None and now > then for now, then in pairs)


@dataclass(frozen=True)
class Continuation:
    """What a call of `fit` does, and after which checkpoint."""

    what: What
    saved: Saved | None
    notes: Sequence[str] = ()
    edited: Sequence[str] = ()
    """Variables that were set by hand since the call was interrupted in this process."""

    @property
    def snapshot(self) -> Snapshot | None:
        """The moment of the same call of `fit` to continue from; None: it begins."""
        return None if self.what == "begin" or self.saved is None else self.saved[1]


@final
class SavedRun:
    """The calls of `fit` of a trainer with a run directory."""

    def __init__(self, run: Run, exact: Exact, on_change: OnChange) -> None:
        self.run = run
        self.exact: Exact = exact
        self.on_change: OnChange = on_change
        self.attempt = LastAttempt()
        """At the call of `fit` that was begun last, in this process."""

    def begin(
        self, parts: Parts, request: FitRequest, number: int, first_epoch: int
    ) -> Generator[Event]:
        """Return the events of call `number` of the run: begun, resumed or skipped."""
        parts.state.trains()
        team, run = parts.team, self.run
        with contextlib.ExitStack() as opened:
            opened.enter_context(team.losses_explained())
            # Watched until the last checkpoint is on disk: another SIGTERM must not cut it off.
            received = opened.enter_context(_watch_signals())
            # Held by the chief; the newest checkpoint is the same for all.
            last = newest(run, team, lambda: opened.enter_context(run.opened()))
            call = _SavedCall(self, parts, request, number, first_epoch, received)
            entry = call.find(last)
            session, checkpoints = call.build(entry)
            differs = call.differs(session, entry)
            if differs is not None:
                entry = call.start_over(differs)
                session, checkpoints = call.build(entry)
                before = 0 if entry.saved is None else entry.saved[0].step
                _warn_of_trained(session.first_step, before)
            if entry.what != "skip" and entry.saved is not None and team.is_chief:
                run.set_aside_after(entry.saved[0])
            if entry.snapshot is not None:
                _warn_of_excess(number, excess(entry.snapshot.position, request.until))
            run_spec.accept(parts.task, session.declared)
            if entry.what == "skip":
                return (event for event in [call.skip(session, entry, last)])
            if team.is_chief and not request.sets:
                warn_of_no_validation(run)
            resumed = None if entry.snapshot is None else entry.saved
            checkpoints.begin(session, resumed, self.exact)
            _warn_of_changes(number, session.step, entry.edited)
            lengths = {} if entry.saved is None else entry.saved[1].lengths
            is_new = entry.what == "begin"
            opened.enter_context(checkpoints.writing(session, lengths, is_new=is_new))
            opened.enter_context(_replay_hints(session, run))
            return session.events(opened.pop_all())


@final
class _SavedCall:
    """One call of `fit` in a run directory, until its session starts."""

    def __init__(
        self,
        owner: SavedRun,
        parts: Parts,
        request: FitRequest,
        number: int,
        first_epoch: int,
        received: Signals,
    ) -> None:
        self._owner, self._run, self._parts = owner, owner.run, parts
        self._number, self._first_epoch, self._received = number, first_epoch, received
        self._exactness = accepted_data(request, owner.exact)
        run, team = owner.run, parts.team
        # They are opened when everything was compared, and not before.
        self._files = run_files(run.directory, team.index, time.time)
        # First: what a tracker sends was written into the run directory before.
        sinks = [self._files, *request.sinks]
        self._request = replace(
            request, sinks=sinks, is_observed=team.is_chief, run_dir=run.directory
        )

    def find(self, last: Saved | None) -> Continuation:
        """Return what there is to do after the newest checkpoint."""
        saved, notes = last, list[str]()
        what = entry(self._number, self._request.until, None if last is None else last[1])
        if what == "skip":
            saved = self._run.end_of(self._number)
        if what == "resume" and saved is not None:
            notes = _restart_notes(saved[1], self._exactness, self._request)
            if restarts_epoch(saved[1], self._exactness):
                saved = saved[0], at_start_of_epoch(saved[1])
        attempt, task = self._owner.attempt, self._parts.task
        edited = attempt.continued(self._number, task)
        if what == "begin":
            attempt.rewind(task)
        return Continuation(what, saved, notes, edited)

    def build(self, entry: Continuation) -> tuple[Session, DiskCheckpoints]:
        """Build the session, to compare it with what was saved before it starts."""
        parts, saved = self._parts, None if entry.saved is None else entry.saved[1]
        _resume_plans(parts, self._run, saved, is_begun=entry.what != "begin")
        checkpoints = DiskCheckpoints(self._run, parts.team, self._files, self._owner.attempt)
        start = Start(
            self._number,
            self._first_epoch,
            entry.snapshot,
            exact=self._owner.exact,
            accepted=self._exactness,
            reasons=() if saved is None else saved.inexact.get("reasons", ()),
            ends=entry.what == "end",
            edited=entry.edited,
            notes=entry.notes,
        )
        session = Session(
            parts, self._request, start, checkpoints=checkpoints, signals=self._received
        )
        return session, checkpoints

    def differs(self, session: Session, entry: Continuation) -> str | None:
        """Return why the session cannot continue from its snapshot; None if it can."""
        if entry.snapshot is None:
            return None
        differs = objection(session, entry.snapshot, self._owner.on_change)
        before = self._owner.attempt.open_until
        return differs if before is None else _left_open(differs, before, self._request.until)

    def start_over(self, differs: str) -> Continuation:
        """Move what was saved of this call aside, if that was asked for; else raise."""
        if self._owner.on_change != "start_over":
            raise ConfigurationError(differs)
        saved = _start_over(self._run, self._parts.team, self._number, differs)
        return Continuation("begin", saved)

    def skip(self, session: Session, entry: Continuation, last: Saved | None) -> Finished:
        """Give the task the end of this call, which is complete, and write it if that is due."""
        parts, saved = self._parts, entry.saved
        if saved is not None:
            end = load_end(saved)
            still_exact(session, end, self._owner.exact)
            session.apply(end)
            parts.state.is_set_by_leg()
            session.callbacks.restore_now()
        if saved is None or not saved[1].has_end:
            finalize_averages(parts.task)
        run_spec.leave(parts.task)
        skipped = Finished(
            session.step,
            0.0,
            "skipped",
            history=session.history.history,
            run_dir=self._run.directory,
        )
        notify(self._request.sinks, skipped)
        if saved is not None and last is not None and saved[0].step == last[0].step:
            _finish(self._files, saved[1], skipped, session.exactness.reasons)
        return skipped


@contextlib.contextmanager
def _watch_signals() -> Iterator[Signals]:
    """Note signals, and end the process as they asked for when everything is closed."""
    with signals.watched() as received:
        yield received
    received.raise_received()


@contextlib.contextmanager
def barrier_after(team: Team) -> Iterator[None]:
    """Let all workers wait for each other at the end, unless one of them fails."""
    yield
    team.barrier()


def _start_over(run: Run, team: Team, leg: int, why: str) -> Saved | None:
    """Move a leg and the later ones aside; return the end of the previous leg."""

    def move() -> int:
        aside = run.start_over(leg)
        differs = why.partition("\n  do: ")[0]
        warn_at_call(f"{differs}\nStarting over; the previous run is kept in {aside}.")
        return 0

    team.from_chief(move)
    return run.end_of(leg - 1) if leg else None


@contextlib.contextmanager
def _replay_hints(session: Session, run: Run) -> Iterator[None]:
    """Add to an error how to replay the step that raised it, if the run can be replayed."""
    try:
        yield
    except Exception as error:
        step = error.step if isinstance(error, NotFiniteError) else session.stepper.failed_step
        if step is not None and not session.exactness and session.parts.team.is_alone:
            _add_replay_hint(error, step, run)
        raise


def _add_replay_hint(error: Exception, step: int, run: Run) -> None:
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
    epoch = snapshot.position.epoch + 1
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


def _finish(files: RunFile, end: Snapshot, skipped: Finished, inexact: Sequence[str]) -> None:
    """Write the files of a run that was killed between its last checkpoint and its end."""
    reason = "complete" if _is_complete(end.position, every(end.until)) else "stopped"
    finished = replace(skipped, reason=reason, seconds=end.position.seconds)
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
