"""The checkpoints of a run, on any backend: verified when read, kept by rules.

    store = Store(run_dir / "checkpoints")
    store.write(1200, {"epoch": 3}, write_files)      # durable when it returns
    store.newest()                                    # verified to the last byte

A `Backend` keeps them: `LocalBackend` in a directory, where a kill at any moment leaves only
complete ones. Next to `step-00001200` there can be
    step-00001200.tmp-<id>      being written or deleted: `clean` deletes it
    step-00001200.old-<id>      being replaced: counts until the new one is in place
    step-00001200.bad-<id>      set aside, damaged or abandoned: deleted by hand only

A new backend is one more file. A `Writer` writes in the background while training continues.
"""

import contextlib
import datetime
import errno
import os
import re
import secrets
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from concurrent import futures
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, final

from loopwright import disk
from loopwright.checkpoints import lock as run_lock
from loopwright.checkpoints import retention
from loopwright.checkpoints.manifest import (
    Checkpoint,
    DamagedError,
    in_run,
    same_manifest,
    verified,
    write_manifest,
)
from loopwright.compat.messages import is_out_of_memory, system_error_number
from loopwright.errors import CheckpointError, ConfigurationError, message
from loopwright.step_warnings import warn_at_call

_NAME = re.compile(r"step-([0-9]{8}|[1-9][0-9]{8,17})(?:\.(tmp|old|bad)-[0-9a-f]{8})?")
_SUFFIXES = ("", *(f"-{number}" for number in range(2, 99)))
_MAKE_WRITABLE = "make the directory writable, or choose another run_dir"
# Errors of the disk, also where TensorFlow reports them in its own errors.
_REMEDIES = {
    errno.ENOSPC: "free some space, or keep fewer checkpoints",
    errno.EDQUOT: "free some space, keep fewer checkpoints, or ask for a larger quota",
    errno.EROFS: _MAKE_WRITABLE,
    errno.EACCES: _MAKE_WRITABLE,
    errno.EPERM: _MAKE_WRITABLE,
    errno.EFBIG: "raise the limit on the size of files (ulimit -f), or choose another file system",
    errno.ENOMEM: "free memory, or raise the limit on it (ulimit -v, or that of the container)",
    errno.EIO: "check the disk (dmesg), or choose another run_dir",
}


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
                checkpoint = verified(self.backend.read(step))
            except DamagedError as damage:
                damages.append(str(damage))
                continue
            for damage in damages:
                what = f"A checkpoint is damaged; using the checkpoint of step {step} instead."
                do = "nothing, unless it happens again: then check the disk"
                warn_at_call(message(what, received=damage, do=do))
            return checkpoint
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
        checkpoints = list[Checkpoint]()
        for step in self.backend.steps():
            path = self.backend.read(step)
            try:
                checkpoints.append(verified(path, read_files=False))
            except (DamagedError, CheckpointError) as error:
                checkpoints.append(Checkpoint(path, step, {}, damage=str(error)))
        return checkpoints

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
        return self.backend.set_aside([later for later in self.backend.steps() if later > step])


