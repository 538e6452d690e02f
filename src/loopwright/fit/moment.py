"""A moment of a run, taken from its parts as a snapshot, and put back into them."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import keras

from loopwright import environment
from loopwright.checkpoints import retention, tensors
from loopwright.checkpoints.snapshot import Snapshot, difference
from loopwright.data import batches as specs
from loopwright.data.readers import Read
from loopwright.data.source import changed_data
from loopwright.distribute import replicas
from loopwright.engine.trace import Built
from loopwright.errors import ConfigurationError, StepError, message
from loopwright.events import Metrics
from loopwright.exactness import BEST_EFFORT, Exact, Inexact
from loopwright.fit import run_spec
from loopwright.fit.leg import Leg
from loopwright.guards import resources
from loopwright.loop.schedule import Place, restarted
from loopwright.run_changes import STEP, OnChange, edits, refusal
from loopwright.step_warnings import warn_at_call
from loopwright.task import variables
from loopwright.task.task import class_name


def require_resumable(leg: Leg, exact: Exact) -> tuple[dict[str, Any], list[str]]:
    """Return every variable of the task by name; raise if the step uses what cannot be saved.

    With `exact="best_effort"` random numbers that cannot be repeated are accepted; also returns
    the reasons why the step cannot be resumed exactly.
    """
    parts, reasons = leg.parts, list[str]()
    spec = None if leg.feed is None else leg.feed.batch_spec
    built = parts.engine.built("train_step", spec)
    if parts.engine.plans.plan.step == "eager":
        changing = parts.engine.changing_values(spec)
        if changing is not None and exact != "best_effort":
            raise StepError(changing)
        reasons += [] if changing is None else [changing.partition(": ")[0]]
    named = variables.named(parts.task)
    reasons += _unsaved(leg, "train_step", named, built, exact)
    for tested in parts.engine.traces("test_step") if leg.request.sets else ():
        reasons += _unsaved(leg, "test_step", named, tested, exact)
    return named, reasons


def _unsaved(leg: Leg, step: str, named: dict[str, Any], built: Built, exact: Exact) -> list[str]:
    """Return what a step draws from and no checkpoint holds; raise if `exact` refuses it."""
    task, accepts = leg.parts.task, exact == "best_effort"
    title = f"{class_name(task)}.{step}"
    seeds = variables.require_complete(named, built.captured, title, accepts_seeds=accepts)
    resources.require_saved(title, built.resources)
    drawn = unrepeatable(built.operations)
    if drawn and not accepts:
        raise StepError(
            f"{title} draws random numbers that cannot be repeated when it is resumed.",
            expected="random numbers from a state that is saved with the run",
            received=", ".join(drawn),
            do="hold a keras.random.SeedGenerator or a tf.random.Generator in the task and "
            f"draw from it; or {BEST_EFFORT}: a resumed run then draws its sequence from the "
            "start; or train without run_dir",
        )
    reasons = [f"{title} draws from {each}, which the task does not hold" for each in seeds]
    return [*reasons, *(f"{title} draws from {each}" for each in drawn)]


def restarts_epoch(snapshot: Snapshot, inexact: Inexact) -> bool:
    """Return whether the epoch of a snapshot has to start again: its position was not saved."""
    if snapshot.inexact.get("loses_position"):
        return bool(snapshot.inexact.get("restarts_epoch"))
    # The position was saved, for data that could not use it any more.
    place = snapshot.place
    return inexact.loses_position and place.step_in_epoch > 0 and not place.epoch_ended


def at_start_of_epoch(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with its weights and steps, at the beginning of its epoch."""
    batches = snapshot.read.batches - snapshot.place.step_in_epoch
    return replace(
        snapshot,
        place=restarted(snapshot.place),
        scores={},
        read=replace(snapshot.read, batches=batches),
        inexact={**snapshot.inexact, "restarts_epoch": False},
    )


