"""Restore a checkpoint into a task, to score, export or train it."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, final

from loopwright.checkpoints import tensors
from loopwright.checkpoints.initial_weights import start_from
from loopwright.checkpoints.run_directory import Run
from loopwright.checkpoints.snapshot import difference
from loopwright.data import batches
from loopwright.distribute import replicas
from loopwright.engine.engine import Engine
from loopwright.errors import ConfigurationError
from loopwright.task import variables
from loopwright.task.optimizers import finalize_averages
from loopwright.task.state import preserved

Which = Literal["best", "last"] | int
Checkpoint = Which | Literal["current"]
"""What `evaluate`, `predict` and `export` take: "current" is the state that the task holds."""


_Run = TypeVar("_Run")


def require_run(run: _Run | None) -> _Run:
    """Return the run; raise if there is none."""
    if run is None:
        raise ConfigurationError(
            "There is nothing to restore: this trainer has no run directory.",
            expected="Trainer(task, run_dir=...)",
            received="run_dir=None",
            do="pass the run_dir that the checkpoints were written to",
        )
    return run


@dataclass(frozen=True)
class _Found:
    """A checkpoint that fits the task, as read."""

    named: Mapping[str, Any]
    values: Mapping[str, Any]
    step: int
    is_final: bool
    """Whether it is restored as the end of `fit`, with averaged weights in place."""

    def put_into(self, task: Any, *, counts: bool) -> None:
        """Give a task the state; `counts`: the step counter too."""
        own = {name: v for name, v in self.named.items() if counts or name != "step"}
        tensors.assign(own, self.values)
        if self.is_final:
            finalize_averages(task)  # the best score was one without them


@final
class HeldState:
    """The state that a task holds: as it was made, given, trained or restored."""

    def __init__(
        self,
        engine: Engine,
        run: Run | None,
        *,
        init_from: str | None,
        fresh: bool,
    ) -> None:
        self._engine, self._task, self._run, self._team = engine, engine.task, run, engine.team
        self._init_from = init_from
        self._has_trained = False
        # Whether the source of the weights is known. A fresh run has none to choose from.
        self._is_clear = fresh
        self._restored_step: int | None = None

    def restore(self, which: Which, metric: str | None) -> int:
        """Restore a checkpoint until something else is trained or restored; return its step.

        The step counter too, unless this process has trained: who trains on from an earlier state
        adds to the run, and does not go back in it.
        """
        found = self._read(which, metric)
        found.put_into(self._task, counts=not self._has_trained)
        self._restored_step, self._is_clear = found.step, True
        return found.step

    @contextlib.contextmanager
    def of(self, checkpoint: Any, called: str) -> Iterator[int]:
        """Hold the state that a call uses inside a `with` block; yield its step."""
        if checkpoint not in (None, "current"):
            found = self._read(checkpoint)
            with preserved(found.named.values()):  # everything: reading it has built the task
                found.put_into(self._task, counts=True)
                yield found.step
            return
        if checkpoint is None and not self._is_clear:
            _require_no_checkpoints(self._run, called)
        self.start_from_given_weights()
        step = self._restored_step
        yield int(self._task.step_counter.read_value()) if step is None else step

    def _read(self, which: Which, metric: str | None = None) -> _Found:
        """Return a checkpoint that fits the task; raise if its variables differ."""
        checkpoint, snapshot = require_run(self._run).chosen(which, metric)
        if snapshot.batch is not None or not snapshot.has_data:
            spec = None if snapshot.batch is None else batches.decoded(snapshot.batch)
            self._engine.built("train_step", spec)
        named = variables.named(self._task)
        everywhere = self._team.everywhere(named)
        changed = difference(
            replicas.without_numbers(snapshot.variables),
            replicas.without_numbers(variables.table(everywhere)),
        )
        if changed is not None:
            raise ConfigurationError(changed)
        found = tensors.read(checkpoint.path / "state", snapshot.variables)
        is_final = which == "last" and snapshot.position.is_over
        left = tensors.read_end(checkpoint.path, snapshot.end) if is_final else {}
        values = replicas.shared_out(found | left, everywhere)
        return _Found(named, values, snapshot.step, is_final and not snapshot.has_end)

    def start_from_given_weights(self) -> None:
        """Apply the initial weights that the trainer was given, once."""
        source, self._init_from = self._init_from, None
        if source is not None:
            start_from(self._task, source)

    def trains(self) -> None:
        """Note that a call of `fit` begins."""
        self._restored_step = None

    def is_set_by_leg(self) -> None:
        """Note that `fit` has given the task its state: new, resumed or of a finished leg."""
        self._has_trained = self._is_clear = True

    def starts_over(self) -> None:
        """Count the steps of a new run from 0, even if something was restored."""
        if not self._has_trained:
            self._task.step_counter.assign(0)


def _require_no_checkpoints(run: Run | None, called: str) -> None:
    """Raise where a run has checkpoints to choose from: the weights meant are not clear."""
    if run is not None and run.has_checkpoints:
        raise ConfigurationError(
            "This process has neither trained nor restored this run, so the task does not "
            "hold its weights.",
            expected=f'{called}(..., checkpoint="best"), "last", a step, or "current"',
            received=f"no checkpoint, and a run with checkpoints in {run.directory}",
            do='pass "best", "last" or a step for trained weights, or "current" for the '
            "weights that the task holds now",
        )
