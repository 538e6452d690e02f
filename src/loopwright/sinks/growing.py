"""Files that grow with a run: a run that goes on cuts them to what its checkpoint has seen."""

import os
from collections.abc import Mapping
from pathlib import Path

from loopwright import disk
from loopwright.warning_places import warn_at_call


def cut(run_dir: Path, name: str, length: int) -> None:
    """Forgets what was written after the first `length` bytes; tells if there are fewer."""
    handle = disk.opened(run_dir, name, os.O_RDWR)
    try:
        found = os.fstat(handle).st_size
        if found < length:
            warn_at_call(
                f"{run_dir / name} has lost its end: {found:,} bytes, where the checkpoint has "
                f"seen {length:,}. The run goes on; the history in the checkpoint is whole."
            )
        else:
            os.ftruncate(handle, length)
    finally:
        os.close(handle)


def cut_all(run_dir: Path, names: list[str], lengths: Mapping[str, int]) -> None:
    """Cuts files of a run; those that no checkpoint has seen are removed."""
    for name in names:
        length = lengths.get(name)
        if length is None:
            disk.delete(run_dir, name)
        else:
            cut(run_dir, name, length)
