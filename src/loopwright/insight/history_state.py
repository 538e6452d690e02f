"""The states that a run went through: read from its checkpoints, or replayed between them.

Everything is replayed in memory, by the plans that the run recorded. The task has its own state
back afterwards, and nothing is written into the run.
"""

import contextlib
import os
import warnings
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, final

import numpy as np
import tensorflow as tf

from loopwright import disk
from loopwright.checkpoints import tensors
from loopwright.checkpoints.fork import ORIGIN
from loopwright.checkpoints.manifest import Checkpoint
from loopwright.checkpoints.run_directory import Run
from loopwright.checkpoints.snapshot import Snapshot, parsed
from loopwright.compat import environment
from loopwright.config.edits import edits
from loopwright.data.source import changed_data
from loopwright.errors import ConfigurationError, NotFiniteError, message
from loopwright.events import Trained
from loopwright.fit.leg import Leg
from loopwright.fit.moment import declare, put_back, require_resumable, taken
from loopwright.fit.options import FitOptions
from loopwright.fit.parts import Parts
from loopwright.fit.request import FitRequest
from loopwright.fit.restore import require_run
from loopwright.fit.saved_leg import Moment
from loopwright.insight.first_difference import Difference, State, bisect_states
from loopwright.insight.scratch import request_aside, scratch_leg
from loopwright.loop.schedule import Place
from loopwright.plans.plan_history import PlanHistory
from loopwright.task.optimizers import learning_rates, optimizers

if TYPE_CHECKING:
    from loopwright.trainer import Trainer

_MOST_MOMENTS = 4
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
    found = [_checkpoints(Run(run, ())) for run in given if isinstance(run, str | os.PathLike)]
    common = sorted(set.intersection(*map(set, found))) if len(found) == len(given) else []
    if not common:
        raise ConfigurationError(
            message(
                "These runs have no state to compare.",
                expected="two run directories with a checkpoint of the same step, or two trainers",
                received=", ".join(f"{run!r:.80}" for run in given),
                do="pass two trainers and the arguments of fit: then any step is replayed",
            )
        )
    for count, step in enumerate(common, start=1):
        first, second = (_recorded(checkpoints[step]) for checkpoints in found)
        if names := first.differing(second):
            return Difference(step, names, count)
    return None


def run_states(trainer: "Trainer", *data: Any, **options: Any) -> "RunStates":
    """Return the states that the run of a new trainer went through, for the arguments of `fit`."""
    parts, run = trainer._parts, require_run(trainer._run)  # pyright: ignore[reportPrivateUsage]
    request = request_aside(FitOptions(*data, **{**options, "callbacks": ()}), parts)
    return RunStates(parts, request, run.directory)