@final
class LocalBackend:
    """The checkpoints of a run in a directory of its run directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._run_dir = directory.parent
        self._lock: run_lock.Lock | None = None

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the run directory for this process; raise if another process holds it."""
        with run_lock.held(self._run_dir / run_lock.NAME) as lock:
            self._lock = lock
            try:
                yield
            finally:
                self._lock = None

    def steps(self) -> list[int]:
        """Return the steps that have a checkpoint, valid or damaged, the oldest first."""
        return sorted(self._paths())

    def read(self, step: int) -> Path:
        """Return the directory of a checkpoint."""
        path = self._path(step)
        return path if os.path.lexists(path) else self._paths().get(step, path)

    def write(self, step: int, fill: Callable[[Path], None]) -> Path:
        """Store what `fill` writes into an empty directory, atomically; durable at the return."""
        path, written = self._path(step), 0
        what = f"The checkpoint {path} could not be written"
        with self._explaining(what, lambda: written):
            disk.make_run_directory(self._run_dir)
            disk.make_directory(self._run_dir, self.directory.name)
            with disk.staged(self._run_dir, f"{in_run(path)[1]}.tmp-") as temporary:
                try:
                    fill(temporary)
                    disk.give_modes(*in_run(temporary))
                    disk.flush(*in_run(temporary))
                    replaced = _commit(temporary, path)
                except BaseException:
                    written = disk.bytes_in(temporary)
                    raise
        if replaced is not None:
            self._delete(replaced)
        return path

    def delete(self, step: int) -> None:
        """Delete a checkpoint, if it exists; a kill never leaves half of it under its name."""
        path = self._paths().get(step)
        if path is not None:
            self._delete(path)

    def set_aside(self, steps: Sequence[int]) -> list[Path]:
        """Rename checkpoints to `.bad-<id>`; return their new paths."""
        paths = self._paths()
        with self._explaining(f"The checkpoints in {self.directory} could not be renamed"):
            renamed = [_rename(paths[step], "bad") for step in steps]
            if renamed:
                disk.sync(self._run_dir, self.directory.name)
        return sorted(renamed)

    def move_run_aside(self) -> Path | None:
        """Rename the run directory, make a new one in its place, and hold that; delete nothing.

        The new directory is locked before it gets its name, and the old one until then.
        """
        if self._lock is None:
            raise RuntimeError("a run directory is moved aside only while it is locked")
        run_dir = self._run_dir
        if disk.names(run_dir) == [run_lock.NAME]:
            return None
        for left in disk.names(run_dir.parent):  # of a killed process: only the holder makes any
            if left.startswith(f".{run_dir.name}.new-"):
                disk.delete(run_dir.parent, left)
        now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
        names = (f"{run_dir.name}.old-{now}{suffix}" for suffix in _SUFFIXES)
        aside = next(p for p in map(run_dir.with_name, names) if not os.path.lexists(p))
        new = run_dir.with_name(f".{run_dir.name}.new-{secrets.token_hex(4)}")
        disk.make_run_directory(new, like=run_dir)
        successor = run_lock.Lock(new / run_lock.NAME)
        try:
            disk.rename(run_dir.parent, run_dir.name, aside.name)
            disk.rename(run_dir.parent, new.name, run_dir.name, durable=True)
        except BaseException:
            successor.release()
            raise
        self._lock.become(successor)
        return aside

    def clean(self) -> list[Path]:
        """Delete what killed processes left half written, half replaced or half deleted."""
        current = self._paths().values()
        unfinished = [path for _, kind, path in self._listed() if kind in ("tmp", "old")]
        leftovers = [path for path in unfinished if path not in current]
        with self._explaining(f"{self.directory} could not be cleaned"):
            interrupted = [_rename(path) for path in unfinished if path in current]
            if interrupted:
                disk.sync(self._run_dir, self.directory.name)
            for path in leftovers:
                disk.delete(*in_run(path))
        return leftovers

    def _path(self, step: int) -> Path:
        return self.directory / f"step-{step:08d}"

    def _paths(self) -> dict[int, Path]:
        """Return the directory of each step."""
        # Plain names sort first and win: an old one counts only while its successor is missing.
        listed = reversed(self._listed())
        return {step: path for step, kind, path in listed if kind in (None, "old")}

    def _listed(self) -> list[tuple[int, str | None, Path]]:
        """Return every path with a name as listed above, with its step and the kind of the name."""
        with self._explaining(f"The directory {self.directory} could not be read"):
            try:
                with disk.directory(self._run_dir, self.directory.name) as handle:
                    names = disk.names(handle)
            except FileNotFoundError:
                return []
        matches = [match for match in map(_NAME.fullmatch, names) if match]
        return [(int(match[1]), match[2], self.directory / match[0]) for match in matches]

    def _delete(self, path: Path) -> None:
        with self._explaining(f"The checkpoint {path} could not be deleted"):
            disk.delete(*in_run(_rename(path, "tmp", durable=True)))

    @contextlib.contextmanager
    def _explaining(self, what: str, needed: Callable[[], int] | None = None) -> Iterator[None]:
        """Turn errors of the disk into a CheckpointError; `needed` bytes have to be free."""
        try:
            yield
        except CheckpointError:
            raise
        except Exception as error:
            number = error.errno if isinstance(error, OSError) else None
            if number is None:  # TensorFlow puts the text of the system into errors of its own
                number = system_error_number(error, _REMEDIES)
            if number is None and is_out_of_memory(error):
                number = errno.ENOMEM
            if number is None:
                raise
            reason, expected = os.strerror(number), ""
            if needed is not None:
                free = disk.free_bytes(self.directory)
                reason += "" if free is None else f"; {free:,} bytes are free"
                expected = f"at least {needed():,} bytes free, and permission to write"
            remedy = _REMEDIES.get(number, "remove the cause, then start again")
            do = f"{remedy}; earlier checkpoints are unchanged"
            text = message(f"{what}.", expected=expected, received=reason, do=do)
            raise CheckpointError(text) from error


