"""Snapshots: the moment of a run, taken from its parts, and put back into them."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from loopwright import (
    declaration,
    environment,
    repeatable,
    replicas,
    resources,
    retention,
    state,
    tensors,
)
from loopwright.building import Built
from loopwright.data import specs
from loopwright.data.source import Read, changed_data
from loopwright.edits import STEP, OnChange, edits, refusal
from loopwright.errors import ConfigurationError, StepError, message
from loopwright.events import Metrics
from loopwright.fitting import Fitting
from loopwright.runs import Snapshot
from loopwright.schedule import Place
from loopwright.warning_places import warn_at_call

Exact = Literal["warn", "require"]


def require_resumable(fitting: Fitting) -> dict[str, Any]:
    """Every variable of the task by name; raises if the step uses what could not be saved."""
    lent = fitting.lent
    spec = None if fitting.feed is None else fitting.feed.batch_spec
    built = lent.runners.built("train_step", spec)
    if lent.piloting.plan.step == "eager":
        lent.runners.require_unchanging(spec)
    named = state.named(lent.task)
    _require_saved(fitting, "train_step", named, built)
    for tested in lent.runners.tests_built() if fitting.asked.sets else ():
        _require_saved(fitting, "test_step", named, tested)
    return named


def _require_saved(fitting: Fitting, step: str, named: dict[str, Any], built: Built) -> None:
    task = fitting.lent.task
    title = f"{type(task).__name__}.{step}"
    state.require_complete(named, built.captured, title)
    resources.require_saved(title, built.resources, task)
    drawn = repeatable.unrepeatable(built.operations)
    if drawn:
        raise StepError(
            message(
                f"{title} draws random numbers that cannot be repeated when it is resumed.",
                expected="random numbers from a state that is saved with the run",
                received=", ".join(drawn),
                do="hold a keras.random.SeedGenerator or a tf.random.Generator in the task and "
                "draw from it; or train without run_dir",
            )
        )


def taken(
    fitting: Fitting,
    leg: int,
    place: Place,
    scores: Metrics,
    read: Read,
    named: dict[str, Any],
    exact_until: int | None,
    lengths: Mapping[str, int],
    measured: Metrics,
    rules: Sequence[retention.Rule],
) -> Snapshot:
    """The moment as it is now; the tensors are taken beside it."""
    asked = fitting.asked
    return Snapshot(
        leg=leg,
        until=str(asked.until),
        place=place,
        scores=dict(scores),
        first_step=fitting.first_step,
        first_epoch=fitting.first_epoch,
        read=read,
        data=_fingerprint(fitting),
        batch=None if fitting.feed is None else specs.encoded(fitting.feed.batch_spec),
        has_data=asked.data is not None,
        lengths=lengths,
        passed_over=sorted(fitting.training.passed_over),
        tally=fitting.tally.state(),
        history=fitting.history.state(),
        callbacks=fitting.bridge.state(),
        plans=fitting.lent.piloting.history.content(),
        variables=state.table(fitting.lent.team.everywhere(named)),
        environment=_environment(fitting),
        exact_until_step=exact_until,
        measured=dict(measured),
        keep=retention.recorded(rules),
        declared=fitting.declared,
    )


def declare(
    fitting: Fitting, leg: int, snapshot: Snapshot | None, kept: Collection[str] = ()
) -> None:
    """Notes what the program asks of a leg whose step is built; all workers ask for the same.

    Variables that are `kept` were set by hand since the leg was interrupted in this process: their
    new values are used, and are no edit of the program.
    """
    lent, asked = fitting.lent, fitting.asked
    numbers = {
        "seed": lent.seed,
        "shuffle": bool(asked.shuffle),
        "steps_per_epoch": asked.steps_per_epoch,
        "class_weight": asked.class_weight,
    }
    before = None if snapshot is None else snapshot.declared
    found = declaration.declared(lent.task, numbers, leg=leg, before=before)
    if before:
        declaration.keep_rates(found, before, kept)
    code = (STEP, "versions")  # what each worker's own Python makes of the program
    lent.team.require_same("program", {n: v for n, v in found.items() if n not in code})
    fitting.declared = found


def objection(
    fitting: Fitting, named: dict[str, Any], snapshot: Snapshot, on_change: OnChange
) -> str | None:
    """What differs from the program and the data that the snapshot is of, and was not accepted.

    An edit of code is a warning only, unless it is to start over.
    """
    everywhere = fitting.lent.team.everywhere(named)
    rates = declaration.new_rates(snapshot.declared, fitting.declared)
    rows = [
        [row for row in replicas.without_numbers(table) if row["name"] not in rates]
        for table in (snapshot.variables, state.table(everywhere))
    ]
    changed = repeatable.difference(*rows)
    found = edits(snapshot.declared, fitting.declared)
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
    now = _fingerprint(fitting)
    then, workers = (known.get("workers", 1) for known in (snapshot.data, now))
    if then != workers:
        # Not an edit: on as many machines as before the run continues.
        raise ConfigurationError(_other_shares(then, workers))
    other = "" if fitting.asked.data is None else changed_data(snapshot.data, now)
    if other:
        return message(
            "This run was saved with other data.",
            expected="the data that the run began with",
            received=other,
            do='pass the same data and batch_size, pass on_change="start_over" to start over, or '
            "choose another run_dir",
        )
    return fitting.bridge.objection(snapshot.callbacks)


def put_back(
    fitting: Fitting,
    named: dict[str, Any],
    snapshot: Snapshot,
    read: Mapping[str, Any],
    exact: Exact,
) -> int | None:
    """Puts everything back that `objection` has nothing against, with the tensors that were `read`.

    A learning rate that was accepted stays the new one. Returns since which step the bits may
    differ from those of a run without interruption.
    """
    everywhere = fitting.lent.team.everywhere(named)
    exact_until = _still_exact(snapshot, exact, _environment(fitting))
    rates = declaration.new_rates(snapshot.declared, fitting.declared)
    restored = {name: variable for name, variable in named.items() if name not in rates}
    tensors.assign(restored, replicas.shared_out(read, everywhere))
    declaration.set_rates(named, rates)
    fitting.tally.restore(snapshot.tally)
    fitting.history.restore(snapshot.history)
    fitting.bridge.restore(snapshot.callbacks, read)
    fitting.training.passed_over |= set(snapshot.passed_over)
    place, length = snapshot.place, fitting.schedule.steps_per_epoch
    in_epoch = 0 < place.step_in_epoch != length and not place.epoch_ended
    fitting.training.resume(
        snapshot.step,
        snapshot.read,
        place.step_in_epoch,
        fitting.lent.team.own_place(read),
        in_epoch=in_epoch,
    )
    return exact_until


def _fingerprint(fitting: Fitting) -> dict[str, Any]:
    return {} if fitting.asked.data is None else fitting.asked.data.fingerprint()


def _other_shares(then: int, now: int) -> str:
    return message(
        "Each worker has saved its own place in the data, and these are other workers.",
        expected=f"{then} worker(s), as when this run began",
        received=f"{now} worker(s)",
        do=f"start {then} worker(s), or choose another run_dir; arrays, and a dataset that every "
        "worker reads as a whole (without lw.Shares), go on with any number",
    )


def _environment(fitting: Fitting) -> dict[str, Any]:
    """What the bits depend on; sums over replicas depend on how many there are."""
    return environment.environment() | {"replicas": fitting.lent.strategy.num_replicas_in_sync}


def _still_exact(snapshot: Snapshot, exact: Exact, now: Mapping[str, Any]) -> int | None:
    changes = environment.changes({"replicas": 1, **snapshot.environment}, now)
    if not changes:
        return snapshot.exact_until_step
    if exact == "require":
        raise ConfigurationError(
            message(
                "This run cannot be resumed bit for bit: its environment has changed.",
                expected="the environment that the checkpoint was written in",
                received="; ".join(changes),
                do='resume there, or pass exact="warn" to go on all the same',
            )
        )
    until = snapshot.step if snapshot.exact_until_step is None else snapshot.exact_until_step
    warn_at_call(
        f"The environment has changed ({'; '.join(changes)}): this run goes on, and is bit-exact "
        f"until step {until}."
    )
    return until