@final
class RunStates:
    """The states of the first call of `fit` in a run directory.

    with run_states(trainer, x, y, batch_size=32) as states:
        states.after(1200).digests
    """

    def __init__(
        self, parts: Parts, request: FitRequest, run_dir: "str | os.PathLike[str]"
    ) -> None:
        self._parts, self._request, self._run = parts, request, Run(run_dir, ())
        self.directory = Path(run_dir)
        self._found = _checkpoints(self._run)
        self._last = None if not self._found else parsed(self._found[max(self._found)])
        self._open = contextlib.ExitStack()
        self._leg: Leg | None = None
        self._named: dict[str, Any] = {}
        self._moments: OrderedDict[int, Moment] = OrderedDict()
        self._place, self._at = Place(), -1
        self._asked = 0
        self._begun: Moment | None = None
        self.reasons: list[str] = []
        """Why replaying may not give the bits of the run: what differs now, what is not exact."""

    @property
    def steps(self) -> list[int]:
        """The steps that have a checkpoint, the oldest first."""
        return sorted(self._found)

    @cached_property
    def plans(self) -> PlanHistory:
        """Which plans ran the steps of the run."""
        recorded = self._run.recorded_plans()
        if recorded is None and self._last is not None:
            return self._run.plans(self._last)
        return PlanHistory() if recorded is None else recorded

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as opened:
            first = self._first_snapshot()
            leg = opened.enter_context(
                scratch_leg(self._parts, self._request, plans=self.plans, snapshot=first)
            )
            self._leg = leg
            named, inexact = require_resumable(leg, "best_effort")
            self._named = named
            declare(leg, _LEG, self._last)
            self.reasons = [*self._changes(leg), *inexact]
            if self._last is not None:
                leg.stepper.pass_over(*self._last.passed_over)
            # The steps before a fork are those of another run, with another config.
            if first is None and disk.status(self.directory, ORIGIN) is None:
                self._at = 0
                self._begun = self._moment()
            self._open = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._leg = None
        self._moments.clear()
        self._open.close()

    def after(self, step: int) -> State:
        """Return the state after a step: of its checkpoint, or replayed from the one before."""
        if step in self._found:
            return self.recorded(step)
        return self.replayed(step)

    def ask(self, step: int) -> None:
        """Take a step that `answer` returns the state of."""
        self._asked = step

    def answer(self) -> State:
        """Return the state after the step that was asked for."""
        return self.after(self._asked)

    def recorded(self, step: int) -> State:
        """Return the state in the checkpoint of a step, verified to the last byte."""
        return _recorded(self._found[step])

    def replayed(self, step: int, *, passes: bool = False) -> State:
        """Return the state after a step, replayed from the nearest state before it.

        `passes`: not from the checkpoint of this very step.
        """
        self._go_to(step, passes=passes)
        return State(step, _digests(tensors.snapshot(self._named)))

    def disagreement(self, step: int) -> list[str]:
        """Replay from `step` to the next checkpoint; return the variables that differ from it."""
        later = [each for each in self._found if each >= step]
        if not later:
            return []
        return self.replayed(min(later), passes=True).differing(self.recorded(min(later)))

    def value(self, step: int, name: str) -> "np.ndarray[Any, Any]":
        """Return a variable after a step."""
        self._go_to(step)
        return np.asarray(tensors.snapshot({name: self._named[name]})[name])

    def facts(self, step: int) -> dict[str, Any]:
        """Return what made a step: its plan, its batch, the learning rates, as JSON values."""
        leg = self._opened()
        self._go_to(step - 1)
        plan = self.plans.at(step - 1)[0].in_words if self.plans.changes else ""
        settings = self.plans.settings_after(step - 1)
        return {
            "plan": plan,
            "settings": "" if settings is None else settings.in_words,
            "rates": learning_rates(optimizers(leg.parts.task)),
            "batch": self._batch_digest(step - 1),
            "examples": leg.stepper.batch_in_words(leg.stepper.read.batches),
        }

    def _changes(self, leg: Leg) -> list[str]:
        """Return what differs between the run and the program and process that replay it."""
        snapshot = self._last
        if snapshot is None:
            return []
        found = [f"the program differs now: {e}" for e in edits(snapshot.declared, leg.declared)]
        if leg.request.data is not None:
            other = changed_data(snapshot.data, leg.request.data.fingerprint())
            found += [f"the data differs now: {other}"] if other else []
        now = {**environment.environment(), "replicas": leg.parts.strategy.num_replicas_in_sync}
        recorded = {"replicas": 1, **snapshot.environment}
        found += [f"the environment differs now: {c}" for c in environment.changes(recorded, now)]
        names = ", ".join(sorted({each["class"] for each in snapshot.callbacks}))
        found += [f"callbacks are not called in a replay: {names}"] if names else []
        return found

    def _first_snapshot(self) -> Snapshot | None:
        """Return a snapshot to build the leg with, if the task is not as it was made."""
        is_new = int(self._parts.task.step_counter.read_value()) == 0
        return None if is_new else self._last

    def _opened(self) -> Leg:
        if self._leg is None:
            raise RuntimeError("RunStates is used outside of its with block")
        return self._leg

    def _go_to(self, step: int, *, passes: bool = False) -> None:
        """Replay to a step, from the nearest state before it."""
        leg = self._opened()
        nearest = step - passes
        start = self._start(nearest)
        if not start <= self._at <= nearest:
            self._put_back(start)
        if self._at < step:
            self._replay(leg, step)
        self._keep(step, self._moment())

    def _start(self, step: int) -> int:
        known = [each for each in (*self._moments, *self._found) if each <= step]
        begins = [0] if self._begun is not None else []
        if not known and not begins:
            raise ConfigurationError(
                message(
                    f"{self.directory} cannot be replayed to step {step:,}.",
                    expected="a checkpoint at or before this step, or a run that began at step 0",
                    received=f"checkpoints at {', '.join(map(str, self.steps)) or 'no step'}",
                    do="choose a later step",
                )
            )
        return max(known + begins)

    def _put_back(self, step: int) -> None:
        leg = self._opened()
        if step in self._moments:
            moment = self._moments[step]
        elif step in self._found:
            held = tensors.read(self._found[step].path / "state")
            moment = Moment(replace(parsed(self._found[step]), callbacks=[]), held)
        else:
            assert self._begun is not None  # noqa: S101 - `_start` has returned 0
            moment = self._begun
        snapshot, held = moment
        leg.read_again(snapshot.read)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # `reasons` says what has changed
            put_back(leg, self._named, snapshot, held, "warn")
        self._place, self._at = replace(snapshot.place, is_over=False), step
        self._keep(step, moment)

    def _replay(self, leg: Leg, step: int) -> None:
        wanted = self._place.step + step - self._at
        change = self.plans.steps_to_settings_change(self._at)
        if change is not None and self._at + change < step:
            at = self._at + change
            raise ConfigurationError(
                message(
                    f"{self.directory} cannot be replayed to step {step:,} from step {self._at:,}.",
                    expected="steps that ran in a process with the same settings",
                    received=f"other process settings since step {at + 1:,}, which TensorFlow "
                    "reads once",
                    do=f"choose a step up to {at:,}, or one after a checkpoint that is later",
                )
            )
        try:
            for event, place, _ in leg.replayed(self._place, step - self._at):
                if isinstance(event, Trained):
                    self._place, self._at = place, leg.stepper.step
                if place.step == wanted and isinstance(event, Trained):
                    return
        except NotFiniteError as error:
            self._at = -1
            raise ConfigurationError(
                message(
                    f"{self.directory} cannot be replayed to step {step:,}: its loss is not "
                    f"finite at step {error.step:,}.",
                    expected="finite losses, as the run had",
                    received=str(error).splitlines()[0],
                    do=f"look at that step: loopwright replay {self.directory} --step {error.step}",
                )
            ) from None

    def _moment(self) -> Moment:
        """Return where the replay is now, to come back to."""
        leg = self._opened()
        read, position = leg.stepper.position()
        snapshot = taken(leg, _LEG, self._place, {}, read, self._named, None, {}, {}, ())
        return Moment(replace(snapshot, callbacks=[]), tensors.snapshot(self._named) | position)

    def _keep(self, step: int, moment: Moment) -> None:
        self._moments[step] = moment
        self._moments.move_to_end(step)
        while len(self._moments) > _MOST_MOMENTS:
            self._moments.popitem(last=False)

    def _batch_digest(self, step: int) -> str | None:
        """Return the digest of the batch that comes after a step."""
        leg, moment = self._opened(), self._moments[step]
        if leg.feed is None:
            return None
        leg.read_again(moment.snapshot.read)
        feed = leg.feed
        reader = feed.open()
        reader.restore(moment.snapshot.read, moment.held)
        found: Any = next(reader.iterator, None)
        if isinstance(found, tf.experimental.Optional):
            found = found.get_value() if bool(found.has_value()) else None
        self._put_back(step)
        leaves = tf.nest.flatten(found)
        return tensors.digest({str(at): tf.convert_to_tensor(v) for at, v in enumerate(leaves)})


def _checkpoints(run: Run) -> dict[int, Checkpoint]:
    """Return the valid checkpoints of the first call of `fit`, by step."""
    whole = run.checkpoints()
    return {each.step: each for each in whole if each.content["leg"] == _LEG}


def _recorded(checkpoint: Checkpoint) -> State:
    values = tensors.read(checkpoint.path / "state", parsed(checkpoint).variables)
    return State(checkpoint.step, _digests(values))


def _digests(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: tensors.digest({name: value}) for name, value in values.items()}
