"""W&B as a tracker: `lw.sinks.WandB(...)`, and `sinks: [wandb]` in configs.

Offline, every start of a run writes a directory of its own, `RUN/wandb/offline-run-TIME-ID`, all
with the same id. What is in their files, the next start does not write again.
"""

import contextlib
import importlib
import json
import os
import posixpath
import re
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, final

from loopwright import disk, extras
from loopwright.errors import ConfigurationError, message
from loopwright.sinks.delivery import Status
from loopwright.sinks.tracked_rows import Known, Row
from loopwright.sinks.tracked_run import Artifact, Facts, TrackedRun
from loopwright.sinks.tracker import Tracker

Mode = Literal["online", "offline"]
HOME = "wandb"
_EXIT_CODES = {"completed": 0, "failed": 1, "interrupted": 255}
_SECONDS_OF_A_WRITER = 10.0


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
    """Return a sink that brings a run to W&B: each step once, also after kills and resumes.

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
    joins_rows = False  # W&B drops a row whose step is not larger than the last one

    def __init__(
        self, project: str | None, entity: str | None, run_name: str | None, mode: str | None
    ) -> None:
        self._wandb = extras.imported("wandb", "The sink WandB", instead="leave the sink out")
        wanted = mode or os.environ.get("WANDB_MODE") or "online"
        if wanted not in ("online", "offline"):
            raise ConfigurationError(
                message(
                    "Unknown mode of W&B.",
                    expected="online or offline",
                    received=repr(wanted),
                    do="correct mode, or WANDB_MODE",
                )
            )
        self._is_offline = wanted == "offline"
        self._project = project or os.environ.get("WANDB_PROJECT") or "loopwright"
        self._entity, self._run_name = entity or os.environ.get("WANDB_ENTITY"), run_name
        self.address: Mapping[str, str] = {
            "project": self._project,
            **({"entity": self._entity} if self._entity else {}),
            "mode": wanted,
        }
        self._run: TrackedRun | None = None
        self._tracked: Any = None
        self._facts: Facts | None = None

    def named(self, values: Mapping[str, float]) -> dict[str, float]:
        """Return the values: W&B accepts any name."""
        return dict(values)

    def open(self, run: TrackedRun, *, is_training: bool) -> Known:
        """Read which steps the files of earlier starts have, or ask W&B."""
        if self._tracked is not None:
            self._tracked.finish()
            self._tracked = None
        self._run, self._facts = run, None
        run.note_id(run.key)
        if not self._is_offline:
            return Known(before=self._begun().starting_step)
        known = Known()
        for step, names in _offline_rows(run):
            known.add(step, names)
        if is_training:
            self._begun()
        return known

    def describe(self, facts: Facts) -> None:
        """Set the config of the tracked run: parameters, tags and signatures."""
        before, self._facts = self._facts, facts
        if self._tracked is not None and facts != before:
            self._set_config(facts)

    def send(self, rows: Sequence[Row]) -> None:
        """Log rows, each at its step."""
        tracked = self._begun()
        for row in rows:
            tracked.log(dict(row.values), step=row.step, commit=True)

    def upload(self, artifacts: Sequence[Artifact]) -> None:
        """Save files of the run, under their paths in the run directory."""
        tracked = self._begun()
        home = Path(tracked.dir)
        for name, path in artifacts:
            disk.make_directory(home, posixpath.dirname(name))
            if disk.status(home, name) is not None:
                disk.delete(home, name)
            disk.copy(path.parent, path.name, home, name)
            tracked.save(str(home / name), base_path=tracked.dir, policy="now")

    def close(self, status: Status) -> None:
        """Finish the tracked run: everything is on disk, or was received, when this returns."""
        tracked, self._tracked = self._tracked, None
        if tracked is not None:
            tracked.finish(exit_code=_EXIT_CODES[status])

    def _begun(self) -> Any:
        """Return the tracked run; begin it, or continue it, if that was not done yet."""
        run = self._run
        if self._tracked is None and run is not None:
            wandb = self._wandb
            self._tracked = wandb.init(
                project=self._project,
                entity=self._entity,
                name=self._run_name or run.name,
                id=run.key,
                resume="allow",
                mode="offline" if self._is_offline else "online",
                dir=None if run.directory is None else str(run.directory),
                reinit="create_new",
                settings=wandb.Settings(
                    console="off", silent=True, x_transaction_log_flush_interval=1.0
                ),
            )
            if self._facts is not None:
                self._set_config(self._facts)
        return self._tracked

    def _set_config(self, facts: Facts) -> None:
        about = {name.removeprefix("loopwright."): value for name, value in facts.tags.items()}
        found = {**facts.parameters, "loopwright": {**about, "signatures": facts.signatures}}
        self._tracked.config.update(found, allow_val_change=True)


def _offline_rows(run: TrackedRun) -> Iterator[tuple[int, set[str]]]:
    """Yield the steps, and the names at each, in the offline files of earlier starts."""
    if run.directory is None:
        return
    for name in disk.names(run.directory, HOME):
        if re.fullmatch(rf"offline-run-[\d_]+-{run.key}(-\d+)?", name):
            file = f"{HOME}/{name}/run-{run.key}.wandb"
            if disk.status(run.directory, file) is not None:
                _wait_for_writer(run.directory / file)
                yield from rows_of(disk.read(run.directory, file, _MOST_OFFLINE_BYTES))


def _wait_for_writer(path: Path) -> None:
    """Wait until no process has a file open: that of W&B ends a moment after a killed training."""
    end = time.monotonic() + _SECONDS_OF_A_WRITER
    while _is_open(path.resolve()) and time.monotonic() < end:
        time.sleep(0.05)


def _is_open(path: Path) -> bool:
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(os.readlink(each) == str(path) for each in (process / "fd").iterdir()):
                return True
    return False


_MOST_OFFLINE_BYTES = 2**30
_BLOCK_BYTES = 32768
_FILE_HEADER_BYTES = 7
_HEADER = struct.Struct("<IHB")  # checksum, length, kind
_WHOLE, _LAST = 1, 4


def rows_of(content: bytes) -> Iterator[tuple[int, set[str]]]:
    """Yield the steps, and the names at each, in a `.wandb` file; its end may be missing."""
    messages: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")
    for data in records_of(content):
        record = messages.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = {
                item.key or "/".join(item.nested_key): item.value_json
                for item in record.history.item
            }
            step = json.loads(items.get("_step", str(record.history.step.num)))
            yield int(step), {name for name in items if not name.startswith("_")}


def records_of(content: bytes) -> Iterator[bytes]:
    """Yield the records of a file in the format of LevelDB's log, which W&B writes."""
    at, whole = _FILE_HEADER_BYTES, b""
    while at + _HEADER.size <= len(content):
        left = _BLOCK_BYTES - at % _BLOCK_BYTES
        if left < _HEADER.size:
            at += left
            continue
        _, length, kind = _HEADER.unpack_from(content, at)
        at += _HEADER.size
        if at + length > len(content) or not kind:
            return
        whole += content[at : at + length]
        at += length
        if kind in (_WHOLE, _LAST):
            yield whole
            whole = b""
