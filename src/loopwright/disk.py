"""Files of a run: opened, written, locked and deleted without following a symlink.

    disk.write_whole(run_dir, "status.json", b"{}", durable=True)
    disk.read(run_dir, "tensorboard/train/events.out.tfevents.1")
    disk.names(run_dir, "checkpoints")

A run directory may be untrusted. It may be a symlink itself; a symlink inside it could point
anywhere and is refused, and so are pipes and devices. No other module opens, renames, locks,
truncates or flushes the files of a run. New files and directories get the mode of the run
directory: 0700 gives 0700 and 0600, 0750 gives 0750 and 0640.

A file is written by `write_whole`, a directory is `staged`, flushed and renamed: under its name
either is complete or missing, at whatever moment the process is killed.
"""

import contextlib
import errno
import fcntl
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from loopwright.errors import CheckpointError, ConfigurationError, message

Root = Path | int
"""A run directory: its path, or the descriptor of an open directory in it."""

MOST_BYTES = 64 * 2**20
"""Of a small file of a run, or of a line."""
_FIND = os.O_RDONLY | os.O_DIRECTORY
# Without O_NONBLOCK, opening a named pipe would block until another process opens it.
_SAFE = os.O_NOFOLLOW | os.O_NONBLOCK


class UnsafeFileError(ConfigurationError, CheckpointError):
    """A symlink, a pipe, a device or an endless file in place of a file of a run."""

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
                raise unsafe(root, name, "not a regular file")
            if flags & os.O_CREAT:
                _give_mode(handle, mode & 0o666)
        except BaseException:
            os.close(handle)
            raise
        return handle


def read(root: Root, name: str, most_bytes: int | None = None) -> bytes:
    """Return the content of a small file of a run, or the first `most_bytes` bytes of any."""
    with os.fdopen(opened(root, name), "rb") as file:
        content = file.read(MOST_BYTES + 1 if most_bytes is None else most_bytes)
    if most_bytes is None and len(content) > MOST_BYTES:
        raise unsafe(root, name, f"more than {MOST_BYTES:,} bytes")
    return content


