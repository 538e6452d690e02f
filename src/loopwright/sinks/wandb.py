"""W&B as a tracker: `lw.sinks.WandB(...)`, and `sinks: [wandb]` in configs.

Online, a run continues after the step that W&B has. Offline, W&B cannot continue a run: every start
writes the whole journal into a directory of its own, `RUN/wandb/offline-run-TIME-ID`, under the
same id. The newest one is complete.
"""

import os
import posixpath
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, final

from loopwright import disk, extras
from loopwright.errors import ConfigurationError
from loopwright.sinks.outbox import Facts, Row, Status, TrackedRun, Tracker

Mode = Literal["online", "offline"]
_EXIT_CODES = {"completed": 0, "failed": 1, "interrupted": 255}


def WandB(
    project: str | None = None,
    *,
    entity: str | None = None,
    run_name: str | None = None,
    mode: Mode | None = None,
    artifacts: Sequence[str] = (),
    running: bool = False,
    wait_seconds: float = 10.0,
) -> Tracker:
    """Return a sink that brings a run to W&B: no step is missing, also after kills and resumes.

    `project`, `entity` and `mode` are by default those of W&B: `WANDB_PROJECT`, `WANDB_ENTITY`,
    `WANDB_MODE`. With `mode="offline"` files are written into `wandb` in the run directory, for
    `wandb sync`. The other arguments are those of `MLflow`.
    """
    service = WandBService(project, entity, run_name, mode)
    return Tracker(service, artifacts=artifacts, running=running, wait_seconds=wait_seconds)


@final
class WandBService:
    """A project of W&B, or its files in the run directory."""

    tracker = "wandb"

    def __init__(
        self, project: str | None, entity: str | None, run_name: str | None, mode: str | None
    ) -> None:
        self._wandb = extras.imported("wandb", "The sink WandB", instead="leave the sink out")
        self._mode = mode or os.environ.get("WANDB_MODE") or "online"
        if self._mode not in ("online", "offline"):
            raise ConfigurationError(
                "Unknown mode of W&B.",
                expected="online or offline",
                received=repr(self._mode),
                do="correct mode, or WANDB_MODE",
            )
        self._project = project or os.environ.get("WANDB_PROJECT") or "loopwright"
        self._entity, self._run_name = entity or os.environ.get("WANDB_ENTITY"), run_name
        owner = {"entity": self._entity} if self._entity else {}
        self.address: Mapping[str, str] = {"project": self._project, **owner, "mode": self._mode}
        self._tracked: Any = None
        self._next_step = 0

    def open(self, run: TrackedRun, *, is_training: bool) -> None:
        """Begin or continue the tracked run."""
        if self._tracked is not None:
            self._tracked.finish()
        self._tracked = self._wandb.init(
            project=self._project,
            entity=self._entity,
            name=self._run_name or run.name,
            id=run.key,
            resume="allow",
            mode=self._mode,
            dir=None if run.directory is None else str(run.directory),
            reinit="create_new",
            settings=self._wandb.Settings(console="off", silent=True),
        )
        self._next_step = self._tracked.starting_step

    def describe(self, facts: Facts) -> None:
        """Set the config of the tracked run: parameters, tags and signatures."""
        about = {name.removeprefix("loopwright."): value for name, value in facts.tags.items()}
        given = {**facts.parameters, "loopwright": {**about, "signatures": facts.signatures}}
        self._tracked.config.update(given, allow_val_change=True)

    def send(self, rows: Sequence[Row]) -> None:
        """Log the rows that come after what W&B has, each at its step."""
        for row in rows:
            if row.step >= self._next_step:
                self._tracked.log(dict(row.values), step=row.step, commit=True)
                self._next_step = row.step + 1

    def upload(self, files: Mapping[str, Path]) -> None:
        """Save files of the run, under their paths in the run directory."""
        home = Path(self._tracked.dir)
        for name, path in files.items():
            disk.make_directory(home, posixpath.dirname(name))
            disk.copy(path.parent, path.name, home, name)
            self._tracked.save(str(home / name), base_path=self._tracked.dir, policy="now")

    def close(self, status: Status) -> None:
        """Finish the tracked run: everything is on disk, or was received, when this returns."""
        tracked, self._tracked = self._tracked, None
        tracked.finish(exit_code=_EXIT_CODES[status])
