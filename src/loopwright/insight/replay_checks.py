"""What a replay refuses, and how it is compared with the record of the run."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from loopwright import environment
from loopwright.checkpoints import tensors
from loopwright.checkpoints.run_directory import Run
from loopwright.checkpoints.snapshot import Snapshot
from loopwright.data.source import changed_data
from loopwright.errors import ConfigurationError
from loopwright.fit.parts import Parts
from loopwright.fit.request import FitRequest
from loopwright.fit.session import Session
from loopwright.fit.snapshots import environment_changes, objection
from loopwright.insight.rehearsal_report import in_time
from loopwright.insight.replayed import Check
from loopwright.insight.scratch import require_readable_again
from loopwright.insight.step_look import is_close
from loopwright.run_changes import OnChange, edits
from loopwright.runs import RecordedSteps, RunRecord, mapping

if TYPE_CHECKING:
    from loopwright.checkpoints.run_directory import Run
    from loopwright.checkpoints.snapshot import Snapshot
    from loopwright.fit.parts import Parts
    from loopwright.fit.request import FitRequest

_SECONDS_WORTH_SAYING = 5.0


def require_replayable(parts: "Parts", request: "FitRequest") -> None:
    """Raise for data and for teams of workers that cannot repeat what they did."""
    if not parts.team.is_alone:
        raise ConfigurationError(
            "A step is replayed by one process.",
            expected="one worker",
            received=f"{parts.team.size} workers",
            do="start the replay without TF_CONFIG, SLURM or loopwright launch",
        )
    require_readable_again(replace(request, sets={}))
    found = request.objection_to_resume
    if found is not None:
        raise ConfigurationError(
            "The steps of this run cannot be replayed: its data gives other batches each time.",
            expected="data that yields the same batches again",
            received=found.reason,
            do=f'{found.instead}, and train again; this run was accepted with exact="best_effort"',
        )


def require_step(run: "Run", record: RecordedSteps, step: Any) -> int:
    """Return the step to replay, by default the one that ended the run; raise if there is none."""
    if not run.has_checkpoints and run.recorded_plans() is None:
        raise ConfigurationError(
            "This run was never saved, so it has no steps to replay.",
            expected="a run directory with checkpoints, or at least a plan.json",
            received=f"neither in {run.directory}",
            do="check the path; to record a run, train with run_dir=...",
        )
    last = record.last_step
    if step is None and record.failed_step is not None:
        return record.failed_step
    if isinstance(step, int) and not isinstance(step, bool) and 1 <= step <= last:
        return step
    raise ConfigurationError(
        "No step was named." if step is None else "This run has no such step.",
        expected=f"a step from 1 to {last:,}" if last else "a run that has trained a step",
        received="no step, and a run that no step has ended" if step is None else repr(step),
        do="choose one of these steps; report.html shows where a loss goes wrong",
    )


def require_same_data(request: "FitRequest", reference: "Snapshot | None") -> None:
    """Raise if the data differs from that of the run, before anything is built for it."""
    if reference is None or (request.data is None and not reference.has_data):
        return
    now = {} if request.data is None else request.data.fingerprint()
    other = changed_data(reference.data, now)
    if other:
        raise ConfigurationError(
            "The data differs from the data of the run: its steps cannot be replayed.",
            expected="the data and the batch_size that were passed to fit",
            received=other,
            do="pass to replay what was passed to fit",
        )


def called_states(session: Session, snapshot: Snapshot) -> Snapshot:
    """Return a snapshot with the states of those callbacks only that a replay calls."""
    kinds = {type(callback).__name__ for callback in session.request.callbacks}
    return replace(snapshot, callbacks=[s for s in snapshot.callbacks if s["class"] in kinds])


def require_same_program(
    session: Session, reference: Snapshot | None, run: Run, on_change: OnChange
) -> list[str]:
    """Raise if program or data differ from those of the run; return the edits that are accepted."""
    if reference is None:
        return []
    accepts = on_change if not isinstance(on_change, str) else "start_over"
    differs = objection(session, called_states(session, reference), accepts)
    if differs is None:
        return [f"edited since: {edit}" for edit in edits(reference.declared, session.declared)]
    git = mapping(RunRecord(run.directory).json("environment.json").get("git"))
    revision = f" (git revision {str(git['revision'])[:12]})" if git.get("revision") else ""
    what = differs.partition("\n  do: ")[0]
    raise ConfigurationError(
        f"{what}\nIts steps cannot be replayed.",
        do=f"replay with the code{revision} and the data of the run, and with the arguments of "
        "fit; to replay with edited code anyway, accept it by name: on_change=[...]",
    )


def environment_changes_of(run: Run, session: Session, reference: Snapshot | None) -> list[str]:
    """Return what has changed in the environment since the run."""
    if reference is None:
        now = environment.environment()
        then = RunRecord(run.directory).json("environment.json")
        known = {name: value for name, value in then.items() if name in now}
        changes = environment.changes(known, now) if known else []
    else:
        changes = environment_changes(session, reference)
        if reference.exact_until_step is not None:
            changes.append(f"this run is bit-exact only until step {reference.exact_until_step:,}")
    return [f"the environment has changed: {change}" for change in changes]


def announced(start: int, step: int, record: RecordedSteps, *, is_leg_start: bool) -> str:
    """Return what a replay is about to do, and how long that takes by the record.

    >>> record = RecordedSteps(steps_per_second=50.0, last_step=900)
    >>> announced(0, 601, record, is_leg_start=True)
    'no checkpoint before step 601 is kept: replaying 600 steps from the start, about 12 s'
    """
    steps, rate = step - 1 - start, record.steps_per_second
    seconds = 0.0 if rate is None else steps / rate
    took = f", about {in_time(seconds)}" if seconds >= _SECONDS_WORTH_SAYING else ""
    why, where = "", f"step {start:,}"
    if is_leg_start and steps:
        why = f"no checkpoint before step {step:,} is kept: "
        where = f"{where}, where this call of fit began" if start else "the start"
    return f"{why}replaying {steps:,} step{'' if steps == 1 else 's'} from {where}{took}"


def compared_state(step: int, then: Mapping[str, Any], named: Mapping[str, Any]) -> Check:
    """Compare the state after a step with that of the run's checkpoint, bit by bit."""
    now = tensors.snapshot(named)
    held = {name: then[name] for name in now if name in then}
    if tensors.digest(held) == tensors.digest(now):
        return Check(step, "state", matches=True, detail=f"sha256 {tensors.digest(now)[:16]}")
    names = tensors.differing(now, held)
    first = names[0]
    one, other, size = now[first], held.get(first), ""
    if other is not None and one.dtype.is_floating and one.shape == other.shape:
        difference = np.abs(np.asarray(one, np.float64) - np.asarray(other, np.float64))
        size = f" by up to {np.nanmax(difference):.3g}" if np.isfinite(difference).any() else ""
    more = f" and {len(names) - 1} more variables" if len(names) > 1 else ""
    return Check(step, "state", matches=False, detail=f"{first}{size}{more}")


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
