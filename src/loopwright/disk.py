"""Files of a run: opened, listed, written and deleted without following a symlink.

    disk.write_whole(run_dir, "status.json", b"{}", durable=True)
    disk.read(run_dir, "tensorboard/train/events.out.tfevents.1")
    disk.names(run_dir, "checkpoints")

A run directory may come from somebody else. It may be a symlink itself; a symlink inside it could
lead anywhere and is refused, and so are pipes and devices. Every module opens the files of a run
through this one. New files and directories get the mode of the run directory: 0700 gives 0700 and
0600, 0750 gives 0750 and 0640.
"""

import contextlib
import datetime
import errno
import glob
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from loopwright.errors import CheckpointError, ConfigurationError, message

Root = Path | int
"""A run directory: its path, or the descriptor of a directory in it that is open."""

_FIND = os.O_RDONLY | os.O_DIRECTORY
# Without O_NONBLOCK, opening a named pipe would wait for a process at its other end.
_SAFE = os.O_NOFOLLOW | os.O_NONBLOCK


class UnsafeFileError(ConfigurationError, CheckpointError):
    """A symlink, a pipe or a device where a run has a file or a directory of its own."""

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(text)
        self.reason = reason


# --- reading ---


def opened(root: Root, name: str, flags: int = os.O_RDONLY) -> int:
    """Open a file of a run and return its descriptor."""
    with _parent(root, name) as (parent, last, mode):
        handle = _entered(root, name, parent, last, flags, mode & 0o666)
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise _unsafe(root, name, "not a regular file")
            if flags & os.O_CREAT:
                _give_mode(handle, mode & 0o666)
        except BaseException:
            os.close(handle)
            raise
        return handle


def read(root: Root, name: str, most_bytes: int = -1) -> bytes:
    """Return the content of a file of a run, or its first `most_bytes` bytes."""
    with os.fdopen(opened(root, name), "rb") as file:
        return file.read(most_bytes)


@contextlib.contextmanager
def directory(root: Root, name: str = "") -> Iterator[int]:
    """Open a directory of a run; the run directory itself if `name` is empty."""
    with _walked(root, name) as (handle, _):
        yield handle


def status(root: Root, name: str) -> os.stat_result | None:
    """Return what the file system knows about a file or a directory; None if there is none."""
    try:
        with _parent(root, name) as (parent, last, _):
            found = os.stat(last, dir_fd=parent, follow_symlinks=False)
            if stat.S_ISLNK(found.st_mode):
                raise _link(root, name, parent, last)
            return found
    except (FileNotFoundError, NotADirectoryError):
        return None


def names(root: Root, name: str = "") -> list[str]:
    """Return the sorted names in a directory of a run; none if there is no such directory."""
    try:
        with directory(root, name) as handle:
            return sorted(os.listdir(handle))
    except (FileNotFoundError, NotADirectoryError):
        return []


def files_below(root: Root, name: str) -> list[str]:
    """Return every file in a directory of a run and below it, by its path in the run directory.

    A symlink anywhere below is refused. What is no directory has no files.
    """
    found = status(root, name)
    if found is None:
        return []
    if stat.S_ISREG(found.st_mode):
        return [name]
    if not stat.S_ISDIR(found.st_mode):
        return []
    inner = (f"{name}/{each}" for each in names(root, name))
    return [file for each in inner for file in files_below(root, each)]


def refuse_links(root: Root, *wanted: str) -> None:
    """Raise if one of these is a symlink, or lies behind one."""
    for name in wanted:
        status(root, name)


def bytes_in(path: Path) -> int:
    """Return how much the files of a directory take."""
    try:
        return sum(entry.stat(follow_symlinks=False).st_size for entry in os.scandir(path))
    except OSError:
        return 0


def free_bytes(path: Path) -> int | None:
    """Return how much can still be written; None where the disk does not say."""
    try:
        disk = os.statvfs(path)
    except OSError:
        return None
    return disk.f_bavail * disk.f_frsize if disk.f_blocks else None  # some disks do not say


