"""Staging: a directory to write in that does not outlive its process for long.

    with staged(parent) as directory:   # parent/.loopwright.tmp-1a2b3c4d
        write(directory / "model")
        (directory / "model").rename(parent / "1")

It is locked while it is in use. A killed process leaves it behind without the lock, and the next
one in the same parent removes it.
"""

import contextlib
import fcntl
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

from loopwright import disk

_NAME = re.compile(r"\.loopwright\.tmp-[0-9a-f]{8}")


@contextlib.contextmanager
def staged(parent: Path) -> Iterator[Path]:
    """Makes a directory in `parent`, which is made too, and deletes it at the end."""
    parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(parent)
    path, handle = _made(parent)
    try:
        yield path
    finally:
        try:
            disk.delete(parent, path.name)
        finally:
            os.close(handle)


def remove_abandoned(parent: Path) -> None:
    """Deletes the staging directories of processes that are gone; follows no symlink."""
    for name in sorted(os.listdir(parent)):
        if _NAME.fullmatch(name):
            # Somebody else's, a link, or already gone: none of these is an error here.
            with contextlib.suppress(OSError):
                handle = _opened(parent / name)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    disk.delete(parent, name)
                finally:
                    os.close(handle)


def _made(parent: Path) -> tuple[Path, int]:
    while True:
        path = parent / f".loopwright.tmp-{secrets.token_hex(4)}"
        path.mkdir(0o700)
        with contextlib.suppress(FileNotFoundError):
            handle = _opened(path)
            # Where locks are not supported nothing is ever found abandoned.
            with contextlib.suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_EX)
            if _is_still(path, handle):
                return path, handle
            os.close(handle)
        # Another process took it for abandoned before it was locked.


def _is_still(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(os.lstat(path), os.fstat(handle))
    except FileNotFoundError:
        return False


def _opened(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