def _rename(path: Path, kind: str = "", *, durable: bool = False) -> Path:
    """Rename a checkpoint to `.<kind>-<id>`, or to its plain name; return the new path."""
    name = path.name.split(".")[0]
    new = path.with_name(f"{name}.{kind}-{secrets.token_hex(4)}" if kind else name)
    disk.rename(*in_run(path), new.name, durable=durable)
    return new


def _commit(temporary: Path, path: Path) -> Path | None:
    """Give a finished checkpoint its name; return the replaced one if it is to be deleted."""
    old, is_damaged = None, False
    if os.path.lexists(path):
        try:
            verified(path)
            if same_manifest(path, temporary):
                return None
        except DamagedError:
            is_damaged = True
        # Killed between the two renames, the run still has a checkpoint of this step.
        old = _rename(path, "old")
    _rename(temporary, durable=True)
    if old is not None and is_damaged:
        _rename(old, "bad")
        return None
    return old


@final
class Writer:
    """Runs one write after the other in a thread; raises an error at the next call.

    At most one write waits behind the current one.
    """

    def __init__(self) -> None:
        self._pool: futures.ThreadPoolExecutor | None = None
        self._writes: list[futures.Future[None]] = []
        """The current one, and the one that waits."""
        self._waiting_step = 0

    def start(self, write: Callable[[], None]) -> None:
        """Start a write, after waiting for the previous ones; raise their error."""
        self.wait()
        # Its thread is no daemon: a process that exits finishes its last checkpoint.
        self._pool = futures.ThreadPoolExecutor(1, "loopwright-save")
        self._writes = [self._pool.submit(write)]

    def queue(self, step: int, write: Callable[[], None], best: Container[int]) -> None:
        """Start a write, or queue it behind the current one.

        It replaces a queued write whose step is no longer among the `best`. Block while a write
        is queued that may not be replaced.
        """
        running = [earlier for earlier in self._writes if not earlier.done()]
        if not running or self._pool is None:
            self.start(write)
            return
        current, *queued = running
        if queued and (self._waiting_step in best or not queued[0].cancel()):
            futures.wait([current])
            self.queue(step, write, best)
            return

        def write_next() -> None:
            current.result()  # after an error, which will end the run, nothing is written
            write()

        self._writes, self._waiting_step = [current, self._pool.submit(write_next)], step

    def wait(self) -> None:
        """Wait until all writes have ended; raise their error."""
        futures.wait(self._writes)
        if self._pool is not None:
            self._pool.shutdown()
        writes, self._writes = self._writes, []
        for write in writes:
            write.result()