def copy(root: Root, name: str, into: Root, new: str) -> None:
    """Copy a file of a run to a new file."""
    made = opened(into, new, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    with os.fdopen(made, "wb") as target, os.fdopen(opened(root, name), "rb") as source:
        shutil.copyfileobj(source, target)


@contextlib.contextmanager
def directory(root: Root, name: str = "") -> Iterator[int]:
    """Open a directory of a run; the run directory itself if `name` is empty."""
    with _walked(root, name) as (handle, _):
        yield handle


def status(root: Root, name: str) -> os.stat_result | None:
    """Return the stat of a file or a directory; None if it does not exist."""
    try:
        with _parent(root, name) as (parent, last, _):
            found = os.stat(last, dir_fd=parent, follow_symlinks=False)
            if stat.S_ISLNK(found.st_mode):
                raise _link(root, name, parent, last)
            return found
    except (FileNotFoundError, NotADirectoryError):
        return None


def names(root: Root, name: str = "") -> list[str]:
    """Return the sorted names in a directory of a run; none if it does not exist."""
    try:
        with directory(root, name) as handle:
            return sorted(os.listdir(handle))
    except (FileNotFoundError, NotADirectoryError):
        return []


def files_below(root: Root, name: str) -> list[str]:
    """Return the paths, in the run directory, of every file below a directory of a run.

    A symlink anywhere below is refused.
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
    """Raise if one of these names, or a directory above it, is a symlink."""
    for name in wanted:
        status(root, name)


def bytes_in(path: Path) -> int:
    """Return the size of the files in a directory."""
    try:
        return sum(entry.stat(follow_symlinks=False).st_size for entry in os.scandir(path))
    except OSError:
        return 0


def free_bytes(path: Path) -> int | None:
    """Return the free space of a disk; None where the file system does not report it."""
    try:
        disk = os.statvfs(path)
    except OSError:
        return None
    return disk.f_bavail * disk.f_frsize if disk.f_blocks else None


# --- writing ---


def make_run_directory(path: Path, *, like: Path | None = None) -> None:
    """Make a run directory and those above it, durably, with mode 0700 or that of `like`."""
    if path.is_dir():
        return
    for parent in reversed([each for each in path.parents if not each.is_dir()]):
        parent.mkdir(exist_ok=True)
        sync(parent.parent)
    path.mkdir(0o700, exist_ok=True)
    if like is not None:
        path.chmod(stat.S_IMODE(like.stat().st_mode))
    sync(path.parent)


def make_directory(root: Root, name: str) -> None:
    """Make a directory of a run and those above it, durably, unless they exist."""
    parts = _parts(name)
    for count in range(1, len(parts) + 1):
        inner = "/".join(parts[:count])
        with (
            _parent(root, inner) as (parent, last, mode),
            contextlib.suppress(FileExistsError),
        ):
            os.mkdir(last, mode, dir_fd=parent)
            _fsync_directory(parent)
        with directory(root, inner) as made:
            _give_mode(made, mode)


def write_whole(
    root: Root, name: str, content: bytes, *, durable: bool = False, shared: bool = False
) -> None:
    """Replace a file atomically: a reader sees the previous content or the new one.

    `durable`: after the return, file and name survive a power loss. `shared`: other processes may
    write the same file at the same time, as they do in a cache.
    """
    refuse_links(root, name)
    temporary = f"{name}.{secrets.token_hex(4)}.tmp" if shared else f"{name}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    with os.fdopen(opened(root, temporary, flags), "wb") as file:
        file.write(content)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    rename(root, temporary, PurePosixPath(name).name, durable=durable)


def rename(root: Root, name: str, new: str, *, durable: bool = False) -> None:
    """Rename a file or a directory of a run within its directory; follow no symlink.

    `durable`: after the return, the new name survives a power loss.
    """
    with _parent(root, name) as (parent, last, _):
        os.rename(last, new, src_dir_fd=parent, dst_dir_fd=parent)
        if durable:
            _fsync_directory(parent)


def move(root: Root, name: str, into: Root, new: str) -> None:
    """Move a file or a directory into another directory, durably; follow no symlink."""
    with _parent(root, name) as (parent, last, _), _parent(into, new) as (target, own, _):
        os.rename(last, own, src_dir_fd=parent, dst_dir_fd=target)
        _fsync_directory(target)
        _fsync_directory(parent)


def delete(root: Root, name: str) -> None:
    """Delete a file or a directory of a run; a symlink itself, not its target."""
    with _parent(root, name) as (parent, last, _):
        if stat.S_ISDIR(os.stat(last, dir_fd=parent, follow_symlinks=False).st_mode):
            shutil.rmtree(last, dir_fd=parent)  # follows no symlink
        else:
            os.unlink(last, dir_fd=parent)


def cut(root: Root, name: str, length: int) -> int:
    """Truncate a file to `length` bytes, unless it is shorter; return the length it had."""
    with os.fdopen(opened(root, name, os.O_RDWR), "r+b") as file:
        found = os.fstat(file.fileno()).st_size
        if found > length:
            file.truncate(length)
        return found


def overwrite(handle: int, content: bytes) -> None:
    """Replace the content of an open file in place."""
    os.ftruncate(handle, os.pwrite(handle, content, 0))


def sync(root: Root, name: str = "") -> None:
    """Flush the names in a directory of a run to disk."""
    with directory(root, name) as handle:
        _fsync_directory(handle)


def flush(root: Root, name: str) -> None:
    """Flush a file, or a directory with everything below it, to disk."""
    found = status(root, name)
    if found is not None and stat.S_ISDIR(found.st_mode):
        for inner in names(root, name):
            flush(root, f"{name}/{inner}")
        sync(root, name)
        return
    with os.fdopen(opened(root, name), "rb") as file:
        os.fsync(file.fileno())


# --- locks and staged directories ---


def lock(handle: int, *, shared: bool = False, wait: bool = False) -> None:
    """Lock an open file or directory until it is closed or its process ends.

    Raise BlockingIOError if another process holds the lock, or `wait` for it.
    """
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    fcntl.flock(handle, kind if wait else kind | fcntl.LOCK_NB)


def unlock(handle: int) -> None:
    """Release the lock on an open file, also for the processes that inherited it."""
    fcntl.flock(handle, fcntl.LOCK_UN)


@contextlib.contextmanager
def staged(root: Path, prefix: str) -> Iterator[Path]:
    """Make a directory to write in, `prefix` and a random suffix; delete what is left at the end.

    When everything is written: `flush`, then rename the directory, or what is in it, to the final
    name. The directory is locked: those of killed processes are found by `delete_abandoned`.
    """
    name = f"{prefix}{secrets.token_hex(4)}"
    handle = _staging(root, name)
    try:
        yield root / name
    finally:
        try:
            with contextlib.suppress(FileNotFoundError):  # renamed
                delete(root, name)
        finally:
            os.close(handle)


def delete_abandoned(root: Path, prefix: str) -> None:
    """Delete the staged directories of processes that were killed; follow no symlink."""
    for name in names(root):
        if re.fullmatch(f"{re.escape(prefix)}[0-9a-f]{{8}}", name):
            # A symlink, the directory of another user, or one that is deleted already.
            with contextlib.suppress(OSError, UnsafeFileError), directory(root, name) as handle:
                lock(handle)
                delete(root, name)


def _staging(root: Path, name: str) -> int:
    while True:
        with _parent(root, name) as (parent, last, _):
            os.mkdir(last, 0o700, dir_fd=parent)
            with contextlib.suppress(FileNotFoundError):
                try:
                    handle = _entered(root, name, parent, last, _FIND)
                except BaseException:
                    os.rmdir(last, dir_fd=parent)
                    raise
                with contextlib.suppress(OSError):  # a file system without locks
                    lock(handle, wait=True)
                with contextlib.suppress(FileNotFoundError):
                    found = os.stat(last, dir_fd=parent, follow_symlinks=False)
                    if os.path.samestat(found, os.fstat(handle)):
                        return handle
                os.close(handle)
        # Another process deleted it as abandoned, before it was locked.


def give_modes(root: Root, name: str) -> None:
    """Give all of a directory the modes of the run directory: other libraries have their own."""
    with _walked(root, name) as (handle, mode):
        _give_modes(handle, mode)


def _give_modes(handle: int, mode: int) -> None:
    _give_mode(handle, mode)
    for name in os.listdir(handle):
        try:
            inner = os.open(name, os.O_RDONLY | _SAFE, dir_fd=handle)
        except OSError:  # a symlink, or deleted meanwhile
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
    """Open a directory component by component; yield it and the mode of the run directory."""
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
    """Open the directory of a file; yield it, the name, and the mode of the run directory."""
    *above, last = _parts(name)
    with _walked(root, "/".join(above)) as (handle, mode):
        yield handle, last, mode


def _parts(name: str) -> tuple[str, ...]:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise ValueError(f"{name!a} does not name a file in the run directory")
    return path.parts


def _entered(root: Root, name: str, parent: int, part: str, flags: int, mode: int = 0o600) -> int:
    """Open one component below an open directory."""
    try:
        return os.open(part, flags | _SAFE, mode, dir_fd=parent)
    except OSError as error:
        # A symlink gives one of these, depending on the system and on O_DIRECTORY.
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EMLINK) and _is_link(parent, part):
            raise _link(root, name, parent, part) from None
        if error.errno == errno.ENXIO:  # a pipe without a reader, or a socket
            raise unsafe(root, name, "not a regular file") from None
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
            expected="files and directories inside the run directory",
            received=f"a symlink to {target!a}"[:300],
            do="move the target into the run directory; to keep a run on another disk, link the "
            "run directory instead",
        ),
        "a symlink; link the run directory instead",
    )


def unsafe(root: Root, name: str, reason: str) -> UnsafeFileError:
    """Return the error for a file of a run that cannot be used."""
    return UnsafeFileError(
        message(
            f"{_shown(root, name)} cannot be used.",
            expected="a regular file, as Loopwright writes it",
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
        # Files of another user, and file systems without modes, are left unchanged.
        with contextlib.suppress(PermissionError):
            os.fchmod(handle, found & ~0o777 | mode)


def _fsync_directory(handle: int) -> None:
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems cannot flush a directory
            raise
