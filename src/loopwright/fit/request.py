"""What one call of `fit` is asked for: its options, checked before anything is built."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import keras

from loopwright.checkpoints.snapshot import Snapshot
from loopwright.data.adapter import training_data, validation_sets
from loopwright.data.source import Data, Objection
from loopwright.distribute.team import Team
from loopwright.errors import ConfigurationError
from loopwright.events import Sink
from loopwright.exactness import EXACT, Exact, Inexact
from loopwright.fit.history import History
from loopwright.fit.options import FitOptions
from loopwright.loop.schedule import Every, every, require_positive
from loopwright.task.task import Task, require_step

_WRITING = (
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.BackupAndRestore,
    keras.callbacks.TensorBoard,
    keras.callbacks.CSVLogger,
)


@dataclass(frozen=True)
class FitRequest:
    """What one call of `fit` is asked for, and the sinks that are told."""

    data: Data | None
    sets: Mapping[str, Data]
    """The validation data, by the prefix of its scores."""
    until: Every
    validate_every: Every
    save_every: Every | None
    steps_per_epoch: int | None
    steps_without_data: int | None
    """The steps of an epoch, of a step that takes no data."""
    validation_steps: int | None
    shuffle: bool
    class_weight: Mapping[int, float] | None
    callbacks: Sequence[keras.callbacks.Callback]
    sinks: Sequence[Sink]
    history: History
    is_observed: bool = False
    """Whether a sink other than the terminal receives facts, learning rates, gradients, images."""
    run_dir: Path | None = None

    @property
    def objection_to_resume(self) -> Objection | None:
        """Why a run with this data cannot be resumed exactly; None if it can."""
        return None if self.data is None else self.data.objection_to_resume()


@final
@dataclass(frozen=True)
class Start:
    """Where a session begins, and what it has to be able to do."""

    number: int = 0
    """Which call of `fit` of its run it is, counted from 0."""
    first_epoch: int = 0
    snapshot: Snapshot | None = None
    """A moment of the same call of `fit`, to continue from; its tensors are applied later."""
    exact: Exact | None = None
    """How exactly the session must be resumable; None: it is not saved."""
    accepted: Inexact = EXACT
    """What is accepted about the data; asked for once: asking may read from it."""
    reference: Snapshot | None = None
    """What the program is compared with; None: the snapshot."""
    reasons: Sequence[str] = ()
    """Why earlier starts of the run could not be resumed exactly."""
    ends: bool = False
    """Whether nothing is left to train, and only the end is to be called and written."""
    edited: Collection[str] = ()
    """Variables that were set by hand since the session was interrupted in this process."""
    notes: Sequence[str] = ()


def fit_request(
    options: FitOptions,
    task: Task,
    team: Team,
    *,
    saves: bool,
    sinks: Sequence[Sink],
    is_observed: bool,
    history: History,
) -> FitRequest:
    """Return what the options ask for, of this worker's share of the data; raise if they clash."""
    until = duration(options.epochs, options.until)
    length = options.steps_per_epoch
    require_positive(steps_per_epoch=length, validation_steps=options.validation_steps)
    data, held_out = training_data(
        options.x,
        options.y,
        options.sample_weight,
        options.batch_size,
        options.class_weight,
        options.validation_split,
        options.validation_data,
    )
    require_step(task, "train_step", has_batch=data is not None)
    if held_out is not None:
        require_step(task, "test_step")
    sets = validation_sets(held_out, options.batch_size)
    request = FitRequest(
        data=None if data is None else data.of(team.size, team.index),
        sets={name: held.of(team.size, team.index) for name, held in sets.items()},
        until=until,
        validate_every=every(options.validate_every),
        save_every=every(options.save_every) if saves else None,
        steps_per_epoch=length,
        steps_without_data=length_without_data(length, until) if data is None else None,
        validation_steps=options.validation_steps,
        shuffle=options.shuffle,
        class_weight=options.class_weight,
        callbacks=options.callbacks,
        sinks=sinks,
        history=history,
        is_observed=is_observed,
    )
    _require_shareable(request, team)
    return request


def duration(epochs: int, until: str | Every | None) -> Every:
    """Return how long to train.

    >>> str(duration(3, None)), str(duration(1, "6 hours"))
    ('3 epochs', '21600 seconds')
    """
    if until is None:
        require_positive("call trainer.evaluate(...) to score without training", epochs=epochs)
        return Every(epochs=epochs)
    if epochs != 1:
        raise ConfigurationError(
            "epochs and until both say how long to train.",
            expected="one of them",
            received=f"epochs={epochs}, until={until!r}",
            do="leave one out",
        )
    return every(until)


def length_without_data(length: int | None, until: Every) -> int | None:
    """Return the steps per epoch of a step that takes no data: all of them, unless given."""
    if length is None and until.epochs is not None:
        raise ConfigurationError(
            "A step without data has no epochs of its own.",
            expected='until="10000 steps", or steps_per_epoch',
            received="no data and no length",
            do='call fit(None, until="10000 steps")',
        )
    return until.steps if length is None else length


def accepted_data(request: FitRequest, exact: Exact) -> Inexact:
    """Return what `exact` accepts about the training data; raise if it accepts nothing."""
    objection = request.objection_to_resume
    if objection is None:
        return EXACT
    if exact != "best_effort":
        raise ConfigurationError(str(objection))
    return Inexact((objection.reason,), objection.loses_position)


def require_watchable(watch: Any, task: Task) -> None:
    """Raise if this cannot be watched of the task."""
    if watch not in (None, "gradients") or (watch and task.reported == "last"):
        raise ConfigurationError(
            "This cannot be watched.",
            expected='watch="gradients", with a task whose step calls minimize or apply',
            received=f"watch={watch!r}, {type(task).__name__}",
            do="leave watch out; of a compiled Keras model, make a task: lw.Supervised(...)",
        )


def _require_shareable(request: FitRequest, team: Team) -> None:
    """Raise if several workers would not train on the same batches, or write the same files."""
    if team.is_alone:
        return
    objection = request.objection_to_resume
    if objection is not None:
        raise ConfigurationError(objection.among_workers())
    writing = [c for c in request.callbacks if isinstance(c, _WRITING)]
    if writing:
        raise ConfigurationError(
            f"{type(writing[0]).__name__} would write the same files from every worker.",
            expected="callbacks that write no files",
            received=f"{team.size} workers",
            do="leave it out: a run_dir brings checkpoints and TensorBoard files",
        )
    settings = [request.until, request.validate_every, request.save_every, request.steps_per_epoch]
    sets = {"": request.data, **request.sets}
    own = {name: data.fingerprint() for name, data in sets.items() if data}
    team.require_same("data or settings", [own, list(map(str, settings)), request.shuffle])
