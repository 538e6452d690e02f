"""Replay: run the steps of a run again up to one of them, and look into it."""

import contextlib
import copy
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, final

import keras

from loopwright.checkpoints import tensors
from loopwright.checkpoints.run_directory import Run
from loopwright.checkpoints.snapshot import Snapshot
from loopwright.errors import ConfigurationError, LoopwrightWarning
from loopwright.events import Finished
from loopwright.fit.attempt import LastAttempt
from loopwright.fit.leg import Leg
from loopwright.fit.moment import declare, require_resumable
from loopwright.fit.options import ReplayOptions
from loopwright.fit.parts import Parts
from loopwright.fit.saved_leg import Moment
from loopwright.insight import replay_checks
from loopwright.insight.replayed import Replayed
from loopwright.insight.scratch import apply, request_aside, scratch_leg
from loopwright.insight.step_walk import Walk
from loopwright.run_changes import OnChange
from loopwright.runs import RunRecord, Steps
from loopwright.task import state, variables
from loopwright.task.optimizers import finalize_averages

_CALLED = (
    keras.callbacks.LearningRateScheduler,
    keras.callbacks.ReduceLROnPlateau,
    keras.callbacks.SwapEMAWeights,
)
"""Callbacks of Keras that change the training and nothing else: a replay calls them."""


@final
@dataclass(frozen=True)
class Start:
    """Where a replay begins: a checkpoint, or the beginning of a call of `fit`."""

    step: int
    """How many steps were run before."""
    leg: int
    first_epoch: int
    reference: Snapshot | None
    """A checkpoint of the same leg, to compare program and data with."""
    snapshot: Snapshot | None = None
    """The checkpoint; None: the beginning of a call of `fit`."""
    values: Mapping[str, Any] | None = None
    """The tensors to begin with; None: what the program makes."""
    has_averages: bool = True
    """Whether the tensors are as `fit` left them, with averaged weights in place."""


def replay(
    parts: Parts,
    options: ReplayOptions,
    run: Run,
    step: int | None,
    attempt: LastAttempt,
    *,
    on_change: OnChange,
) -> Replayed:
    """Replay a step of a run, by default the one that ended it."""
    request = request_aside(options, parts)
    replay_checks.require_replayable(parts, request)
    record = RunRecord(run.directory).steps
    step = replay_checks.require_step(run, record, step)
    start = _start(run, record, step)
    reference = start.reference
    replay_checks.require_same_data(request, reference)
    if options.verbose:
        is_leg_start = start.snapshot is None
        print(replay_checks.announced(start.step, step, record, is_leg_start=is_leg_start))
    plans = run.recorded_plans() if reference is None else run.plans(reference)
    given = keras.tree.flatten(request.callbacks or ())
    called = [copy.copy(callback) for callback in given if isinstance(callback, _CALLED)]
    uncalled = [type(each).__name__ for each in given if not isinstance(each, _CALLED)]
    with contextlib.ExitStack() as undoing:
        undoing.enter_context(state.preserved(variables.named(parts.task).values()))
        _rewind(parts, start, attempt, run)
        scratch = scratch_leg(
            parts,
            replace(request, sets={}),
            plan=plans,
            first_epoch=start.first_epoch,
            snapshot=start.snapshot,
            callbacks=called,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LoopwrightWarning)  # they were given when the run began
            leg = undoing.enter_context(scratch)
            named, inexact = require_resumable(leg, "best_effort")
            declare(leg, start.leg, reference)
        edited = replay_checks.require_same_program(leg, named, reference, run, on_change)
        _begin(leg, named, start)
        walk = Walk(leg, named, run, record, step, uses_debugger=options.debugger)
        try:
            seen = walk.go(start.snapshot, request)
        finally:
            leg.callbacks(Finished(step, 0.0, "failed"))
        causes = [*replay_checks.environment_changes_of(run, leg, reference), *edited]
    causes += inexact
    if uncalled:
        causes.append(f"callbacks that a replay does not call: {', '.join(uncalled)}")
    return replace(
        seen,
        start_step=start.step,
        has_checkpoint=start.snapshot is not None,
        causes=tuple(causes),
    )


def _start(run: Run, record: Steps, step: int) -> Start:
    """Return the last checkpoint before a step, or the beginning of its leg."""
    first = record.leg_start(step)
    saved = [entry.step for entry in run.entries()]
    same_leg = (run.chosen(later)[1] for later in saved if later >= step)
    reference = next((later for later in same_leg if later.first_step == first), None)
    before = [earlier for earlier in saved if earlier < step]
    if before and before[-1] >= first:
        checkpoint, found = run.chosen(before[-1])
        values = tensors.read(checkpoint.path / "state")
        if not (found.place.is_over and found.step == first != found.first_step):
            return Start(found.step, found.leg, found.first_epoch, found, found, values)
        epoch = found.first_epoch + len(found.history.get("epoch", ()))
        if reference is not None:
            epoch = reference.first_epoch
        values |= tensors.read_end(checkpoint.path, found.end)
        leg = found.leg + 1
        return Start(first, leg, epoch, reference, None, values, has_averages=found.has_end)
    if first:
        raise ConfigurationError(
            f"The state that this call of fit began with, after step {first:,}, was deleted.",
            expected=f"a checkpoint of step {first:,} in {run.directory}",
            received="later checkpoints only",
            do="choose a step after the first of them: loopwright runs RUN lists them",
        )
    return Start(0, 0, 0 if reference is None else reference.first_epoch, reference)


def _rewind(parts: Parts, start: Start, attempt: LastAttempt, run: Run) -> None:
    """Let the task count from where a call of `fit` began; the leg is built from that."""
    if start.snapshot is not None:
        return
    if start.values is None:
        attempt.rewind(parts.task)
        if int(parts.task.step_counter.read_value()):
            raise ConfigurationError(
                "No checkpoint before this step is kept, and the task has trained since it was "
                "made.",
                expected="a checkpoint before the step, or a task as the program makes it",
                received=f"a trained task, and no earlier checkpoint in {run.directory}",
                do="make the task and the trainer again, in a new process, and call replay "
                "before fit; to keep more checkpoints, pass keep=[KeepLatest(10)]",
            )
    parts.task.step_counter.assign(start.step)


def _begin(leg: Leg, named: dict[str, Any], start: Start) -> None:
    """Give the task and the leg the state that the replay begins with."""
    if start.snapshot is not None:
        kept = replay_checks.called_states(leg, start.snapshot)
        apply(leg, named, Moment(kept, start.values or {}))
    elif start.values is not None:
        tensors.assign(named, start.values)
        if not start.has_averages:
            finalize_averages(leg.parts.task)
