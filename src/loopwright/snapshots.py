"""Snapshots: the moment of a run, taken from its parts, and put back into them."""

import warnings
from collections.abc import Mapping
from typing import Any, Literal

from loopwright import environment, repeatable, replicas, resources, state, tensors
from loopwright.building import Built
from loopwright.data import specs
from loopwright.data.source import Read, changed_data
from loopwright.errors import ConfigurationError, LoopwrightWarning, StepError, message
from loopwright.events import Metrics
from loopwright.fitting import Fitting
from loopwright.manifest import Checkpoint
from loopwright.runs import Snapshot
from loopwright.schedule import Place

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
        data={} if asked.data is None else asked.data.fingerprint(),
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
    )


def put_back(
    fitting: Fitting,
    named: dict[str, Any],
    checkpoint: Checkpoint,
    snapshot: Snapshot,
    exact: Exact,
) -> int | None:
    """Puts everything back; nothing is touched before everything was read and compared.

    Returns since which step the bits may differ from those of a run without interruption.
    """
    everywhere = fitting.lent.team.everywhere(named)
    changed = repeatable.difference(
        replicas.without_numbers(snapshot.variables),
        replicas.without_numbers(state.table(everywhere)),
    )
    if changed is not None:
        raise ConfigurationError(changed)
    data = fitting.asked.data
    now = {} if data is None else data.fingerprint()
    then, workers = (known.get("workers", 1) for known in (snapshot.data, now))
    if then != workers:
        raise ConfigurationError(_other_shares(then, workers))
    other = "" if data is None else changed_data(snapshot.data, now)
    if other:
        raise ConfigurationError(
            message(
                "This run was saved with other data.",
                expected="the data that the run began with",
                received=other,
                do="pass the same data and batch_size, or start over with fresh=True",
            )
        )
    exact_until = _still_exact(snapshot, exact, _environment(fitting))
    read = tensors.read(checkpoint.path / "state")
    tensors.assign(named, replicas.shared_out(read, everywhere))
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


def _other_shares(then: int, now: int) -> str:
    return message(
        "Each worker has saved its own place in the data, and these are other workers.",
        expected=f"{then} worker(s), as when this run began",
        received=f"{now} worker(s)",
        do=f"start {then} worker(s), or start over with fresh=True; arrays, and a dataset that "
        "every worker reads as a whole (without lw.Shares), go on with any number",
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
    warnings.warn(
        f"The environment has changed ({'; '.join(changes)}): this run goes on, and is bit-exact "
        f"until step {until}.",
        LoopwrightWarning,
        stacklevel=2,
    )
    return until
