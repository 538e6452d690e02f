"""A session as a snapshot: made at a stop, compared with a program, applied to a session."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from loopwright import environment
from loopwright.checkpoints import tensors
from loopwright.checkpoints.snapshot import Snapshot, difference
from loopwright.data import batches as specs
from loopwright.data.source import changed_data
from loopwright.distribute import replicas
from loopwright.errors import ConfigurationError, message
from loopwright.exactness import Inexact
from loopwright.fit import run_spec
from loopwright.loop.schedule import Position, restarted
from loopwright.run_changes import STEP, OnChange, edits, refusal
from loopwright.step_warnings import warn_at_call
from loopwright.task import variables

if TYPE_CHECKING:
    from loopwright.fit.session import Session


def make_snapshot(session: "Session", position: Position, scores: Mapping[str, Any]) -> Snapshot:
    """Return a session as it is now, at this position."""
    request, stepper, team = session.request, session.stepper, session.parts.team
    read, in_stream = position.read, dict[str, Any]()
    if stepper.reader is not None:
        read = replace(read, last_digest=stepper.reader.last_digest())
        in_stream = stepper.reader.state()
    if session.feed is not None and session.feed.is_share:
        in_stream = team.places(in_stream)
    kept = session.checkpoints.select(session)
    values = team.whole(kept, tensors.snapshot(kept))
    return Snapshot(
        leg=session.number,
        until=str(request.until),
        position=replace(position, read=read),
        scores=dict(scores),
        first_step=session.first_step,
        first_epoch=session.first_epoch,
        data=fingerprint(session),
        batch=None if session.feed is None else specs.encoded(session.feed.batch_spec),
        has_data=request.data is not None,
        passed_over=sorted(stepper.passed_over),
        tally=stepper.metrics.state(),
        history=session.history.state(),
        callbacks=session.callbacks.state(),
        plans=session.parts.engine.plans.log.history.content(),
        variables=variables.table(team.everywhere(session.named)),
        environment=_environment(session),
        declared=session.declared,
        tensors=values | session.callbacks.tensors() | in_stream,
        **session.checkpoints.fields(session, position),
    )


def apply_snapshot(session: "Session", snapshot: Snapshot, named: Mapping[str, Any]) -> None:
    """Give these variables and the parts of a session the state of a snapshot.

    A learning rate that was accepted stays the new one.
    """
    team, values = session.parts.team, snapshot.tensors
    everywhere = team.everywhere(named)
    rates = run_spec.new_rates(snapshot.declared, session.declared)
    restored = {name: variable for name, variable in named.items() if name not in rates}
    tensors.assign(restored, replicas.shared_out(values, everywhere))
    run_spec.set_rates(named, rates)
    session.stepper.metrics.restore(snapshot.tally)
    session.history.restore(snapshot.history)
    session.callbacks.restore(snapshot.callbacks, values)
    session.stepper.pass_over(*snapshot.passed_over)
    session.stepper.resume(
        snapshot.position,
        team.own_place(values),
        in_epoch=_is_inside_epoch(session, snapshot.position),
        has_position=not snapshot.inexact.get("loses_position"),
    )


def restarts_epoch(snapshot: Snapshot, inexact: Inexact) -> bool:
    """Return whether the epoch of a snapshot has to start again: its position was not saved."""
    if snapshot.inexact.get("loses_position"):
        return bool(snapshot.inexact.get("restarts_epoch"))
    # The position was saved, for data that could not use it any more.
    position = snapshot.position
    return inexact.loses_position and position.step_in_epoch > 0 and not position.epoch_ended


def at_start_of_epoch(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with its weights and steps, at the beginning of its epoch."""
    inexact = {**snapshot.inexact, "restarts_epoch": False}
    return replace(snapshot, position=restarted(snapshot.position), scores={}, inexact=inexact)


