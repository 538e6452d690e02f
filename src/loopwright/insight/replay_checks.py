"""What a replay refuses, and how it is compared with the record of the run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from loopwright.checkpoints import tensors
from loopwright.checkpoints.run_directory import Run
from loopwright.checkpoints.snapshot import Snapshot
from loopwright.compat import environment
from loopwright.config.edits import OnChange, edits
from loopwright.data.source import changed_data
from loopwright.errors import ConfigurationError, message
from loopwright.fit.leg import Leg
from loopwright.fit.moment import objection
from loopwright.fit.parts import Parts
from loopwright.fit.request import FitRequest
from loopwright.insight.rehearsal_report import in_time
from loopwright.insight.rehearsed_leg import differing
from loopwright.insight.replayed import Check
from loopwright.insight.scratch import require_readable_again
from loopwright.insight.step_look import is_close
from loopwright.runs import RunRecord, Steps

_SECONDS_WORTH_SAYING = 5.0


def require_replayable(parts: Parts, request: FitRequest) -> None:
    """Raise for data and for teams of workers that cannot repeat what they did."""
    if not parts.team.is_alone:
        raise ConfigurationError(
            message(
                "A step is replayed by one process.",
                expected="one worker",
                received=f"{parts.team.size} workers",
                do="start the replay without TF_CONFIG, SLURM or loopwright launch",
            )
        )
    require_readable_again(replace(request, sets={}))
    found = request.objection_to_resume
    if found is not None:
        raise ConfigurationError(
            message(
                "The steps of this run cannot be replayed: its data gives other batches each time.",
                expected="data that yields the same batches again",
                received=found.reason,
                do=f"{found.instead}, and train again; this run was accepted with "
                'exact="best_effort"',
            )
        )


def require_step(run: Run, record: Steps, step: Any) -> int:
    """Return the step to replay, by default the one that ended the run; raise if there is none."""
    if not run.has_checkpoints and run.recorded_plans() is None:
        raise ConfigurationError(never_saved(run))
    last = record.last_step
    if step is None and record.failed_step is not None:
        return record.failed_step
    if isinstance(step, int) and not isinstance(step, bool) and 1 <= step <= last:
        return step
    raise ConfigurationError(
        message(
            "No step was named." if step is None else "This run has no such step.",
            expected=f"a step from 1 to {last:,}" if last else "a run that has trained a step",
            received="no step, and a run that no step has ended" if step is None else repr(step),
            do="choose one of these steps; report.html shows where a loss goes wrong",
        )
    )


def never_saved(run: Run) -> str:
    """Return the message about a run without a record."""
    return message(
        "This run was never saved, so it has no steps to replay.",
        expected="a run directory with checkpoints, or at least a plan.json",
        received=f"neither in {run.directory}",
        do="check the path; to record a run, train with run_dir=...",
    )


def no_start(run: Run, step: int) -> str:
    """Return the message about a leg whose beginning was deleted."""
    return message(
        f"The state that this call of fit began with, after step {step:,}, was deleted.",
        expected=f"a checkpoint of step {step:,} in {run.directory}",
        received="later checkpoints only",
        do="choose a step after the first of them: loopwright runs RUN lists them",
    )


def beginning_is_gone(run: Run) -> str:
    """Return the message about a task that is no longer as its program made it."""
    return message(
        "No checkpoint before this step is kept, and the task has trained since it was made.",
        expected="a checkpoint before the step, or a task as the program makes it",
        received=f"a trained task, and no earlier checkpoint in {run.directory}",
        do="make the task and the trainer again, in a new process, and call replay before fit; to "
        "keep more checkpoints, pass keep=[KeepLatest(10)]",
    )


def ended_early(at: int, step: int, record: Steps) -> str:
    """Return the message about a replay that was not finite before it reached its step."""
    return message(
        f"The replay is not finite at step {at:,}, before it reached step {step:,}.",
        expected=f"finite losses until step {step:,}, as recorded",
        received=f"a run whose last step is {record.last_step:,}",
        do=f"replay step {at:,}: it shows what went wrong",
    )


def not_reached(step: int, last: int) -> str:
    """Return the message about data that ends before the step."""
    return message(
        f"The data ended after step {last:,}, before step {step:,}.",
        expected="the data and the steps_per_epoch of the run",
        received=f"{last:,} steps",
        do="pass to replay what was passed to fit",
    )


def require_same_data(request: FitRequest, reference: Snapshot | None) -> None:
    """Raise if the data differs from that of the run, before anything is built for it."""
    if reference is None or (request.data is None and not reference.has_data):
        return
    now = {} if request.data is None else request.data.fingerprint()
    other = changed_data(reference.data, now)
    if other:
        raise ConfigurationError(
            message(
                "The data differs from the data of the run: its steps cannot be replayed.",
                expected="the data and the batch_size that were passed to fit",
                received=other,
                do="pass to replay what was passed to fit",
            )
        )


def require_same_program(
    leg: Leg,
    named: dict[str, Any],
    reference: Snapshot | None,
    called: Sequence[Any],
    run: Run,
    on_change: OnChange,
) -> list[str]:
    """Raise if program or data differ from those of the run; return the edits that are accepted."""
    if reference is None:
        return []
    kinds = {type(each).__name__ for each in called}
    states = [state for state in reference.callbacks if state["class"] in kinds]
    accepts = on_change if not isinstance(on_change, str) else "start_over"
    differs = objection(leg, named, replace(reference, callbacks=states), accepts)
    if differs is None:
        return [f"edited since: {edit}" for edit in edits(reference.declared, leg.declared)]
    what = differs.partition("\n  do: ")[0]
    revision = _revision(run)
    raise ConfigurationError(
        message(
            f"{what}\nIts steps cannot be replayed.",
            do=f"replay with the code{revision} and the data of the run, and with the arguments of "
            "fit; to replay with edited code anyway, accept it by name: on_change=[...]",
        )
    )


def _revision(run: Run) -> str:
    git = RunRecord(run.directory).json("environment.json").get("git")
    revision = git.get("revision") if isinstance(git, dict) else None
    return f" (git revision {str(revision)[:12]})" if revision else ""


def environment_of(
    run: Run, reference: Snapshot | None, changes: Callable[[Snapshot], list[str]]
) -> list[str]:
    """Return what has changed in the environment since the run."""
    if reference is None:
        now = environment.environment()
        then = RunRecord(run.directory).json("environment.json")
        known = {name: value for name, value in then.items() if name in now}
        found = environment.changes(known, now) if known else []
    else:
        found = changes(reference)
        found += [f"this run {reason}" for reason in _inexact(reference)]
    return [f"the environment has changed: {each}" for each in found]


def _inexact(reference: Snapshot) -> list[str]:
    since = reference.exact_until_step
    return [] if since is None else [f"is bit-exact only until step {since:,}"]


def announced(start: int, step: int, record: Steps, *, is_leg_start: bool) -> str:
    """Return what a replay is about to do, and how long that takes by the record.

    >>> record = Steps(steps_per_second=50.0, last_step=900)
    >>> announced(0, 601, record, is_leg_start=True)
    'no checkpoint before step 601 is kept: replaying 600 steps from the start, about 12 s'
    """
    steps, rate = step - 1 - start, record.steps_per_second
    count = f"{steps:,} step{'' if steps == 1 else 's'}"
    seconds = 0.0 if rate is None else steps / rate
    took = f", about {in_time(seconds)}" if seconds >= _SECONDS_WORTH_SAYING else ""
    if is_leg_start and steps:
        from_where = "the start" if not start else f"step {start:,}, where this call of fit began"
        return (
            f"no checkpoint before step {step:,} is kept: replaying {count} from {from_where}{took}"
        )
    return f"replaying {count} from step {start:,}{took}"


def compared_state(step: int, then: Mapping[str, Any], named: Mapping[str, Any]) -> Check:
    """Compare the state after a step with that of the run's checkpoint, bit by bit."""
    now = tensors.snapshot(named)
    held = {name: then[name] for name in now if name in then}
    if tensors.digest(held) == tensors.digest(now):
        return Check(step, "state", matches=True, detail=f"sha256 {tensors.digest(now)[:16]}")
    names = differing(now, held)
    first = names[0]
    size = _distance(now[first], held.get(first))
    more = f" and {len(names) - 1} more variables" if len(names) > 1 else ""
    return Check(step, "state", matches=False, detail=f"{first}{size}{more}")


def _distance(now: Any, then: Any) -> str:
    if then is None or not now.dtype.is_floating or now.shape != then.shape:
        return ""
    difference = np.abs(np.asarray(now, np.float64) - np.asarray(then, np.float64))
    return f" by up to {np.nanmax(difference):.3g}" if np.isfinite(difference).any() else ""


def compared_numbers(step: int, then: Mapping[str, float], now: Mapping[str, Any]) -> Check:
    """Compare the numbers of an epoch so far with the recorded ones, up to rounding.

    >>> compared_numbers(7, {"loss": 0.5}, {"loss": 0.6}).detail
    'loss 0.5 then, 0.6 now'
    """
    pairs = {name: (value, now[name]) for name, value in then.items() if name in now}
    for name, (old, new) in pairs.items():
        if np.ndim(new) == 0 and not is_close(old, float(new)):
            return Check(
                step, "loss", matches=False, detail=f"{name} {old:.6g} then, {new:.6g} now"
            )
    return Check(step, "loss", matches=True)
