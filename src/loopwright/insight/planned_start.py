"""Where the real run will begin: at its start, from a checkpoint, or not at all."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from loopwright.checkpoints.run_directory import Run
from loopwright.config.edits import OnChange
from loopwright.errors import ConfigurationError, message
from loopwright.exactness import Exact
from loopwright.fit.leg import Leg
from loopwright.fit.moment import declare, objection
from loopwright.fit.request import FitRequest
from loopwright.fit.resume import entry
from loopwright.insight.estimates import nearest_directory
from loopwright.task import variables


@dataclass(frozen=True)
class Planned:
    """The call of `fit` that is rehearsed: which leg of which run."""

    run: Run | None
    leg: int
    first_epoch: int
    exact: Exact
    on_change: OnChange
    fresh: bool

    @property
    def directory(self) -> Path:
        """Where the run is written; the current directory if it is not."""
        return Path.cwd() if self.run is None else self.run.directory


def described(leg: Leg, planned: Planned, request: FitRequest) -> str:
    """Return in words where the run begins; raise if `fit` would refuse it."""
    run = planned.run
    if run is None:
        return "at step 0, in memory: there is no run directory"
    _require_writable(run.directory)
    if not run.has_checkpoints:
        return f"at step 0, in {run.directory}"
    if planned.fresh:
        return f"at step 0; the previous run in {run.directory} is moved aside"
    found = run.newest()
    snapshot = None if found is None else found[1]
    what = entry(planned.leg, request.until, None if snapshot is None else snapshot.reached)
    if snapshot is None or what == "begin":
        return f"leg {planned.leg + 1} begins after step {leg.first_step:,} of {run.directory}"
    # Callbacks are compared when they are rehearsed with the run itself.
    then = replace(snapshot, callbacks=leg.bridge.state())
    declare(leg, planned.leg, then)
    differs = objection(leg, variables.named(leg.parts.task), then, planned.on_change)
    if differs is not None and planned.on_change == "start_over":
        return f"at step 0: {differs.splitlines()[0]} The previous run is moved aside"
    if differs is not None:
        raise ConfigurationError(differs)
    if what == "skip":
        return f"nothing is left to train: {run.directory} is complete at step {snapshot.step:,}"
    return f"resumes from step {snapshot.step:,} of {run.directory}"


def _require_writable(directory: Path) -> None:
    nearest = nearest_directory(directory)
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise ConfigurationError(
            message(
                "The run directory cannot be written to.",
                expected="a directory that can be written to",
                received=f"run_dir={os.fspath(directory)!r}: no permission in {nearest}",
                do="choose another run_dir, or change the permissions",
            )
        )