def taken(
    leg: Leg,
    number: int,
    place: Place,
    scores: Metrics,
    read: Read,
    named: dict[str, Any],
    exact_until: int | None,
    lengths: Mapping[str, int],
    measured: Metrics,
    rules: Sequence[retention.Rule],
) -> Snapshot:
    """Return the moment as it is now, without its tensors."""
    request = leg.request
    return Snapshot(
        leg=number,
        until=str(request.until),
        place=place,
        scores=dict(scores),
        first_step=leg.first_step,
        first_epoch=leg.first_epoch,
        read=read,
        data=_fingerprint(leg),
        batch=None if leg.feed is None else specs.encoded(leg.feed.batch_spec),
        has_data=request.data is not None,
        lengths=lengths,
        passed_over=sorted(leg.stepper.passed_over),
        tally=leg.stepper.metrics.state(),
        history=leg.history.state(),
        callbacks=leg.callbacks.state(),
        plans=leg.parts.engine.plans.log.history.content(),
        variables=variables.table(leg.parts.team.everywhere(named)),
        environment=_environment(leg),
        exact_until_step=exact_until,
        measured=dict(measured),
        keep=retention.recorded(rules),
        declared=leg.declared,
        inexact=_recorded(leg, place),
    )


def _recorded(leg: Leg, place: Place) -> dict[str, Any]:
    if not leg.reasons:
        return {}
    loses = leg.inexact.loses_position
    return {
        "reasons": list(leg.reasons),
        "loses_position": loses,
        "restarts_epoch": loses and _is_inside_epoch(leg, place),
    }


def _is_inside_epoch(leg: Leg, place: Place) -> bool:
    """Return whether the epoch has more steps to come."""
    length = leg.schedule.steps_per_epoch
    return 0 < place.step_in_epoch != length and not place.epoch_ended


def declare(leg: Leg, number: int, snapshot: Snapshot | None, kept: Collection[str] = ()) -> None:
    """Declare what the program asks of a leg whose step is built; the same on all workers.

    Variables that are `kept` were set by hand since the leg was interrupted in this process: their
    new values are used, and are no edit of the program.
    """
    parts, request = leg.parts, leg.request
    numbers = {
        "seed": parts.seed,
        "shuffle": bool(request.shuffle),
        "steps_per_epoch": request.steps_per_epoch,
        "class_weight": request.class_weight,
    }
    before = None if snapshot is None else snapshot.declared
    found = run_spec.record(parts.task, numbers, leg=number, before=before, kept=kept)
    code = (STEP, "versions")  # what each worker's own Python makes of the program
    parts.team.require_same("program", {n: v for n, v in found.items() if n not in code})
    leg.declared = found


def objection(
    leg: Leg, named: dict[str, Any], snapshot: Snapshot, on_change: OnChange
) -> str | None:
    """Return what differs from the snapshot's program and data, and was not accepted.

    An edit of code is a warning only, unless it is to start over.
    """
    everywhere = leg.parts.team.everywhere(named)
    rates = run_spec.new_rates(snapshot.declared, leg.declared)
    rows = [
        [row for row in replicas.without_numbers(table) if row["name"] not in rates]
        for table in (snapshot.variables, variables.table(everywhere))
    ]
    changed = difference(*rows)
    found = edits(snapshot.declared, leg.declared)
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
    now = _fingerprint(leg)
    then, workers = (known.get("workers", 1) for known in (snapshot.data, now))
    if then != workers:
        # Not an edit: on as many machines as before the run continues.
        raise ConfigurationError(_other_shares(then, workers))
    other = "" if leg.request.data is None else changed_data(snapshot.data, now)
    if other:
        return message(
            "The data differs from the data this run was saved with.",
            expected="the data that the run began with",
            received=other,
            do='pass the same data and batch_size, pass on_change="start_over" to start over, or '
            "choose another run_dir",
        )
    return leg.callbacks.objection(snapshot.callbacks)


def put_back(
    leg: Leg,
    named: dict[str, Any],
    snapshot: Snapshot,
    read: Mapping[str, Any],
    exact: Exact,
) -> int | None:
    """Put back everything that `objection` accepts, with the tensors that were `read`.

    A learning rate that was accepted stays the new one. Returns since which step the bits may
    differ from those of a run without interruption.
    """
    exact_until = _still_exact(snapshot, exact, environment_changes(leg, snapshot))
    restore_parts(leg, named, snapshot, read)
    return exact_until


def restore_parts(
    leg: Leg, named: dict[str, Any], snapshot: Snapshot, read: Mapping[str, Any]
) -> None:
    """Put a moment back into the parts of a leg, whatever the environment is."""
    everywhere = leg.parts.team.everywhere(named)
    rates = run_spec.new_rates(snapshot.declared, leg.declared)
    restored = {name: variable for name, variable in named.items() if name not in rates}
    tensors.assign(restored, replicas.shared_out(read, everywhere))
    run_spec.set_rates(named, rates)
    leg.stepper.metrics.restore(snapshot.tally)
    leg.history.restore(snapshot.history)
    leg.callbacks.restore(snapshot.callbacks, read)
    leg.stepper.pass_over(*snapshot.passed_over)
    place = snapshot.place
    leg.stepper.resume(
        snapshot.step,
        snapshot.read,
        place.step_in_epoch,
        leg.parts.team.own_place(read),
        in_epoch=_is_inside_epoch(leg, place),
        has_position=not snapshot.inexact.get("loses_position"),
    )


