"""Rehearse a call of `fit`: everything that a run does, once, without leaving a trace."""

import contextlib
import copy
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import keras

from loopwright import disk
from loopwright.checkpoints.run_directory import Run
from loopwright.config.edits import OnChange
from loopwright.data.stream import Stream
from loopwright.errors import ConfigurationError, message
from loopwright.events import Finished
from loopwright.exactness import Exact
from loopwright.fit.leg import Leg
from loopwright.fit.leg_loop import NoCheckpoints
from loopwright.fit.moment import declare, objection
from loopwright.fit.options import FitOptions
from loopwright.fit.parts import Parts
from loopwright.fit.request import FitRequest
from loopwright.fit.resume import entry
from loopwright.insight import estimates
from loopwright.insight.estimates import nearest_directory
from loopwright.insight.overfit import overfit
from loopwright.insight.rehearsal_report import Rehearsal, Stages, collected
from loopwright.insight.rehearsed_leg import RehearsedLeg, examples
from loopwright.insight.scratch import (
    attributes_of_data,
    preserved,
    preserved_attributes,
    request_aside,
    scratch_leg,
    with_own_traces,
)
from loopwright.loop.schedule import Every, Place
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

    @property
    def directory(self) -> Path:
        """Where the run is written; the current directory if it is not."""
        return Path.cwd() if self.run is None else self.run.directory


def described(leg: Leg, planned: Planned, request: FitRequest) -> str:
    """Return in words where the run begins; raise if `fit` would refuse it."""
    run = planned.run
    if run is None:
        return "at step 0, in memory: there is no run directory"
    _require_writable(run.directory)
    if not run.has_checkpoints:
        return f"at step 0, in {run.directory}"
    if planned.fresh:
        return f"at step 0; the previous run in {run.directory} is moved aside"
    found = run.newest()
    snapshot = None if found is None else found[1]
    what = entry(planned.leg, request.until, None if snapshot is None else snapshot.reached)
    if snapshot is None or what == "begin":
        return f"leg {planned.leg + 1} begins after step {leg.first_step:,} of {run.directory}"
    # Callbacks are compared when they are rehearsed with the run itself.
    then = replace(snapshot, callbacks=leg.bridge.state())
    declare(leg, planned.leg, then)
    differs = objection(leg, variables.named(leg.parts.task), then, planned.on_change)
    if differs is not None and planned.on_change == "start_over":
        return f"at step 0: {differs.splitlines()[0]} The previous run is moved aside"
    if differs is not None:
        raise ConfigurationError(differs)
    if what == "skip":
        return f"nothing is left to train: {run.directory} is complete at step {snapshot.step:,}"
    return f"resumes from step {snapshot.step:,} of {run.directory}"


def _require_writable(directory: Path) -> None:
    nearest = nearest_directory(directory)
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise ConfigurationError(
            message(
                "The run directory cannot be written to.",
                expected="a directory that can be written to",
                received=f"run_dir={os.fspath(directory)!r}: no permission in {nearest}",
                do="choose another run_dir, or change the permissions",
            )
        )


_OVERFIT = "1 batch"


@dataclass(frozen=True, kw_only=True)
class RehearseOptions(FitOptions):
    """The arguments of `fit`, and what else is rehearsed."""

    rehearse_callbacks: bool = False
    """Call the hooks of `callbacks`, which may have effects outside of this process."""
    overfit: str | None = None
    """"1 batch": train a copy of the task on one batch until its loss is small."""


def rehearse(parts: Parts, options: RehearseOptions, planned: Planned) -> Rehearsal:
    """Run everything that a run does once; raise the first error, which says where it happened."""
    request = request_aside(options, parts, saves=planned.run is not None)
    _require_possible(parts, options)
    own = with_own_traces(parts)
    say = _print if options.verbose else _say_nothing
    stages = Stages(say)
    with collected() as caught:
        found = _rehearsed(own, parts, request, options, planned, stages)
    return replace(found, checks=tuple(stages.checks), warnings=tuple(caught))


