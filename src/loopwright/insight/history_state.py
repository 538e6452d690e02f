"""The states that a run went through: read from its checkpoints, or replayed between them.

Everything is replayed in memory, by the plans that the run recorded. The task has its own state
back afterwards, and nothing is written into the run.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np
import tensorflow as tf

from loopwright.checkpoints import tensors
from loopwright.checkpoints.manifest import Checkpoint
from loopwright.checkpoints.snapshot import Snapshot, load, parsed
from loopwright.data.source import changed_data
from loopwright.errors import ConfigurationError, NotFiniteError
from loopwright.fit.options import FitOptions
from loopwright.fit.request import Start
from loopwright.fit.restore import require_run
from loopwright.fit.session import Session
from loopwright.fit.snapshots import environment_changes
from loopwright.insight.first_difference import Difference, State, bisect_states
from loopwright.insight.scratch import peek, request_aside, scratch_session
from loopwright.plans import record as plan_record
from loopwright.plans.record import PlanHistory
from loopwright.run_changes import edits
from loopwright.runs import RunRecord
from loopwright.task.optimizers import learning_rates, optimizers

if TYPE_CHECKING:
    from loopwright.trainer import Trainer

_MOST_MOMENTS = 5
_LEG = 0
_RunDirectory = str | os.PathLike[str]


def first_difference(
    one: "Trainer | _RunDirectory", other: "Trainer | _RunDirectory", *data: Any, **options: Any
) -> Difference | None:
    """Return the first step at which two runs differ; None: they are equal as far as both go.

    Of two trainers that have not trained yet the runs in their run directories are replayed in
    memory, with the arguments of `fit`: `lw.first_difference(one, other, x, y, epochs=5)`. Of two
    run directories only the checkpoints are compared.
    """
    if isinstance(one, str | os.PathLike) or isinstance(other, str | os.PathLike):
        return _first_other_checkpoint(one, other)
    with run_states(one, *data, **options) as first, run_states(other, *data, **options) as second:
        return bisect_states(first, second)


def _first_other_checkpoint(*given: Any) -> Difference | None:
    paths = [run for run in given if isinstance(run, str | os.PathLike)]
    saved = [_checkpoints(RunRecord(Path(path))) for path in paths]
    common = sorted(set.intersection(*map(set, saved))) if len(saved) == len(given) else []
    if not common:
        raise ConfigurationError(
            "These runs have no state to compare.",
            expected="two run directories with a checkpoint of the same step, or two trainers",
            received=", ".join(f"{run!r:.80}" for run in given),
            do="pass two trainers and the arguments of fit: then any step is replayed",
        )
    for count, step in enumerate(common, start=1):
        first, second = (_recorded(checkpoints[step]) for checkpoints in saved)
        if names := first.differing(second):
            return Difference(step, names, count)
    return None


@contextlib.contextmanager
def run_states(trainer: "Trainer", *data: Any, **options: Any) -> Iterator["RunStates"]:
    """Yield the states that the run of a new trainer went through, for the arguments of `fit`."""
    parts, run = trainer._parts, require_run(trainer._run)  # pyright: ignore[reportPrivateUsage]
    request = request_aside(FitOptions(*data, **{**options, "callbacks": ()}), parts)
    record = RunRecord(run.directory)
    checkpoints = _checkpoints(record)
    last = parsed(checkpoints[max(checkpoints)]) if checkpoints else None
    plans = record.plans
    if not plans.changes and last is not None:
        plans = plan_record.parsed(last.plans)
    first = None if int(parts.task.step_counter.read_value()) == 0 else last
    plan = plans if plans.changes else None
    start = Start(snapshot=first, exact="best_effort", reference=last)
    with scratch_session(parts, request, plan=plan, start=start) as session:
        states = RunStates(session, run.directory, checkpoints, last, plans)
        # The steps before a fork are those of another run, with another config.
        if first is None and not record.origin:
            states.begin()
        yield states


@final
class RunStates:
    """The states of the first call of `fit` in a run directory, as `run_states` yields them."""

    def __init__(
        self,
        session: Session,
        directory: Path,
        checkpoints: Mapping[int, Checkpoint],
        last: Snapshot | None,
        plans: PlanHistory,
    ) -> None:
        self._session, self._directory, self._plans = session, directory, plans
        self._checkpoints = checkpoints
        self._moments: dict[int, Snapshot] = {}
        self._at, self._asked = -1, 0
        inexact = session.exactness.reasons
        self.reasons = [*([] if last is None else _changes(session, last)), *inexact]
        """Why replaying may not give the bits of the run: what differs now, what is not exact."""
        if last is not None:
            session.stepper.pass_over(*last.passed_over)

    def begin(self) -> None:
        """Take the state of the task as the one that the run began with."""
        self._at = 0
        self._keep(0, self._session.capture(self._session.position, {}))

    @property
    def steps(self) -> list[int]:
        """The steps that have a checkpoint, the oldest first."""
        return sorted(self._checkpoints)

    def after(self, step: int) -> State:
        """Return the state after a step: of its checkpoint, or replayed from the one before."""
        return self.recorded(step) if step in self._checkpoints else self.replayed(step)

    def ask(self, step: int) -> None:
        """Take a step that `answer` returns the state of."""
        self._asked = step

    def answer(self) -> State:
        """Return the state after the step that was asked for."""
        return self.after(self._asked)

    def recorded(self, step: int) -> State:
        """Return the state in the checkpoint of a step, verified to the last byte."""
        return _recorded(self._checkpoints[step])

    def replayed(self, step: int, *, passes: bool = False) -> State:
        """Return the state after a step, replayed from the nearest state before it.

        `passes`: not from the checkpoint of this very step.
        """
        self._go_to(step, passes=passes)
        return State(step, _digests(tensors.snapshot(self._session.named)))

    def disagreement(self, step: int) -> list[str]:
        """Replay from `step` to the next checkpoint; return the variables that differ from it."""
        later = min((saved for saved in self._checkpoints if saved >= step), default=None)
        if later is None:
            return []
        return self.replayed(later, passes=True).differing(self.recorded(later))

    def value(self, step: int, name: str) -> "np.ndarray[Any, Any]":
        """Return a variable after a step."""
        self._go_to(step)
        return np.asarray(tensors.snapshot({name: self._session.named[name]})[name])

    def facts(self, step: int) -> dict[str, Any]:
        """Return what made a step: its plan, its batch, the learning rates, as JSON values."""
        self._go_to(step - 1)
        session = self._session
        return {
            "plan": self._plans.at(step - 1)[0].in_words if self._plans.changes else "",
            "rates": learning_rates(optimizers(session.parts.task)),
            "examples": session.stepper.batch_in_words(session.position.read.batches),
            "batch": self._batch_digest(step - 1),
        }

    def _go_to(self, step: int, *, passes: bool = False) -> None:
        """Replay to a step, from the nearest state before it."""
        nearest = step - passes
        start = self._start(nearest)
        if not start <= self._at <= nearest:
            self._put_back(start)
        if self._at < step:
            self._replay(step)
        self._keep(step, self._session.capture(self._session.position, {}))

    def _start(self, step: int) -> int:
        known = [known for known in (*self._moments, *self._checkpoints) if known <= step]
        if not known:
            raise ConfigurationError(
                f"{self._directory} cannot be replayed to step {step:,}.",
                expected="a checkpoint at or before this step, or a run that began at step 0",
                received=f"checkpoints at {', '.join(map(str, self.steps)) or 'no step'}",
                do="choose a later step",
            )
        return max(known)

    def _put_back(self, step: int) -> None:
        moment = self._moments.get(step)
        if moment is None:
            checkpoint = self._checkpoints[step]
            moment = load((checkpoint, replace(parsed(checkpoint), callbacks=[])))
        self._session.seek(moment.position.read)
        self._session.apply(moment)
        self._at = step
        self._keep(step, moment)

    def _replay(self, step: int) -> None:
        try:
            for _ in self._session.run_quietly(step - self._at):
                self._at = self._session.step
        except NotFiniteError as error:
            self._at = -1
            raise ConfigurationError(
                f"{self._directory} cannot be replayed to step {step:,}: its loss is not "
                f"finite at step {error.step:,}.",
                expected="finite losses, as the run had",
                received=str(error).splitlines()[0],
                do=f"look at that step: loopwright replay {self._directory} --step {error.step}",
            ) from None

    def _keep(self, step: int, moment: Snapshot) -> None:
        """Hold some moments, the last ones and the beginning of the run."""
        self._moments.pop(step, None)
        self._moments[step] = moment
        if len(self._moments) > _MOST_MOMENTS:
            del self._moments[next(filter(None, self._moments))]

    def _batch_digest(self, step: int) -> str | None:
        """Return the digest of the batch that comes after a step; None if there is none."""
        batch = peek(self._session)
        self._put_back(step)
        if batch is None:
            return None
        leaves = enumerate(tf.nest.flatten(batch))
        return tensors.digest({str(at): tf.convert_to_tensor(leaf) for at, leaf in leaves})


def _changes(session: Session, last: Snapshot) -> list[str]:
    """Return what differs between a run and the program and process that replay it."""
    changes = [
        f"the program differs now: {edit}" for edit in edits(last.declared, session.declared)
    ]
    if session.request.data is not None:
        other = changed_data(last.data, session.request.data.fingerprint())
        changes += [f"the data differs now: {other}"] if other else []
    environment = environment_changes(session, last)
    changes += [f"the environment differs now: {change}" for change in environment]
    names = ", ".join(sorted({state["class"] for state in last.callbacks}))
    return [*changes, *([f"callbacks are not called in a replay: {names}"] if names else [])]


def _checkpoints(record: RunRecord) -> dict[int, Checkpoint]:
    """Return the valid checkpoints of the first call of `fit`, by step."""
    return {saved.step: saved for saved in record.checkpoints if saved.content["leg"] == _LEG}


def _recorded(checkpoint: Checkpoint) -> State:
    values = tensors.read(checkpoint.path / "state", parsed(checkpoint).variables)
    return State(checkpoint.step, _digests(values))


def _digests(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: tensors.digest({name: value}) for name, value in values.items()}
