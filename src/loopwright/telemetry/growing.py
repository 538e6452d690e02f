"""Files that grow with a run: a run that goes on cuts them to what its checkpoint has seen."""

import os
import stat
import warnings
from collections.abc import Mapping
from pathlib import Path

from loopwright.errors import LoopwrightWarning


def cut(path: Path, length: int) -> None:
    """Forgets what was written after the first `length` bytes; tells if there are fewer."""
    handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    try:
        found = os.fstat(handle).st_size
        if found < length:
            warnings.warn(
                f"{path} has lost its end: {found:,} bytes, where the checkpoint has seen "
                f"{length:,}. The run goes on; the history in the checkpoint is whole.",
                LoopwrightWarning,
                stacklevel=2,
            )
        else:
            os.ftruncate(handle, length)
    finally:
        os.close(handle)


def cut_all(directory: Path, pattern: str, lengths: Mapping[str, int]) -> None:
    """Cuts the files of a run that match a pattern; those that no checkpoint has seen are removed.

    `lengths` are by path within the directory.
    """
    for path in sorted(directory.glob(pattern)):
        if not stat.S_ISREG(path.lstat().st_mode):
            continue
        length = lengths.get(str(path.relative_to(directory)))
        if length is None:
            path.unlink()
        else:
            cut(path, length)