def _rehearsed(
    own: Parts,
    parts: Parts,
    request: FitRequest,
    options: RehearseOptions,
    planned: Planned,
    stages: Stages,
) -> Rehearsal:
    with preserved_attributes(attributes_of_data(request)):
        with contextlib.ExitStack() as undoing:
            with stages.part("build") as note:
                scratch = scratch_leg(own, request, first_epoch=planned.first_epoch)
                leg = undoing.enter_context(scratch)
                note("data opened, steps traced and checked")
                if isinstance(request.data, Stream) and request.data.calls_python:
                    note("the data calls Python code, whose own state is not restored")
            rehearsed = RehearsedLeg(leg, planned, stages)
            with stages.part("run", is_shown=False):
                start = described(leg, planned, request)
            rehearsed.first_batches()
            written = rehearsed.checkpoint()
            rehearsed.last_batch()
            validation_seconds = rehearsed.validation(request)
            rehearsed.images()
            rate, data_wait = rehearsed.speed()
            compile_seconds = leg.watch.seconds["compile"]
            size = examples(leg)
            tries, why_none = parts.selector.prospects(leg.feed, own.compiled)
            schedule = replace(leg.schedule, save_every=request.save_every)
        with preserved(own.task):
            costs = _callbacks(own, request, options, stages)
            learned = None
            if options.overfit is not None:
                with stages.part("one batch") as note:
                    learned = overfit(own, request)
                    note(str(learned).partition(";")[0])
    timings = rate, validation_seconds, compile_seconds
    seconds, length = estimates.run_length(schedule, *timings)
    kept = 0
    where = estimates.nearest_directory(planned.directory)
    free = disk.free_bytes(where)
    if planned.run is not None:
        kept = estimates.checkpoints_kept(planned.run.rules, schedule, seconds)
        with stages.part("disk", is_shown=False):
            estimates.require_room(written.bytes, kept, free, where)
    trainable, frozen, statistics = estimates.parameters(own.task)
    plan = own.selector.plan.in_words
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
        checkpoint_bytes=written.bytes,
        kept=kept,
        free_bytes=free,
        schedule=estimates.schedule_in_words(schedule, planned.run.rules if planned.run else ()),
        plans=f"rehearsed by: {plan}; {to_try}",
        start=start,
        callbacks=costs,
        overfit=learned,
    )


def _callbacks(
    own: Parts, request: FitRequest, options: RehearseOptions, stages: Stages
) -> dict[str, float]:
    """Return the seconds of each hook, if callbacks are rehearsed."""
    given = keras.tree.flatten(request.callbacks)
    if not given:
        return {}
    names = ", ".join(type(each).__name__ for each in given)
    if not options.rehearse_callbacks:
        why = f"{names}: not called, they may have effects outside (rehearse_callbacks=True)"
        stages.leave_out("callbacks", why)
        return {}
    with stages.part("callbacks") as note:
        found = rehearse_callbacks(own, request)
        note(names)
    return found


def _require_possible(parts: Parts, options: RehearseOptions) -> None:
    problem = ""
    if options.overfit not in (None, _OVERFIT):
        problem = f"overfit={options.overfit!r}"
    elif not parts.team.is_alone:
        problem = f"{parts.team.size} workers"
    if problem:
        raise ConfigurationError(
            message(
                "This cannot be rehearsed.",
                expected=f'one worker; overfit="{_OVERFIT}"',
                received=problem,
                do="correct the argument; rehearse with one worker, then train with several",
            )
        )


def _print(text: str) -> None:
    print(text, flush=True)


def _say_nothing(text: str) -> None:
    """Print nothing."""


_CALLBACK_STEPS = 2


def rehearse_callbacks(parts: Parts, request: FitRequest) -> dict[str, float]:
    """Train a few steps with copies of a request's callbacks; return the seconds of each hook.

    A hook that is called for every batch counts once.
    """
    own = list(keras.tree.flatten(request.callbacks))
    callbacks = copies(own, parts.task)
    with preserved_attributes(map(vars, own)), _leg(parts, request, callbacks) as leg:
        finished = Finished(leg.stepper.step, 0.0, "failed")
        try:
            for event, _, _ in leg.looped(Place(), {}, NoCheckpoints()):
                if isinstance(event, Finished):
                    finished = event
                else:
                    leg.bridge(event)
        finally:
            leg.bridge(finished)  # gives the model back what callbacks were lent
        found = leg.watch.details("callbacks")
    names = tuple({f"{type(callback).__name__}." for callback in callbacks})
    return {
        hook: seconds / (_CALLBACK_STEPS if "_batch_" in hook else 1)
        for hook, seconds in found.items()
        if hook.startswith(names)
    }


def copies(callbacks: Sequence[Any], task: Task) -> list[Any]:
    """Return copies that share variables, models and metrics, and what cannot be copied."""
    # Keras would copy a metric without its values; the variables of all these are restored.
    held = [part.value for part in variables.parts((task, *callbacks))]
    models = [getattr(one, "model", None) for one in callbacks]
    memo = {id(value): value for value in (task, *held, *models)}
    found = [memo.setdefault(id(one), copy.copy(one)) for one in callbacks]
    for one in found:
        for name, value in vars(one).items():
            with contextlib.suppress(Exception):
                vars(one)[name] = copy.deepcopy(value, memo)
    return found


@contextlib.contextmanager
def _leg(parts: Parts, request: FitRequest, callbacks: Sequence[Any]) -> Iterator[Leg]:
    """Yield a leg of a few steps that ends an epoch, and validates two batches if it can."""
    short = replace(request, validation_steps=min(2, request.validation_steps or 2))
    with scratch_leg(parts, short, until=Every(steps=_CALLBACK_STEPS), callbacks=callbacks) as leg:
        yield leg
