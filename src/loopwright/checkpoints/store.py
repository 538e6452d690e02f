"""The checkpoints of a run, on any backend: verified when read, kept by rules.

    store = Store(run_dir / "checkpoints")
    store.write(1200, {"epoch": 3}, write_files)      # durable when it returns
    store.newest()                                    # verified to the last byte

A `Backend` keeps them: `LocalBackend` in a directory. A new backend is one more file. A `Writer`
writes in the background while training continues.
"""

import threading
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, final

from loopwright.checkpoints import retention
from loopwright.checkpoints.local_backend import LocalBackend
from loopwright.checkpoints.manifest import Checkpoint, DamagedError, verified, write_manifest
from loopwright.errors import CheckpointError, ConfigurationError, message
from loopwright.step_warnings import warn_at_call


class Backend(Protocol):
    """Keeps the checkpoints of one run, each a directory of files, and the lock of the run.

    What it promises: a checkpoint is complete or missing, at whatever moment a process is killed.
    """

    @property
    def directory(self) -> Path:
        """The directory on this machine that checkpoints are written in and read from."""
        ...

    def lock(self) -> AbstractContextManager[None]:
        """Hold the run for this process; raise if another process holds it."""
        ...

    def steps(self) -> list[int]:
        """Return the steps that have a checkpoint, valid or damaged, the oldest first."""
        ...

    def read(self, step: int) -> Path:
        """Return a directory on this machine with the files of a checkpoint."""
        ...

    def write(self, step: int, fill: Callable[[Path], None]) -> Path:
        """Store what `fill` writes into an empty directory, atomically; durable at the return.

        A checkpoint of the same step is replaced, unless it is the same to the byte.
        """
        ...

    def delete(self, step: int) -> None:
        """Delete a checkpoint, if it exists; a kill never leaves half of it under its name."""
        ...

    def set_aside(self, steps: Sequence[int]) -> list[Path]:
        """Rename checkpoints so that no later start finds them; return their new paths."""
        ...

    def move_run_aside(self) -> Path | None:
        """Move everything the run has aside, and hold an empty run; return the new path.

        Only while the run is locked. None if the run was empty.
        """
        ...

    def clean(self) -> list[Path]:
        """Delete what killed processes left unfinished; return the paths."""
        ...


@final
class Store:
    """The checkpoints of one run, in a directory or in any other backend."""

    def __init__(self, where: Path | Backend) -> None:
        self.backend: Backend = LocalBackend(where) if isinstance(where, Path) else where

    @property
    def directory(self) -> Path:
        """The directory on this machine that checkpoints are written in and read from."""
        return self.backend.directory

    def write(
        self, step: int, content: Mapping[str, Any], write_files: Callable[[Path], None]
    ) -> Path:
        """Write a durable checkpoint: `content` as JSON, and the files of `write_files`.

        `write_files` gets an empty directory. Only one process at a time may write.
        """

        def fill(directory: Path) -> None:
            write_files(directory)
            write_manifest(directory, step, content)

        return self.backend.write(step, fill)

    def newest(self) -> Checkpoint | None:
        """Return the newest valid checkpoint, verified to the last byte; None if there is none.

        Skip damaged ones with a warning. Raise if all are damaged: a run never starts over by
        accident.
        """
        damages = list[str]()
        for step in reversed(self.backend.steps()):
            try:
                found = verified(self.backend.read(step))
            except DamagedError as damage:
                damages.append(str(damage))
                continue
            for damage in damages:
                what = f"A checkpoint is damaged; using the checkpoint of step {step} instead."
                do = "nothing, unless it happens again: then check the disk"
                warn_at_call(message(what, received=damage, do=do))
            return found
        if not damages:
            return None
        raise CheckpointError(
            f"All checkpoints in {self.directory} are damaged; nothing was deleted.",
            expected="at least one valid checkpoint",
            received="; ".join(damages),
            do="restore a checkpoint from a copy, or choose another run_dir",
        )

    def at(self, step: int) -> Checkpoint:
        """Return the checkpoint of a step, verified to the last byte."""
        steps = self.backend.steps()
        others = ", ".join(str(other) for other in steps if other != step)
        do = f"choose another step: {others or 'but there is none'}"
        if step not in steps:
            raise ConfigurationError(f"{self.directory} has no checkpoint of step {step:,}.", do=do)
        try:
            return verified(self.backend.read(step))
        except DamagedError as damage:
            what = f"The checkpoint of step {step} cannot be used."
            raise CheckpointError(what, received=str(damage), do=do) from damage

    def all(self) -> list[Checkpoint]:
        """Return every checkpoint, the oldest first; compare manifests and sizes, no checksums."""
        found = list[Checkpoint]()
        for step in self.backend.steps():
            path = self.backend.read(step)
            try:
                found.append(verified(path, read_files=False))
            except (DamagedError, CheckpointError) as error:
                found.append(Checkpoint(path, step, {}, damage=str(error)))
        return found

    def apply_retention(
        self, rules: Sequence[retention.Rule], entries: Sequence[retention.Entry]
    ) -> list[int]:
        """Delete the checkpoints among `entries` that no rule keeps; return their steps.

        Delete nothing while the newest entry is not stored.
        """
        steps, kept = set(self.backend.steps()), retention.kept(entries, rules)
        if not kept or max(kept) not in steps:
            return []
        removed = sorted({entry.step for entry in entries} & steps - kept)
        for step in removed:
            self.backend.delete(step)
        return removed

    def set_aside_after(self, step: int) -> list[Path]:
        """Set the checkpoints after a step aside, damaged or abandoned; return their new paths.

        Called before a run resumes from `step`: no later start may find them.
        """
        return self.backend.set_aside([each for each in self.backend.steps() if each > step])


@final
class Writer:
    """Runs one write after the other in a thread; raises an error at the next call.

    At most one write waits behind the current one.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._turn = threading.Condition()
        self._is_running = False
        self._waiting: tuple[int | None, Callable[[], None]] | None = None
        """A write that has not started; its step if a newer best may replace it."""

    def start(self, write: Callable[[], None]) -> None:
        """Start a write, after waiting for the previous ones; raise their error."""
        self._begin(None, write)

    def queue(self, step: int, write: Callable[[], None], best: Container[int]) -> None:
        """Start a write, or queue it behind the current one.

        It replaces a queued write whose step is no longer among the `best`. Block while a write
        is queued that may not be replaced.
        """
        with self._turn:
            while self._waiting is not None and not self._may_replace(self._waiting[0], best):
                self._turn.wait()
            if self._is_running:
                self._waiting = step, write
                return
        self._begin(step, write)

    def wait(self) -> None:
        """Wait until all writes have ended; raise their error."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _begin(self, step: int | None, write: Callable[[], None]) -> None:
        self.wait()
        self._waiting, self._is_running = (step, write), True
        # Not a daemon: a process that exits finishes its last checkpoint.
        self._thread = threading.Thread(target=self._run, name="loopwright-save")
        self._thread.start()

    @staticmethod
    def _may_replace(step: int | None, best: Container[int]) -> bool:
        return step is not None and step not in best

    def _run(self) -> None:
        while (write := self._next()) is not None:
            try:
                write()
            except Exception as error:
                self._error = error

    def _next(self) -> Callable[[], None] | None:
        """Return the next write; none after an error, which will end the run."""
        with self._turn:
            write = None if self._error or self._waiting is None else self._waiting[1]
            self._waiting, self._is_running = None, write is not None
            self._turn.notify_all()
            return write