# --- writing ---


def make_run_directory(path: Path) -> None:
    """Make a run directory and those above it, durably; only its owner may enter it."""
    if path.is_dir():
        return
    for parent in reversed([each for each in path.parents if not each.is_dir()]):
        parent.mkdir(exist_ok=True)
        sync(parent.parent)
    path.mkdir(0o700, exist_ok=True)
    sync(path.parent)


def unused_beside(path: Path) -> Path:
    """Return where a run directory, or a part of it, can be moved to."""
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    wanted = (f"{path.name}.old-{now}{suffix}" for suffix in ("", *(f"-{n}" for n in range(2, 99))))
    return next(each for each in map(path.with_name, wanted) if not os.path.lexists(each))


def names_for_exchange(path: Path) -> tuple[Path, Path]:
    """Return where a run directory can be moved to, and a new directory to take its place.

    The new one has the mode of the old one. Those that a killed process left are deleted: only
    the process that holds the run directory makes any.
    """
    for left in path.parent.glob(f".{glob.escape(path.name)}.new-*"):
        delete(path.parent, left.name)
    aside = unused_beside(path)
    new = path.with_name(f".{path.name}.new-{secrets.token_hex(4)}")
    new.mkdir(0o700)
    with directory(path) as handle:
        new.chmod(stat.S_IMODE(os.fstat(handle).st_mode))
    return aside, new


def exchange(path: Path, aside: Path, new: Path) -> None:
    """Move a run directory aside and another one into its place, durably."""
    path.rename(aside)
    new.rename(path)
    sync(path.parent)


def make_directory(root: Root, name: str, *, new: bool = False) -> None:
    """Make a directory of a run and those above it, durably; `new` refuses one that exists."""
    parts = _parts(name)
    for count in range(1, len(parts) + 1):
        inner = "/".join(parts[:count])
        with _parent(root, inner) as (parent, last, mode):
            try:
                os.mkdir(last, mode, dir_fd=parent)
                _fsync_directory(parent)
            except FileExistsError:
                if new and count == len(parts):
                    raise
        with directory(root, inner) as made:
            _give_mode(made, mode)


def write_whole(root: Root, name: str, content: bytes, *, durable: bool = False) -> None:
    """Write a file that others always find whole: as it was, or as it is now.

    When it returns with `durable`, file and name outlast a loss of power.
    """
    refuse_links(root, name)
    temporary = f"{name}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    with os.fdopen(opened(root, temporary, flags), "wb") as file:
        file.write(content)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    rename(root, temporary, PurePosixPath(name).name, durable=durable)


def rename(root: Root, name: str, new: str, *, durable: bool = False) -> None:
    """Rename a file or a directory of a run; it stays in its directory. A symlink is not followed.

    `durable` flushes the directory to disk.
    """
    with _parent(root, name) as (parent, last, _):
        os.rename(last, new, src_dir_fd=parent, dst_dir_fd=parent)
        if durable:
            _fsync_directory(parent)


def move(root: Root, name: str, into: Root, new: str) -> None:
    """Move a file or a directory of a run into another run directory; follow no symlink."""
    with _parent(root, name) as (parent, last, _), _parent(into, new) as (target, own, _):
        os.rename(last, own, src_dir_fd=parent, dst_dir_fd=target)


def delete(root: Root, name: str) -> None:
    """Delete a file or a directory of a run; of a symlink, only the symlink."""
    with _parent(root, name) as (parent, last, _):
        if stat.S_ISDIR(os.stat(last, dir_fd=parent, follow_symlinks=False).st_mode):
            shutil.rmtree(last, dir_fd=parent)  # follows no symlink
        else:
            os.unlink(last, dir_fd=parent)


def sync(root: Root, name: str = "") -> None:
    """Flush the names in a directory of a run to disk."""
    with directory(root, name) as handle:
        _fsync_directory(handle)


