"""Rehearse a call of `fit`: everything that a run does, once, without leaving a trace."""

import contextlib
from dataclasses import dataclass, replace

import keras

from loopwright import disk
from loopwright.data.stream import Stream
from loopwright.errors import ConfigurationError, message
from loopwright.fit.options import FitOptions
from loopwright.fit.parts import Parts
from loopwright.fit.request import FitRequest
from loopwright.insight import estimates
from loopwright.insight.callback_rehearsal import rehearse_callbacks
from loopwright.insight.overfit import overfit
from loopwright.insight.planned_start import Planned
from loopwright.insight.rehearsal_report import Rehearsal
from loopwright.insight.rehearsed_leg import RehearsedLeg, examples
from loopwright.insight.scratch import (
    attributes_of_data,
    preserved,
    preserved_attributes,
    request_aside,
    scratch_leg,
    with_own_traces,
)
from loopwright.insight.stages import Stages, collected

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
            start = rehearsed.start(request)
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
    pace = estimates.Pace(rate, validation_seconds, compile_seconds)
    seconds, length = estimates.run_length(schedule, pace)
    kept = 0
    where = estimates.nearest_directory(planned.directory)
    free = disk.free_bytes(where)
    if planned.run is not None:
        kept = estimates.checkpoints_kept(planned.run.rules, schedule, seconds)
        with stages.part("disk", is_shown=False):
            estimates.require_room(written.bytes, kept, free, where)
    held = estimates.parameters(own.task)
    plan = own.selector.plan.in_words
    words = "; then: ".join(each.in_words for each in tries)
    to_try = f"the tuner would try: {words}" if tries else f"no other is tried: {why_none}"
    return Rehearsal(
        checks=(),
        trainable=held.trainable,
        frozen=held.frozen,
        statistics=held.statistics,
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