def _fingerprint(leg: Leg) -> dict[str, Any]:
    return {} if leg.request.data is None else leg.request.data.fingerprint()


def _other_shares(then: int, now: int) -> str:
    return message(
        "The number of workers changed; data positions are saved per worker.",
        expected=f"{then} worker(s), as when this run began",
        received=f"{now} worker(s)",
        do=f"start {then} worker(s), or choose another run_dir; arrays, and a dataset that every "
        "worker reads as a whole (without lw.Shares), resume with any number",
    )


def _environment(leg: Leg) -> dict[str, Any]:
    """Return what the bits depend on; sums over replicas depend on how many there are."""
    return environment.environment() | {"replicas": leg.parts.strategy.num_replicas_in_sync}


def environment_changes(leg: Leg, snapshot: Snapshot) -> list[str]:
    """Return the differences between the environment of a checkpoint and this one."""
    return environment.changes({"replicas": 1, **snapshot.environment}, _environment(leg))


def _still_exact(snapshot: Snapshot, exact: Exact, changes: Sequence[str]) -> int | None:
    if not changes:
        return snapshot.exact_until_step
    if exact == "require":
        raise ConfigurationError(
            "This run cannot be resumed bit for bit: its environment has changed.",
            expected="the environment that the checkpoint was written in",
            received="; ".join(changes),
            do='resume there, or pass exact="warn" to resume anyway',
        )
    until = snapshot.step if snapshot.exact_until_step is None else snapshot.exact_until_step
    warn_at_call(
        f"The environment has changed ({'; '.join(changes)}): this run continues, and is bit-exact "
        f"until step {until}."
    )
    return until


_DRAWING = {
    "RandomUniform": "tf.nn.dropout or tf.random.uniform",
    "RandomUniformInt": "tf.random.uniform",
    "RandomStandardNormal": "tf.random.normal",
    "TruncatedNormal": "tf.random.truncated_normal",
    "ParameterizedTruncatedNormal": "tf.random.truncated_normal",
    "RandomGamma": "tf.random.gamma",
    "RandomPoisson": "tf.random.poisson",
    "RandomPoissonV2": "tf.random.poisson",
    "RandomShuffle": "tf.random.shuffle",
    "Multinomial": "tf.random.categorical",
    "RandomCrop": "tf.image.random_crop",
    "SampleDistortedBoundingBox": "tf.image.sample_distorted_bounding_box",
    "SampleDistortedBoundingBoxV2": "tf.image.sample_distorted_bounding_box",
    "FractionalMaxPool": "tf.nn.fractional_max_pool",
    "FractionalAvgPool": "tf.nn.fractional_avg_pool",
} | {
    f"{kind}CandidateSampler": "a sampled loss of tf.nn"
    for kind in (
        "Uniform",
        "LogUniform",
        "LearnedUnigram",
        "ThreadUnsafeUnigram",
        "FixedUnigram",
        "All",
    )
}
"""Operations that draw from a state of their own, by what users write."""


def unrepeatable(operations: Iterable[str]) -> list[str]:
    """Return the operations that draw from a state that cannot be saved, and what to use.

    They start over in another process, and would repeat the numbers of the first steps. `self.seed`
    in the advice is a `keras.random.SeedGenerator` that the task holds.

    >>> unrepeatable(["MatMul", "RandomStandardNormal", "StatelessRandomUniformV2"])
    ['tf.random.normal (instead: keras.random.normal(..., seed=self.seed))']
    """
    found = dict.fromkeys(_DRAWING[kind] for kind in operations if kind in _DRAWING)
    return [f"{drawn} (instead: {_seeded(drawn)})" for drawn in found]


def _seeded(drawn: str) -> str:
    module, _, name = drawn.rpartition(".")
    if hasattr(keras.random, name):
        return f"keras.random.{name}(..., seed=self.seed)"
    if module in ("tf.random", "tf.image"):
        return f"{module}.stateless_{name} with a seed from self.seed.next()"
    return "keras.random with seed=self.seed"
