"""The lock of a run directory: one process at a time, released by the kernel when it ends.

    with lock.held(run_dir / "lock"):
        ...

The file stays when the lock is released. Only the lock on it counts, so a killed process leaves
nothing to clean up.
"""

import contextlib
import errno
import functools
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import final

from loopwright import disk
from loopwright.distribute import cluster
from loopwright.errors import ConfigurationError, message
from loopwright.step_warnings import warn_at_call

NAME = "lock"
"""The file in a run directory."""
_NO_LOCKS_HERE = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}
_handles: set[int] = set()


@final
class Lock:
    """A lock that this process holds."""

    def __init__(self, path: Path) -> None:
        self._handle = _taken(path)

    def become(self, other: "Lock") -> None:
        """Hold what another lock holds, and release what this one held."""
        before, self._handle = self._handle, other._handle
        _release(before)

    def release(self) -> None:
        """Release the lock."""
        _release(self._handle)


@contextlib.contextmanager
def held(path: Path) -> Iterator[Lock]:
    """Hold the lock of a run directory; raise if another process or another `fit` holds it."""
    lock = Lock(path)
    try:
        yield lock
    finally:
        lock.release()


def _taken(path: Path, tries: int = 10) -> int:
    _close_in_forked_processes()
    try:
        handle = disk.opened(path.parent, path.name, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise _unusable(path, str(error.strerror)) from error
    _handles.add(handle)
    try:
        _lock(handle, path)
        # If the directory was moved between opening and locking, this locks the moved one. On a
        # file system without stable inode numbers that cannot be checked.
        in_place = disk.status(path.parent, path.name)
        if not tries or (in_place and os.path.samestat(in_place, os.fstat(handle))):
            return handle
    except BaseException:
        _release(handle)
        raise
    _release(handle)
    return _taken(path, tries - 1)


def _release(handle: int) -> None:
    if handle in _handles:  # a forked process has closed it
        _handles.discard(handle)
        with contextlib.suppress(OSError):
            disk.unlock(handle)
        os.close(handle)


def is_held(path: Path) -> bool:
    """Return whether a process holds the lock now; create and change nothing."""
    try:
        handle = disk.opened(path.parent, path.name)
    except OSError:
        return False
    try:
        disk.lock(handle, shared=True)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(handle)
    return False


def _lock(handle: int, path: Path) -> None:
    try:
        disk.lock(handle)
    except BlockingIOError:
        raise _refusal(path, os.pread(handle, 1000, 0)) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS_HERE:
            raise _unusable(path, str(error.strerror)) from error
        warn_at_call(
            message(
                f"{path} cannot be locked: {error.strerror}.",
                do="never start two processes in this run directory; nothing prevents it here",
            )
        )
    holder = {"pid": os.getpid(), "host": socket.gethostname()}
    with contextlib.suppress(OSError):  # on a full disk the lock is held all the same
        disk.overwrite(handle, json.dumps(holder).encode() + b"\n")


def _refusal(path: Path, content: bytes) -> ConfigurationError:
    try:
        holder = json.loads(content)
        pid, host = int(holder["pid"]), str(holder["host"])
    except (ValueError, TypeError, KeyError, RecursionError):  # not written yet
        pid, host = 0, ""
    do = "wait until it ends, end it, or choose another run_dir"
    if pid <= 0:
        received = "another process holds it"
    elif host != socket.gethostname():
        received = f"process {pid} on {host!a} holds it"
    elif pid == os.getpid():
        received = f"this process ({pid}) holds it"
        do = "let the other fit in this run directory end first, or choose another run_dir"
    else:
        received = f"process {pid} holds it"
        do = f"wait until it ends, end it (kill {pid}), or choose another run_dir"
    with contextlib.suppress(ConfigurationError):
        if pid != os.getpid() and cluster.found(os.environ) is not None:
            received += ", and this process is one of several workers"
            do = 'pass strategy="auto" to Trainer: without it, every worker trains alone'
    return ConfigurationError(
        f"The run directory {path.parent} is in use.",
        expected="one process at a time",
        received=received,
        do=do,
    )


def _unusable(path: Path, reason: str) -> ConfigurationError:
    return ConfigurationError(
        f"The run directory {path.parent} cannot be locked.",
        expected=f"a file {path.name} that this process may write, or none",
        received=f"{path}: {reason}",
        do="make the directory writable, move the existing file, or choose another run_dir",
    )


@functools.cache
def _close_in_forked_processes() -> None:
    # A forked data worker that outlives a killed run would keep its lock.
    os.register_at_fork(after_in_child=_close_all)


def _close_all() -> None:
    for handle in _handles:
        os.close(handle)
    _handles.clear()
