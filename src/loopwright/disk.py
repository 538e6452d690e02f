"""The disk: what is on it for good, what it takes, what it has left."""

import errno
import os
import shutil
from pathlib import Path


def fsync_directory(directory: Path) -> None:
    """Makes the names in a directory durable."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems know no fsync of a directory
            raise
    finally:
        os.close(handle)


def make_directory(path: Path) -> None:
    """Makes a directory and those above it, durably and for its owner only."""
    if not path.is_dir():
        make_directory(path.parent)
        path.mkdir(0o700, exist_ok=True)
        fsync_directory(path.parent)


def write_whole(path: Path, content: bytes, *, durable: bool = False) -> None:
    """Writes a file that others always find whole: as it was, or as it is now."""
    temporary = path.with_name(f"{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(content)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    temporary.replace(path)


def delete_tree(path: Path) -> None:
    """Deletes a file or a directory; what a symlink points to stays."""
    if path.is_symlink() or not path.is_dir():
        path.unlink()
    else:
        shutil.rmtree(path)  # follows no symlink


def bytes_in(directory: Path) -> int:
    """How much the files of a directory take."""
    try:
        return sum(entry.stat(follow_symlinks=False).st_size for entry in os.scandir(directory))
    except OSError:
        return 0


def free_bytes(directory: Path) -> int | None:
    """How much can still be written; None where the disk does not tell."""
    try:
        disk = os.statvfs(directory)
    except OSError:
        return None
    return disk.f_bavail * disk.f_frsize if disk.f_blocks else None  # some disks do not tell
