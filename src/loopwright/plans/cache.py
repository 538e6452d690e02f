"""Files in the cache directory of the user: what was measured on this machine.

Each value is a dataclass in a JSON file of its own, read strictly: a file that is damaged, edited
or of another version counts as missing. Where nothing can be written, nothing is kept.
"""

import contextlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, TypeVar

from loopwright import disk

STRICT = {"strict": True, "extra": "forbid", "allow_inf_nan": False}
"""How pydantic reads a dataclass of the cache, and those inside it."""
_MOST_BYTES = 1_000_000
_UNREADABLE = (OSError, ValueError, RecursionError, disk.UnsafeFileError)

Folder = Literal["plans", "settings"]
_T = TypeVar("_T")


def directory(folder: Folder = "plans") -> Path | None:
    """Return a directory of the cache; None if it is switched off, or there is no home."""
    own = os.environ.get("LOOPWRIGHT_CACHE_DIR")
    if own is not None:
        return Path(own) / folder if own else None
    with contextlib.suppress(RuntimeError):  # the user has no home directory
        root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return Path(root) / "loopwright" / folder
    return None


def read(folder: Folder, name: str, kind: type[_T]) -> _T | None:
    """Return the value in a file of the cache; None if it is missing or cannot be read."""
    from pydantic import TypeAdapter  # slow to import; --help does not need it

    place = directory(folder)
    with contextlib.suppress(*_UNREADABLE):
        if place is not None:
            raw = disk.read(place, f"{name}.json", _MOST_BYTES)
            return TypeAdapter(kind).validate_json(raw)
    return None


def write(folder: Folder, name: str, value: Any) -> None:
    """Write a dataclass to its file; do nothing where that is not possible."""
    content = json.dumps(asdict(value), indent=2) + "\n"
    place = directory(folder)
    with contextlib.suppress(OSError, disk.UnsafeFileError):
        if place is not None:
            disk.make_run_directory(place)
            disk.write_whole(place, f"{name}.json", content.encode(), shared=True)


def delete(folder: Folder, name: str) -> None:
    """Delete a file of the cache, if there is one."""
    place = directory(folder)
    with contextlib.suppress(OSError, disk.UnsafeFileError):
        if place is not None:
            disk.delete(place, f"{name}.json")


def plan_count() -> int:
    """Return for how many kinds of step a plan is remembered."""
    place = directory("plans")
    return 0 if place is None else sum(name.endswith(".json") for name in disk.names(place))


def forget_all() -> int:
    """Delete the remembered plans and process settings; return how many plans there were."""
    place, count = directory("plans"), plan_count()
    if place is not None:
        for name in ("plans", "settings"):
            with contextlib.suppress(FileNotFoundError):
                disk.delete(place.parent, name)
    return count
