"""Rehearse a call of `fit`: everything that a run does, once, without leaving a trace."""

import contextlib
import copy
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import keras

from loopwright import disk
from loopwright.checkpoints.run_directory import Run
from loopwright.checkpoints.snapshot import Snapshot
from loopwright.data.stream import Stream
from loopwright.errors import ConfigurationError
from loopwright.events import Finished
from loopwright.exactness import EXACT, Exact
from loopwright.fit.options import RehearseOptions
from loopwright.fit.parts import Parts
from loopwright.fit.request import FitRequest, Start, accepted_data
from loopwright.fit.resume import What, entry
from loopwright.fit.session import Session
from loopwright.fit.snapshots import objection
from loopwright.insight import estimates
from loopwright.insight.overfit import overfit
from loopwright.insight.rehearsal_report import Rehearsal, Stages, collected
from loopwright.insight.rehearsed_leg import RehearsedLeg, examples
from loopwright.insight.scratch import peek, preserved_attributes, request_aside, scratch_session
from loopwright.loop.schedule import NOTHING_READ, Every
from loopwright.run_changes import OnChange
from loopwright.task import variables
from loopwright.task.task import Task


@dataclass(frozen=True)
class Planned:
    """The call of `fit` that is rehearsed: which leg of which run."""

    run: Run | None
    leg: int
    first_epoch: int
    exact: Exact
    on_change: OnChange
    fresh: bool


def _saved(planned: Planned, request: FitRequest) -> tuple[What, Snapshot | None]:
    """Return what `fit` would do in the run directory, and its newest checkpoint."""
    run = planned.run
    found = None if run is None or planned.fresh else run.newest()
    snapshot = None if found is None else found[1]
    return entry(planned.leg, request.until, snapshot), snapshot


def described(session: Session, planned: Planned, what: What, snapshot: Snapshot | None) -> str:
    """Return in words where the run begins; raise if `fit` would refuse it."""
    run = planned.run
    if run is None:
        return "at step 0, in memory: there is no run directory"
    nearest = estimates.nearest_directory(run.directory)
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise ConfigurationError(
            "The run directory cannot be written to.",
            expected="a directory that can be written to",
            received=f"run_dir={os.fspath(run.directory)!r}: no permission in {nearest}",
            do="choose another run_dir, or change the permissions",
        )
    if not run.has_checkpoints:
        return f"at step 0, in {run.directory}"
    if planned.fresh:
        return f"at step 0; the previous run in {run.directory} is moved aside"
    if snapshot is None or what == "begin":
        return f"leg {planned.leg + 1} begins after step {session.first_step:,} of {run.directory}"
    # Callbacks are compared when they are rehearsed with the run itself.
    then = replace(snapshot, callbacks=session.callbacks.state())
    differs = objection(session, then, planned.on_change)
    if differs is not None and planned.on_change == "start_over":
        return f"at step 0: {differs.splitlines()[0]} The previous run is moved aside"
    if differs is not None:
        raise ConfigurationError(differs)
    if what == "skip":
        return f"nothing is left to train: {run.directory} is complete at step {snapshot.step:,}"
    return f"resumes from step {snapshot.step:,} of {run.directory}"


_OVERFIT = "1 batch"


def rehearse(parts: Parts, options: RehearseOptions, planned: Planned) -> Rehearsal:
    """Run everything that a run does once; raise the first error, which says where it happened."""
    request = request_aside(options, parts, saves=planned.run is not None)
    _require_possible(parts, options, request)
    stages = Stages(is_verbose=bool(options.verbose))
    with collected() as caught:
        found = _rehearsed(parts, request, options, planned, stages)
    return replace(found, checks=tuple(stages.checks), warnings=tuple(caught))


