"""Checkpoints as local directories: a kill at any moment leaves only complete ones.

Next to `step-00001200` there can be
    step-00001200.tmp-<id>      being written or deleted: `clean` deletes it
    step-00001200.old-<id>      being replaced: counts until the new one is in place
    step-00001200.bad-<id>      set aside, damaged or abandoned: deleted by hand only
"""

import contextlib
import datetime
import errno
import os
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import final

from loopwright import disk
from loopwright.checkpoints import lock as run_lock
from loopwright.checkpoints.manifest import DamagedError, same_manifest, verified
from loopwright.compat.messages import is_out_of_memory, system_error_number
from loopwright.errors import CheckpointError, message

_NAME = re.compile(r"(step-([0-9]{8,18}))(?:\.(tmp|old|bad)-[0-9a-f]{8})?")
_SUFFIXES = ("", *(f"-{number}" for number in range(2, 99)))
# Errors of the disk, also where TensorFlow reports them in its own errors.
_REMEDIES = {
    errno.ENOSPC: "free some space, or keep fewer checkpoints",
    errno.EDQUOT: "free some space, keep fewer checkpoints, or ask for a larger quota",
    errno.EROFS: "make the directory writable, or choose another run_dir",
    errno.EACCES: "make the directory writable, or choose another run_dir",
    errno.EPERM: "make the directory writable, or choose another run_dir",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f), or choose another file system",
    errno.ENOMEM: "free memory, or raise the limit on it (ulimit -v, or that of the container)",
    errno.EIO: "check the disk (dmesg), or choose another run_dir",
}


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
            disk.make_directory(*self._in_run())
            with disk.staged(self._run_dir, f"{self._in_run(path)[1]}.tmp-") as temporary:
                try:
                    fill(temporary)
                    disk.give_modes(*self._in_run(temporary))
                    disk.flush(*self._in_run(temporary))
                    replaced = self._commit(temporary, path)
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
        found = self._paths()
        renamed = {found[step]: _sibling(found[step], "bad") for step in steps}
        with self._explaining(f"The checkpoints in {self.directory} could not be renamed"):
            for path, aside in renamed.items():
                disk.rename(*self._in_run(path), aside.name)
            if renamed:
                disk.sync(*self._in_run())
        return sorted(renamed.values())

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
        named, current = self._named(), set(self._paths().values())
        interrupted = [path for path, kind in named if kind == "old" and path in current]
        leftovers = [path for path, kind in named if kind in ("tmp", "old")]
        leftovers = [path for path in leftovers if path not in interrupted]
        with self._explaining(f"{self.directory} could not be cleaned"):
            for path in interrupted:
                disk.rename(*self._in_run(path), path.stem)
            if interrupted:
                disk.sync(*self._in_run())
            for path in leftovers:
                disk.delete(*self._in_run(path))
        return leftovers

    def _path(self, step: int) -> Path:
        return self.directory / f"step-{step:08d}"

    def _in_run(self, path: Path | None = None) -> tuple[Path, str]:
        """Return the run directory, and the name in it of a checkpoint or of their directory."""
        name = self.directory.name
        return self._run_dir, name if path is None else f"{name}/{path.name}"

    def _named(self) -> list[tuple[Path, str | None]]:
        """Return every path with a name as listed above, and the kind of the name."""
        with self._explaining(f"The directory {self.directory} could not be read"):
            try:
                with disk.directory(*self._in_run()) as handle:
                    names = disk.names(handle)
            except FileNotFoundError:
                return []
        found = [match for match in map(_NAME.fullmatch, names) if match]
        own = [match for match in found if match[1] == f"step-{int(match[2]):08d}"]
        return [(self.directory / match[0], match[3]) for match in own]

    def _paths(self) -> dict[int, Path]:
        """Return the directory of each step."""
        ours = [path for path, kind in self._named() if kind in (None, "old")]
        # Plain names sort first and win: an old one counts only while its successor is missing.
        return {_step_of(path): path for path in reversed(ours)}

    def _commit(self, temporary: Path, path: Path) -> Path | None:
        """Give a finished checkpoint its name; return the replaced one if it is to be deleted."""
        old = _sibling(path, "old")
        damaged = False
        if os.path.lexists(path):
            try:
                verified(path)
            except DamagedError:
                damaged = True
            if not damaged and same_manifest(path, temporary):
                return None
            # Killed between the two renames, the run still has a checkpoint of this step.
            disk.rename(*self._in_run(path), old.name)
        disk.rename(*self._in_run(temporary), path.name, durable=True)
        if damaged:
            disk.rename(*self._in_run(old), _sibling(path, "bad").name)
        return old if os.path.lexists(old) else None

    def _delete(self, path: Path) -> None:
        with self._explaining(f"The checkpoint {path} could not be deleted"):
            doomed = _sibling(path, "tmp")
            disk.rename(*self._in_run(path), doomed.name, durable=True)
            disk.delete(*self._in_run(doomed))

    @contextlib.contextmanager
    def _explaining(self, what: str, needed: Callable[[], int] | None = None) -> Iterator[None]:
        """Turn errors of the disk into a CheckpointError; `needed` bytes have to be free."""
        try:
            yield
        except BaseException as error:
            reason, remedy = _reason(error)
            if not reason:
                raise
            expected = ""
            if needed is not None:
                free = disk.free_bytes(self.directory)
                reason += "" if free is None else f"; {free:,} bytes are free"
                expected = f"at least {needed():,} bytes free, and permission to write"
            do = f"{remedy}; earlier checkpoints are unchanged"
            text = message(f"{what}.", expected=expected, received=reason, do=do)
            raise CheckpointError(text) from error


def _sibling(path: Path, kind: str) -> Path:
    return path.with_name(f"{path.name.split('.')[0]}.{kind}-{secrets.token_hex(4)}")


def _step_of(path: Path) -> int:
    return int(path.name.split(".")[0].removeprefix("step-"))


def _reason(error: BaseException) -> tuple[str, str]:
    """Return the reason of a disk error and its remedy; both empty for any other error."""
    if isinstance(error, CheckpointError):
        return "", ""
    number = error.errno if isinstance(error, OSError) else None
    if number is None:  # TensorFlow puts the text of the system into errors of its own
        number = system_error_number(error, _REMEDIES)
    if number is None and is_out_of_memory(error):
        number = errno.ENOMEM
    if number is None:
        return "", ""
    return os.strerror(number), _REMEDIES.get(number, "remove the cause, then start again")