def declare(
    session: "Session", reference: Snapshot | None, kept: Collection[str] = ()
) -> Mapping[str, Any]:
    """Return what the program asks of a session whose step is built; the same on all workers.

    Variables that are `kept` were set by hand since the leg was interrupted in this process: their
    new values are used, and are no edit of the program.
    """
    parts, request = session.parts, session.request
    numbers = {
        "seed": parts.seed,
        "shuffle": bool(request.shuffle),
        "steps_per_epoch": request.steps_per_epoch,
        "class_weight": request.class_weight,
    }
    before = None if reference is None else reference.declared
    found = run_spec.record(parts.task, numbers, leg=session.number, before=before, kept=kept)
    code = (STEP, "versions")  # what each worker's own Python makes of the program
    parts.team.require_same("program", {n: v for n, v in found.items() if n not in code})
    return found


def objection(session: "Session", snapshot: Snapshot, on_change: OnChange) -> str | None:
    """Return what differs from the snapshot's program and data, and was not accepted.

    An edit of code is a warning only, unless it is to start over.
    """
    everywhere = session.parts.team.everywhere(session.named)
    rates = run_spec.new_rates(snapshot.declared, session.declared)
    rows = [
        [row for row in replicas.without_numbers(table) if row["name"] not in rates]
        for table in (snapshot.variables, variables.table(everywhere))
    ]
    changed = difference(*rows)
    found = edits(snapshot.declared, session.declared)
    accepted = () if isinstance(on_change, str) else on_change
    found = [edit for edit in found if edit.name not in accepted]
    if any(edit.name != STEP or on_change == "start_over" for edit in found):
        return refusal(found, can_continue=changed is None)
    if found:
        warn_at_call(
            f"The code of {', '.join(edit.place for edit in found)} has changed since this run "
            f'began; the run continues with the new code. on_change=["{STEP}"] accepts this.'
        )
    if changed is not None:
        return changed
    now = fingerprint(session)
    then, workers = (known.get("workers", 1) for known in (snapshot.data, now))
    if then != workers:
        # Not an edit: on as many machines as before the run continues.
        raise ConfigurationError(_other_shares(then, workers))
    other = "" if session.request.data is None else changed_data(snapshot.data, now)
    if other:
        return message(
            "The data differs from the data this run was saved with.",
            expected="the data that the run began with",
            received=other,
            do='pass the same data and batch_size, pass on_change="start_over" to start over, or '
            "choose another run_dir",
        )
    return session.callbacks.check(snapshot.callbacks)


def environment_changes(session: "Session", snapshot: Snapshot) -> list[str]:
    """Return the differences between the environment of a checkpoint and this one."""
    return environment.changes({"replicas": 1, **snapshot.environment}, _environment(session))


def fingerprint(session: "Session") -> dict[str, Any]:
    """Return what identifies the training data; empty for a step without data."""
    return {} if session.request.data is None else session.request.data.fingerprint()


def _environment(session: "Session") -> dict[str, Any]:
    """Return what the bits depend on; sums over replicas depend on how many there are."""
    return environment.environment() | {"replicas": session.parts.strategy.num_replicas_in_sync}


def recorded(session: "Session", position: Position, exactness: Inexact) -> dict[str, Any]:
    """Return why a run cannot be resumed exactly, and from where it can, for a snapshot."""
    if not exactness:
        return {}
    loses = exactness.loses_position
    return {
        "reasons": list(exactness.reasons),
        "loses_position": loses,
        "restarts_epoch": loses and _is_inside_epoch(session, position),
    }


def _is_inside_epoch(session: "Session", position: Position) -> bool:
    """Return whether the epoch has more steps to come."""
    length = session.schedule.steps_per_epoch
    return 0 < position.step_in_epoch != length and not position.epoch_ended


def _other_shares(then: int, now: int) -> str:
    return message(
        "The number of workers changed; data positions are saved per worker.",
        expected=f"{then} worker(s), as when this run began",
        received=f"{now} worker(s)",
        do=f"start {then} worker(s), or choose another run_dir; arrays, and a dataset that every "
        "worker reads as a whole (without lw.Shares), resume with any number",
    )
