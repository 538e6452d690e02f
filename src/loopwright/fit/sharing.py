"""Sharing: what several workers have in common, and one of them holds for all."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras

from loopwright.checkpoints import tensors
from loopwright.checkpoints.manifest import Checkpoint
from loopwright.checkpoints.run_directory import Run
from loopwright.checkpoints.snapshot import Snapshot
from loopwright.data.source import Data, Objection
from loopwright.distribute.team import Team
from loopwright.errors import ConfigurationError, message
from loopwright.exactness import EXACT, Exact, Inexact
from loopwright.fit.leg import FitRequest
from loopwright.step_warnings import warn_at_call

Found = tuple[Checkpoint, Snapshot]

_WRITING = (
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.BackupAndRestore,
    keras.callbacks.TensorBoard,
    keras.callbacks.CSVLogger,
)


@contextlib.contextmanager
def held(run: Run, team: Team) -> Iterator[Found | None]:
    """The newest checkpoint, for all workers the same; the chief holds the directory for them."""
    with contextlib.ExitStack() as opened:
        yield newest(run, team, lambda: opened.enter_context(run.opened()))


def newest(run: Run, team: Team, before: Callable[[], object]) -> Found | None:
    """The newest checkpoint, which the chief finds for all workers; it calls `before` first."""
    own: list[Found] = []

    def find() -> int:
        before()
        found = run.newest()
        own.extend([] if found is None else [found])
        return -1 if found is None else found[0].step

    step = team.from_chief(find)
    if step >= 0 and not own:
        own.append(run.chosen(step))
    return own[0] if own else None


def start_over(run: Run, team: Team, leg: int, why: str) -> Found | None:
    """Moves a leg and the ones after it aside; the end of the leg before it."""

    def move() -> int:
        aside = run.start_over(leg)
        differs = why.partition("\n  do: ")[0]
        text = f"{differs}\nStarting over; the previous run was moved to {aside}."
        warn_at_call(text)
        return 0

    team.from_chief(move)
    return run.end_of(leg - 1) if leg else None


def part(data: Data, team: Team) -> Data:
    """What this worker reads of some data."""
    return data.of(team.size, team.index)


def require_shareable(asked: FitRequest, team: Team) -> None:
    """Raises if several workers would not train on the same batches, or write the same files."""
    if team.is_alone:
        return
    objection = objection_to_resume(asked)
    if objection is not None:
        raise ConfigurationError(objection.among_workers())
    writing = [c for c in asked.callbacks if isinstance(c, _WRITING)]
    if writing:
        raise ConfigurationError(
            message(
                f"{type(writing[0]).__name__} would write the same files from every worker.",
                expected="callbacks that write no files",
                received=f"{team.size} workers",
                do="leave it out: a run_dir brings checkpoints and TensorBoard files",
            )
        )
    settings = [asked.until, asked.validate_every, asked.save_every, asked.steps_per_epoch]
    own = {
        name: data.fingerprint() for name, data in {"": asked.data, **asked.sets}.items() if data
    }
    team.require_same("data or settings", [own, list(map(str, settings)), asked.shuffle])


def objection_to_resume(asked: FitRequest) -> Objection | None:
    """Return why a run with the training data cannot be resumed exactly; None if it can."""
    return None if asked.data is None else asked.data.objection_to_resume()


def accepted_data(asked: FitRequest, exact: Exact) -> Inexact:
    """Return what `exact` accepts about the training data; raise if it accepts nothing."""
    objection = objection_to_resume(asked)
    if objection is None:
        return EXACT
    if exact != "best_effort":
        raise ConfigurationError(str(objection))
    return Inexact((objection.reason,), objection.loses_position)


def require_same_state(team: Team, named: Mapping[str, Any]) -> None:
    """Raises if a variable that all workers share is not the same on all of them."""
    if not team.is_alone:
        shared = {name: v for name, v in named.items() if name not in team.differing(named)}
        team.require_same("state", tensors.digest(tensors.snapshot(shared)))
