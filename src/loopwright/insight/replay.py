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
from loopwright.checkpoints.snapshot import Snapshot, load, load_end
from loopwright.errors import ConfigurationError, LoopwrightWarning
from loopwright.events import Finished
from loopwright.fit.options import ReplayOptions
from loopwright.fit.parts import Parts
from loopwright.fit.request import Start
from loopwright.fit.resume import SavedRun
from loopwright.fit.session import Session
from loopwright.insight import replay_checks
from loopwright.insight.replayed import Replayed
from loopwright.insight.scratch import request_aside, scratch_session
from loopwright.insight.step_walk import Walk
from loopwright.runs import RecordedSteps, RunRecord
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
class Beginning:
    """Where a replay begins: a checkpoint, or the beginning of a call of `fit`."""

    step: int
    """How many steps were run before."""
    leg: int
    first_epoch: int
    reference: Snapshot | None
    """A checkpoint of the same leg, to compare program and data with."""
    snapshot: Snapshot | None = None
    """The checkpoint with its tensors; None: the beginning of a call of `fit`."""
    values: Mapping[str, Any] | None = None
    """The variables that a call of `fit` began with; None: what the program makes."""
    has_averages: bool = True
    """Whether the tensors are as `fit` left them, with averaged weights in place."""


def replay(parts: Parts, options: ReplayOptions, saved: SavedRun, step: int | None) -> Replayed:
    """Replay a step of a run, by default the one that ended it."""
    run = saved.run
    request = request_aside(options, parts)
    replay_checks.require_replayable(parts, request)
    record = RunRecord(run.directory).steps
    step = replay_checks.require_step(run, record, step)
    beginning = _find_beginning(run, record, step)
    reference = beginning.reference
    replay_checks.require_same_data(request, reference)
    if options.verbose:
        is_leg_start = beginning.snapshot is None
        print(replay_checks.announced(beginning.step, step, record, is_leg_start=is_leg_start))
    plans = run.recorded_plans() if reference is None else run.plans(reference)
    given = keras.tree.flatten(request.callbacks or ())
    called = [copy.copy(callback) for callback in given if isinstance(callback, _CALLED)]
    uncalled = [type(each).__name__ for each in given if not isinstance(each, _CALLED)]
    with contextlib.ExitStack() as undoing:
        undoing.enter_context(state.preserved(variables.named(parts.task).values()))
        _rewind(parts, beginning, saved)
        scratch = scratch_session(
            parts,
            replace(request, sets={}),
            plan=plans,
            start=Start(
                beginning.leg,
                beginning.first_epoch,
                beginning.snapshot,
                exact="best_effort",
                reference=reference,
            ),
            callbacks=called,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LoopwrightWarning)  # they were given when the run began
            session = undoing.enter_context(scratch)
        edited = replay_checks.require_same_program(session, reference, run, saved.on_change)
        _begin(session, beginning)
        walk = Walk(session, run, record, step, uses_debugger=options.debugger)
        try:
            seen = walk.go(request)
        finally:
            session.callbacks.on(Finished(step, 0.0, "failed"))
        causes = [*replay_checks.environment_changes_of(run, session, reference), *edited]
    causes += session.exactness.reasons
    if uncalled:
        causes.append(f"callbacks that a replay does not call: {', '.join(uncalled)}")
    return replace(
        seen,
        start_step=beginning.step,
        has_checkpoint=beginning.snapshot is not None,
        causes=tuple(causes),
    )


def _find_beginning(run: Run, record: RecordedSteps, step: int) -> Beginning:
    """Return the last checkpoint before a step, or the beginning of its leg."""
    first = record.leg_start(step)
    saved = [entry.step for entry in run.entries()]
    same_leg = (run.chosen(later)[1] for later in saved if later >= step)
    reference = next((later for later in same_leg if later.first_step == first), None)
    before = [earlier for earlier in saved if earlier < step]
    if before and before[-1] >= first:
        saved = run.chosen(before[-1])
        found = saved[1]
        if not (found.position.is_over and found.step == first != found.first_step):
            return Beginning(found.step, found.leg, found.first_epoch, found, load(saved))
        epoch = found.first_epoch + len(found.history.get("epoch", ()))
        if reference is not None:
            epoch = reference.first_epoch
        values, leg = load_end(saved).tensors, found.leg + 1
        return Beginning(first, leg, epoch, reference, None, values, has_averages=found.has_end)
    if first:
        raise ConfigurationError(
            f"The state that this call of fit began with, after step {first:,}, was deleted.",
            expected=f"a checkpoint of step {first:,} in {run.directory}",
            received="later checkpoints only",
            do="choose a step after the first of them: loopwright runs RUN lists them",
        )
    return Beginning(0, 0, 0 if reference is None else reference.first_epoch, reference)


def _rewind(parts: Parts, beginning: Beginning, saved: SavedRun) -> None:
    """Let the task count from where a call of `fit` began; the leg is built from that."""
    if beginning.snapshot is not None:
        return
    if beginning.values is None:
        saved.attempt.rewind(parts.task)
        if int(parts.task.step_counter.read_value()):
            raise ConfigurationError(
                "No checkpoint before this step is kept, and the task has trained since it was "
                "made.",
                expected="a checkpoint before the step, or a task as the program makes it",
                received=f"a trained task, and no earlier checkpoint in {saved.run.directory}",
                do="make the task and the trainer again, in a new process, and call replay "
                "before fit; to keep more checkpoints, pass keep=[KeepLatest(10)]",
            )
    parts.task.step_counter.assign(beginning.step)


def _begin(session: Session, beginning: Beginning) -> None:
    """Give the task and the session the state that the replay begins with."""
    if beginning.snapshot is not None:
        kept = replay_checks.called_states(session, beginning.snapshot)
        session.seek(kept.position.read)
        session.apply(kept)
    elif beginning.values is not None:
        tensors.assign(session.named, beginning.values)
        if not beginning.has_averages:
            finalize_averages(session.parts.task)
