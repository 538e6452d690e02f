"""Snapshots: the moment of a run, taken from its parts, and put back into them."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from loopwright.checkpoints import retention, tensors
from loopwright.checkpoints.snapshot import Snapshot
from loopwright.compat import environment
from loopwright.config.edits import (
    STEP,
    OnChange,
    edits,
    refusal,
)
from loopwright.data import batches as specs
from loopwright.data.reader import Read
from loopwright.data.source import changed_data
from loopwright.distribute import replicas
from loopwright.engine.trace import Built
from loopwright.errors import ConfigurationError, StepError, message
from loopwright.events import Metrics
from loopwright.exactness import BEST_EFFORT, Exact, Inexact
from loopwright.fit import declaration
from loopwright.fit.leg import Leg
from loopwright.guards import resources
from loopwright.loop.schedule import Place, restarted
from loopwright.step_warnings import warn_at_call
from loopwright.task import variables
from loopwright.task.task import class_name
from loopwright.task.variables import Row, shape_text, shortened


def require_resumable(fitting: Leg, exact: Exact) -> tuple[dict[str, Any], list[str]]:
    """Return every variable of the task by name; raise if the step uses what cannot be saved.

    With `exact="best_effort"` random numbers that cannot be repeated are accepted; also returns
    the reasons why the step cannot be resumed exactly.
    """
    lent, reasons = fitting.lent, list[str]()
    spec = None if fitting.feed is None else fitting.feed.batch_spec
    built = lent.runners.built("train_step", spec)
    if lent.piloting.plan.step == "eager":
        changing = lent.runners.changing_values(spec)
        if changing is not None and exact != "best_effort":
            raise StepError(changing)
        reasons += [] if changing is None else [changing.partition(": ")[0]]
    named = variables.named(lent.task)
    reasons += _unsaved(fitting, "train_step", named, built, exact)
    for tested in lent.runners.tests_built() if fitting.asked.sets else ():
        reasons += _unsaved(fitting, "test_step", named, tested, exact)
    return named, reasons


def _unsaved(
    fitting: Leg, step: str, named: dict[str, Any], built: Built, exact: Exact
) -> list[str]:
    """Return what a step draws from and no checkpoint holds; raise if `exact` refuses it."""
    task, accepts = fitting.lent.task, exact == "best_effort"
    title = f"{class_name(task)}.{step}"
    seeds = variables.require_complete(named, built.captured, title, accepts_seeds=accepts)
    resources.require_saved(title, built.resources, task)
    drawn = unrepeatable(built.operations)
    if drawn and not accepts:
        raise StepError(
            message(
                f"{title} draws random numbers that cannot be repeated when it is resumed.",
                expected="random numbers from a state that is saved with the run",
                received=", ".join(drawn),
                do="hold a keras.random.SeedGenerator or a tf.random.Generator in the task and "
                f"draw from it; or {BEST_EFFORT}: a resumed run then draws its sequence from the "
                "start; or train without run_dir",
            )
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
    fitting: Leg,
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
        variables=variables.table(fitting.lent.team.everywhere(named)),
        environment=_environment(fitting),
        exact_until_step=exact_until,
        measured=dict(measured),
        keep=retention.recorded(rules),
        declared=fitting.declared,
        inexact=_recorded(fitting, place),
    )


def _recorded(fitting: Leg, place: Place) -> dict[str, Any]:
    if not fitting.reasons:
        return {}
    loses = fitting.inexact.loses_position
    return {
        "reasons": list(fitting.reasons),
        "loses_position": loses,
        "restarts_epoch": loses and _is_inside_epoch(fitting, place),
    }


def _is_inside_epoch(fitting: Leg, place: Place) -> bool:
    """Return whether the epoch has more steps to come."""
    length = fitting.schedule.steps_per_epoch
    return 0 < place.step_in_epoch != length and not place.epoch_ended


def declare(fitting: Leg, leg: int, snapshot: Snapshot | None, kept: Collection[str] = ()) -> None:
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
    fitting: Leg, named: dict[str, Any], snapshot: Snapshot, on_change: OnChange
) -> str | None:
    """What differs from the program and the data that the snapshot is of, and was not accepted.

    An edit of code is a warning only, unless it is to start over.
    """
    everywhere = fitting.lent.team.everywhere(named)
    rates = declaration.new_rates(snapshot.declared, fitting.declared)
    rows = [
        [row for row in replicas.without_numbers(table) if row["name"] not in rates]
        for table in (snapshot.variables, variables.table(everywhere))
    ]
    changed = difference(*rows)
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
    fitting: Leg,
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
    place = snapshot.place
    fitting.training.resume(
        snapshot.step,
        snapshot.read,
        place.step_in_epoch,
        fitting.lent.team.own_place(read),
        in_epoch=_is_inside_epoch(fitting, place),
        has_position=not snapshot.inexact.get("loses_position"),
    )
    return exact_until


def _fingerprint(fitting: Leg) -> dict[str, Any]:
    return {} if fitting.asked.data is None else fitting.asked.data.fingerprint()


def _other_shares(then: int, now: int) -> str:
    return message(
        "Each worker has saved its own place in the data, and these are other workers.",
        expected=f"{then} worker(s), as when this run began",
        received=f"{now} worker(s)",
        do=f"start {then} worker(s), or choose another run_dir; arrays, and a dataset that every "
        "worker reads as a whole (without lw.Shares), go on with any number",
    )


def _environment(fitting: Leg) -> dict[str, Any]:
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


_KERAS = "keras.random.{0}(..., seed=self.seed)"


_STATELESS = "tf.random.stateless_{0} with a seed from self.seed.next()"


_SAMPLER = "keras.random.categorical(..., seed=self.seed)"


_INSTEAD = {
    "RandomUniform": ("tf.random.uniform or tf.nn.dropout", _KERAS.format("uniform")),
    "RandomUniformInt": ("tf.random.uniform", _KERAS.format("randint")),
    "RandomStandardNormal": ("tf.random.normal", _KERAS.format("normal")),
    "TruncatedNormal": ("tf.random.truncated_normal", _KERAS.format("truncated_normal")),
    "ParameterizedTruncatedNormal": (
        "tf.random.truncated_normal",
        _STATELESS.format("parameterized_truncated_normal"),
    ),
    "RandomGamma": ("tf.random.gamma", _KERAS.format("gamma")),
    "RandomPoisson": ("tf.random.poisson", _STATELESS.format("poisson")),
    "RandomPoissonV2": ("tf.random.poisson", _STATELESS.format("poisson")),
    "RandomShuffle": ("tf.random.shuffle", _KERAS.format("shuffle")),
    "Multinomial": ("tf.random.categorical", _KERAS.format("categorical")),
    "RandomCrop": ("tf.image.random_crop", "keras.layers.RandomCrop"),
    "SampleDistortedBoundingBox": (
        "tf.image.sample_distorted_bounding_box",
        "tf.image.stateless_sample_distorted_bounding_box with a seed from self.seed.next()",
    ),
    "FractionalMaxPool": ("tf.nn.fractional_max_pool", "keras.layers.MaxPooling2D"),
    "FractionalAvgPool": ("tf.nn.fractional_avg_pool", "keras.layers.AveragePooling2D"),
    "UniformCandidateSampler": ("a sampled loss of tf.nn", _KERAS.format("randint")),
    "LogUniformCandidateSampler": ("a sampled loss of tf.nn", _SAMPLER),
    "LearnedUnigramCandidateSampler": ("a sampled loss of tf.nn", _SAMPLER),
    "ThreadUnsafeUnigramCandidateSampler": ("a sampled loss of tf.nn", _SAMPLER),
    "FixedUnigramCandidateSampler": ("a sampled loss of tf.nn", _SAMPLER),
    "AllCandidateSampler": ("a sampled loss of tf.nn", _SAMPLER),
}
_INSTEAD["SampleDistortedBoundingBoxV2"] = _INSTEAD["SampleDistortedBoundingBox"]


def unrepeatable(operations: Iterable[str]) -> list[str]:
    """The kinds of operations that draw from a state which nobody can save, and what to use.

    They begin anew in another process, and would repeat the numbers of the first steps. `self.seed`
    in the advice is a `keras.random.SeedGenerator` that the task holds.

    >>> unrepeatable(["MatMul", "RandomStandardNormal", "StatelessRandomUniformV2"])
    ['tf.random.normal (instead: keras.random.normal(..., seed=self.seed))']
    """
    found = dict.fromkeys(_INSTEAD[kind] for kind in operations if kind in _INSTEAD)
    return [f"{drawn} (instead: {instead})" for drawn, instead in found]


def difference(saved: Sequence[Row], current: Sequence[Row]) -> str | None:
    """What is different between two tables of variables; None if nothing is.

    >>> row = {"name": "weight", "dtype": "float32", "shape": [2]}
    >>> text = difference([row], [{**row, "shape": [3]}])
    >>> print(text.splitlines()[2])
        weight: (2,) in the checkpoint, (3,) now
    """
    then, now = ({row["name"]: row for row in rows} for rows in (saved, current))
    both = [(name, then[name], now[name]) for name in now if name in then]

    def changed(what: str, text: Callable[[Any], str]) -> list[str]:
        return [
            f"{name}: {text(old[what])} in the checkpoint, {text(new[what])} now"
            for name, old, new in both
            if old[what] != new[what]
        ]

    def alone(rows: Mapping[str, Row], others: Mapping[str, Row]) -> list[str]:
        return [
            f"{name}: {row['dtype']} {shape_text(row['shape'])}"
            for name, row in rows.items()
            if name not in others
        ]

    differences = {
        "added since the checkpoint": alone(now, then),
        "in the checkpoint only": alone(then, now),
        "reshaped": changed("shape", shape_text),
        "retyped": changed("dtype", str),
    }
    lines = ["The task has other variables than the checkpoint."]
    for kind, texts in differences.items():
        lines += [f"  {kind}:", *(f"    {text}" for text in shortened(texts))] if texts else []
    if len(lines) == 1:
        return None
    return message(
        "\n".join(lines),
        do='restore the old structure; pass on_change="start_over" to start over; or choose '
        "another run_dir, with init_from= to take over the weights that match",
    )
