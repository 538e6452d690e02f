"""Replay: run the steps of a run again up to one of them, and look into it."""

import copy
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import keras

from loopwright.checkpoints import tensors
from loopwright.checkpoints.run_directory import Run
from loopwright.checkpoints.snapshot import Snapshot
from loopwright.config.edits import OnChange
from loopwright.data.readers import NOTHING_READ
from loopwright.errors import (
    ConfigurationError,
    LoopwrightWarning,
)
from loopwright.events import Finished
from loopwright.fit.attempt import LastAttempt
from loopwright.fit.leg import Leg
from loopwright.fit.moment import declare, environment_changes, require_resumable, restore_parts
from loopwright.fit.options import ReplayOptions
from loopwright.fit.parts import Parts
from loopwright.insight import replay_checks
from loopwright.insight.replayed import Replayed
from loopwright.insight.scratch import parts_aside, preserved, request_aside
from loopwright.insight.step_walk import Walk
from loopwright.loop.schedule import Place
from loopwright.runs import RunRecord, Steps
from loopwright.sinks.history import History
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

    snapshot: Snapshot
    values: Mapping[str, Any] | None
    """The tensors to begin with; None: what the program makes."""
    is_leg_start: bool
    reference: Snapshot | None
    """A checkpoint of the same leg, to compare program and data with."""

    @property
    def step(self) -> int:
        """How many steps were run before."""
        return self.snapshot.step


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
    replay_checks.require_same_data(request, start.reference)
    if options.verbose:
        is_leg_start = start.is_leg_start
        print(replay_checks.announced(start.step, step, record, is_leg_start=is_leg_start))
    plans = run.recorded_plans() if start.reference is None else run.plans(start.reference)
    if plans is None:
        raise ConfigurationError(replay_checks.never_saved(run))
    given = request.callbacks
    callbacks = [] if given is None else keras.tree.flatten(given)
    called = [copy.copy(each) for each in callbacks if isinstance(each, _CALLED)]
    alone = replace(
        request,
        sets={},
        save_every=None,
        callbacks=called,
        sinks=[],
        history=History(),
        is_observed=False,
        run_dir=None,
    )
    if start.is_leg_start and start.values is None:
        parts.state.start_from_given_weights()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LoopwrightWarning)  # they were given when the run began
        leg = Leg(
            parts_aside(parts, plans),
            alone,
            first_epoch=start.snapshot.first_epoch,
            snapshot=start.snapshot,
        )
        named, inexact = require_resumable(leg, "best_effort")
        declare(leg, start.snapshot.leg, start.reference)
    edited = replay_checks.require_same_program(leg, named, start.reference, called, run, on_change)
    with preserved(parts.task):
        try:
            _begin(leg, named, start, called, attempt, run)
            walk = Walk(leg, named, run, record, step, uses_debugger=options.debugger)
            walk.go(replace(start.snapshot.place, is_over=False), request)
        finally:
            leg.bridge(Finished(step, 0.0, "failed"))
            leg.feed = None
            leg.stepper.close()
    uncalled = [type(each).__name__ for each in callbacks if not isinstance(each, _CALLED)]
    causes = [
        *replay_checks.environment_of(run, start.reference, lambda s: environment_changes(leg, s)),
        *edited,
        *inexact,
        *([f"callbacks that a replay does not call: {', '.join(uncalled)}"] if uncalled else []),
    ]
    return walk.replayed(start.step, causes, has_checkpoint=not start.is_leg_start)


def _start(run: Run, record: Steps, step: int) -> Start:
    """Return the last checkpoint before a step, or the beginning of its leg."""
    entries = run.entries()
    first = record.leg_start(step)
    later = [entry.step for entry in entries if entry.step >= step]
    before = [entry.step for entry in entries if entry.step < step]
    same_leg = (run.chosen(each)[1] for each in later)
    reference = next((each for each in same_leg if each.first_step == first), None)
    if not before:
        if first:
            raise ConfigurationError(replay_checks.no_start(run, first))
        return Start(_beginning(0, 0, 0, reference), None, is_leg_start=True, reference=reference)
    checkpoint, found = run.chosen(before[-1])
    values = tensors.read(checkpoint.path / "state")
    if not (found.place.is_over and found.step == first != found.first_step):
        if found.step < first:
            raise ConfigurationError(replay_checks.no_start(run, first))
        return Start(found, values, is_leg_start=False, reference=found)
    epochs = found.first_epoch + len(found.history.get("epoch", ()))
    begun = replace(_beginning(found.leg + 1, first, epochs, reference), end=found.end)
    values |= tensors.read_end(checkpoint.path, found.end)
    return Start(begun, values, is_leg_start=True, reference=reference)


def _beginning(leg: int, step: int, epoch: int, reference: Snapshot | None) -> Snapshot:
    return Snapshot(
        leg=leg,
        until="",
        place=Place(),
        scores={},
        first_step=step,
        first_epoch=epoch if reference is None else reference.first_epoch,
        read=NOTHING_READ,
        data={},
        batch=None,
        has_data=True,
        lengths={},
        passed_over=(),
        tally={},
        history={},
        callbacks=(),
        plans={},
        variables=(),
        environment={},
    )


def _begin(
    leg: Leg,
    named: dict[str, Any],
    start: Start,
    called: Sequence[Any],
    attempt: LastAttempt,
    run: Run,
) -> None:
    """Give the task and the leg the state that the replay begins with."""
    if not start.is_leg_start:
        kinds = {type(each).__name__ for each in called}
        states = [state for state in start.snapshot.callbacks if state["class"] in kinds]
        restore_parts(leg, named, replace(start.snapshot, callbacks=states), start.values or {})
    elif start.values is not None:
        tensors.assign(named, start.values)
        if not start.snapshot.has_end:
            finalize_averages(leg.parts.task)
    else:
        attempt.rewind(leg.parts.task)
        if int(leg.parts.task.step_counter.read_value()):
            raise ConfigurationError(replay_checks.beginning_is_gone(run))
