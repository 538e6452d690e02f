"""Restoring: the state of an earlier moment, put into a task to be scored, exported or trained."""

from typing import Any, Literal

from loopwright import repeatable, replicas, state, tensors
from loopwright.agreement import Team
from loopwright.averages import finalize_averages
from loopwright.data import specs
from loopwright.errors import ConfigurationError, message
from loopwright.runners import Runners
from loopwright.runs import Run

Which = Literal["best", "last"] | int


def restore(
    task: Any, runners: Runners, run: Run, which: Which, team: Team, metric: str | None = None
) -> int:
    """Gives a task the state of a checkpoint; the step it belongs to.

    The run's own step counter stays: who trains on from here adds to the run, and does not go back
    in it.
    """
    checkpoint, snapshot = run.chosen(which, metric)
    if snapshot.batch is not None or not snapshot.has_data:
        spec = None if snapshot.batch is None else specs.decoded(snapshot.batch)
        runners.built("train_step", spec)
    named = state.named(task)
    everywhere = team.everywhere(named)
    changed = repeatable.difference(
        replicas.without_numbers(snapshot.variables),
        replicas.without_numbers(state.table(everywhere)),
    )
    if changed is not None:
        raise ConfigurationError(changed)
    found = tensors.read(checkpoint.path / "state", snapshot.variables)
    found = replicas.shared_out(found, everywhere)
    tensors.assign({name: v for name, v in named.items() if name != "step"}, found)
    if which == "last" and snapshot.place.is_over:
        finalize_averages(task)  # as at the end of `fit`; the best score was one without them
    return snapshot.step


def require_run(run: Run | None) -> Run:
    """The run, if there is one."""
    if run is None:
        raise ConfigurationError(
            message(
                "There is nothing to restore: this trainer has no run directory.",
                expected="Trainer(task, run_dir=...)",
                received="run_dir=None",
                do="pass the run_dir that the checkpoints were written to",
            )
        )
    return run