def give_modes(root: Root, name: str) -> None:
    """Give everything in a directory of a run, and the directory, the modes of the run directory.

    For what other libraries write.
    """
    with _walked(root, name) as (handle, mode):
        _give_modes(handle, mode)


def _give_modes(handle: int, mode: int) -> None:
    _give_mode(handle, mode)
    for name in os.listdir(handle):
        try:
            inner = os.open(name, os.O_RDONLY | _SAFE, dir_fd=handle)
        except OSError:  # a symlink, or gone already
            continue
        try:
            kind = os.fstat(inner).st_mode
            if stat.S_ISDIR(kind):
                _give_modes(inner, mode)
            elif stat.S_ISREG(kind):
                _give_mode(inner, mode & 0o666)
        finally:
            os.close(inner)


# --- one component at a time ---


@contextlib.contextmanager
def _walked(root: Root, name: str) -> Iterator[tuple[int, int]]:
    """A directory, opened component by component, and the mode of the run directory."""
    is_open = isinstance(root, int)
    handle = os.open(".", _FIND, dir_fd=root) if is_open else os.open(root, _FIND)
    try:
        mode, parts = _mode(handle), _parts(name)
        for count, part in enumerate(parts, 1):
            inner = _entered(root, "/".join(parts[:count]), handle, part, _FIND)
            os.close(handle)
            handle = inner
        yield handle, mode
    finally:
        os.close(handle)


@contextlib.contextmanager
def _parent(root: Root, name: str) -> Iterator[tuple[int, str, int]]:
    """The directory of a file, its name there, and the mode of the run directory."""
    *above, last = _parts(name)
    with _walked(root, "/".join(above)) as (handle, mode):
        yield handle, last, mode


def _parts(name: str) -> tuple[str, ...]:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise ValueError(f"{name!a} does not name a file in the run directory")
    return path.parts


def _entered(root: Root, name: str, parent: int, part: str, flags: int, mode: int = 0o600) -> int:
    """Open one component below a directory that is open."""
    try:
        return os.open(part, flags | _SAFE, mode, dir_fd=parent)
    except OSError as error:
        # Which of these a symlink gives depends on the system and on O_DIRECTORY.
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EMLINK) and _is_link(parent, part):
            raise _link(root, name, parent, part) from None
        if error.errno == errno.ENXIO:  # a pipe without a reader, a socket
            raise _unsafe(root, name, "not a regular file") from None
        raise


def _is_link(parent: int, part: str) -> bool:
    with contextlib.suppress(OSError):
        return stat.S_ISLNK(os.stat(part, dir_fd=parent, follow_symlinks=False).st_mode)
    return False


def _link(root: Root, name: str, parent: int, part: str) -> UnsafeFileError:
    target = ""
    with contextlib.suppress(OSError):
        target = os.readlink(part, dir_fd=parent)
    return UnsafeFileError(
        message(
            f"{_shown(root, name)} is a symlink.",
            expected="files and directories that belong to the run directory itself",
            received=f"a symlink to {target!a}"[:300],
            do="move the target into the run directory; to keep a run on another disk, link the "
            "run directory instead",
        ),
        "a symlink; link the run directory instead",
    )


def _unsafe(root: Root, name: str, reason: str) -> UnsafeFileError:
    return UnsafeFileError(
        message(
            f"{_shown(root, name)} cannot be used.",
            expected="a regular file",
            received=reason,
            do="move it away, or choose another run directory",
        ),
        reason,
    )


def _shown(root: Root, name: str) -> str:
    return name if isinstance(root, int) else str(root / name)


def _mode(handle: int) -> int:
    return stat.S_IMODE(os.fstat(handle).st_mode) & 0o777


def _give_mode(handle: int, mode: int) -> None:
    found = stat.S_IMODE(os.fstat(handle).st_mode)
    if found & 0o777 != mode:
        # Files of a colleague, and disks without modes, stay as they are.
        with contextlib.suppress(PermissionError):
            os.fchmod(handle, found & ~0o777 | mode)


def _fsync_directory(handle: int) -> None:
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems cannot flush a directory
            raise