def _rehearsed(
    parts: Parts,
    request: FitRequest,
    options: RehearseOptions,
    planned: Planned,
    stages: Stages,
) -> Rehearsal:
    with contextlib.ExitStack() as undoing:
        with stages.part("build") as note:
            exact = None if planned.run is None else planned.exact
            what, snapshot = _saved(planned, request)
            reference = None if what == "begin" else snapshot
            accepted = EXACT if exact is None else accepted_data(request, exact)
            start = Start(
                planned.leg,
                planned.first_epoch,
                exact=exact,
                accepted=accepted,
                reference=reference,
            )
            scratch = scratch_session(parts, request, start=start)
            session = undoing.enter_context(scratch)
            note("data opened, steps traced and checked")
            if isinstance(request.data, Stream) and request.data.calls_python:
                note("the data calls Python code, whose own state is not restored")
        rehearsed = RehearsedLeg(session, planned, stages)
        with stages.part("run", is_shown=False):
            begins = described(session, planned, what, snapshot)
        batch = None
        if options.overfit is not None:
            batch = peek(session)
            session.seek(NOTHING_READ)
        rehearsed.first_batches()
        checkpoint_bytes = rehearsed.checkpoint()
        rehearsed.last_batch()
        validation_seconds = rehearsed.validation(request)
        rehearsed.images()
        rate, data_wait = rehearsed.speed()
        compile_seconds = session.watch.seconds["compile"]
        size = examples(session)
        tries, why_none = parts.engine.plans.prospects(session.parts.engine.kind(session.feed))
        schedule = replace(session.schedule, save_every=request.save_every)
        plan = session.parts.engine.plans.plan.in_words
    costs = _callbacks(parts, request, options, stages) if request.callbacks else {}
    learned = None
    if options.overfit is not None:
        with stages.part("one batch") as note:
            learned = overfit(parts, request, batch)
            note(str(learned).partition(";")[0])
    seconds, length = estimates.run_length(schedule, rate, validation_seconds, compile_seconds)
    directory = Path.cwd() if planned.run is None else planned.run.directory
    where, rules, kept = estimates.nearest_directory(directory), (), 0
    free = disk.free_bytes(where)
    if planned.run is not None:
        rules = planned.run.rules
        kept = estimates.checkpoints_kept(rules, schedule, seconds)
        with stages.part("disk", is_shown=False):
            estimates.require_room(checkpoint_bytes, kept, free, where)
    trainable, frozen, statistics = estimates.parameters(parts.task)
    words = "; then: ".join(each.in_words for each in tries)
    to_try = f"the tuner would try: {words}" if tries else f"no other is tried: {why_none}"
    return Rehearsal(
        checks=(),
        trainable=trainable,
        frozen=frozen,
        statistics=statistics,
        examples=size,
        steps_per_second=rate,
        data_wait=data_wait,
        total_steps=schedule.total_steps,
        seconds=seconds,
        length=length,
        peak_bytes=estimates.peak_bytes(),
        machine_bytes=estimates.machine_bytes(),
        checkpoint_bytes=checkpoint_bytes,
        kept=kept,
        free_bytes=free,
        schedule=estimates.schedule_in_words(schedule, rules),
        plans=f"rehearsed by: {plan}; {to_try}",
        start=begins,
        callbacks=costs,
        overfit=learned,
    )


def _require_possible(parts: Parts, options: RehearseOptions, request: FitRequest) -> None:
    problem = ""
    if options.overfit not in (None, _OVERFIT):
        problem = f"overfit={options.overfit!r}"
    elif options.overfit is not None and request.data is None:
        problem = "a step without data, which has no batch to train on"
    elif not parts.team.is_alone:
        problem = f"{parts.team.size} workers"
    if problem:
        raise ConfigurationError(
            "This cannot be rehearsed.",
            expected=f'one worker; with data also overfit="{_OVERFIT}"',
            received=problem,
            do="correct the argument; rehearse with one worker, then train with several",
        )


_CALLBACK_STEPS = 2


def _callbacks(
    parts: Parts, request: FitRequest, options: RehearseOptions, stages: Stages
) -> dict[str, float]:
    """Train a few steps with copies of callbacks, to the end of an epoch; return seconds by hook.

    A hook that is called for every batch counts once.
    """
    given = keras.tree.flatten(request.callbacks)
    names = ", ".join(type(callback).__name__ for callback in given)
    if not options.rehearse_callbacks:
        why = f"{names}: not called, they may have effects outside (rehearse_callbacks=True)"
        stages.leave_out("callbacks", why)
        return {}
    callbacks = _copies(given, parts.task)
    short = replace(
        request,
        validation_steps=min(2, request.validation_steps or 2),
        until=Every(steps=_CALLBACK_STEPS),
    )
    with (
        stages.part("callbacks") as note,
        preserved_attributes(map(vars, given)),
        scratch_session(parts, short, callbacks=callbacks) as session,
    ):
        finished = Finished(session.step, 0.0, "failed")
        try:
            for event, _, _ in session.loop():
                if isinstance(event, Finished):
                    finished = event
                else:
                    session.callbacks.on(event)
        finally:
            session.callbacks.on(finished)  # gives the model back what callbacks were lent
        note(names)
    kinds = tuple(f"{type(callback).__name__}." for callback in callbacks)
    return {
        hook: seconds / (_CALLBACK_STEPS if "_batch_" in hook else 1)
        for hook, seconds in session.watch.details("callbacks").items()
        if hook.startswith(kinds)
    }


def _copies(callbacks: Sequence[Any], task: Task) -> list[Any]:
    """Return copies that share variables, models and metrics, and what cannot be copied."""
    # Keras would copy a metric without its values; the variables of all these are restored.
    held = [part.value for part in variables.parts((task, *callbacks))]
    models = [getattr(callback, "model", None) for callback in callbacks]
    memo = {id(value): value for value in (task, *held, *models)}
    copied = [memo.setdefault(id(callback), copy.copy(callback)) for callback in callbacks]
    for callback in copied:
        for name, value in vars(callback).items():
            with contextlib.suppress(Exception):
                vars(callback)[name] = copy.deepcopy(value, memo)
    return copied
