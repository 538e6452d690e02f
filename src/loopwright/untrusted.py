"""Contents of files that may come from someone else: bounded in size and depth before use.

    untrusted.read_json(run_dir, "plan.json")
    untrusted.lines(run_dir, "metrics.jsonl")

Files of a run are small, or made of short lines. A sparse file, or JSON nested without end, would
take all memory or end in a traceback: it is refused like a symlink, by `disk.UnsafeFileError`.
"""

import functools
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from loopwright import disk

MOST_DEPTH = 100
_MOST_JOURNAL_BYTES = 16 * 2**30
_DEEP = f"values nested more than {MOST_DEPTH} levels deep"
_SUPER_JOURNAL = bytes.fromhex("d9d505f920a163d7")


def read_json(root: disk.Root, name: str) -> Any:
    """Return the value in a JSON file of a run; raise ValueError if it is not JSON."""
    raw = disk.read(root, name)
    try:
        value = json.loads(raw.decode(errors="replace"))
    except RecursionError:
        raise disk.unsafe(root, name, _DEEP) from None
    if is_deep(value):
        raise disk.unsafe(root, name, _DEEP)
    return value


def json_or_none(root: disk.Root, name: str) -> Any:
    """Return the value in a JSON file of a run; None if it is missing or not JSON.

    Such files are replaced as a whole: one that is not JSON was damaged later.
    """
    try:
        return read_json(root, name)
    except disk.UnsafeFileError:
        raise
    except (OSError, ValueError):
        return None


def is_deep(value: Any) -> bool:
    """Return whether a value has more levels than the code that walks through it can take.

    >>> is_deep([{"a": [1]}]), is_deep(functools.reduce(lambda inner, _: [inner], range(200), 1))
    (False, True)
    """
    level = [value]
    for _ in range(MOST_DEPTH):
        inner = [each for each in level if isinstance(each, list | Mapping)]
        if not inner:
            return False
        level = [v for each in inner for v in (each if isinstance(each, list) else each.values())]
    return True


def lines(root: disk.Root, name: str, after: int = 0) -> Iterator[bytes]:
    """Yield the lines of a file of a run after its first `after` bytes; the last may be cut off."""
    with os.fdopen(disk.opened(root, name), "rb", buffering=1 << 20) as file:
        if os.fstat(file.fileno()).st_size > _MOST_JOURNAL_BYTES:
            raise disk.unsafe(root, name, f"more than {_MOST_JOURNAL_BYTES:,} bytes")
        file.seek(after)
        for line in iter(functools.partial(file.readline, disk.MOST_BYTES + 1), b""):
            if len(line) > disk.MOST_BYTES:
                raise disk.unsafe(root, name, f"a line of more than {disk.MOST_BYTES:,} bytes")
            yield line


def event(line: bytes) -> dict[str, Any]:
    r"""Return the event in a line of a journal; empty if the line is none.

    >>> event(b'{"event": "started"}\n'), event(b'{"event": "sta'), event(b"[" * 9999)
    ({'event': 'started'}, {}, {})
    """
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) and not is_deep(found) else {}


def require_sqlite(path: Path) -> None:
    """Raise if an SQLite file, or a file beside it, would lead SQLite to another file.

    SQLite follows symlinks. It deletes the super-journal that a journal names at its end, whatever
    file that is; only a transaction over several databases writes such a name, and none of ours is.
    """
    for name in (path.name, *(f"{path.name}-{part}" for part in ("journal", "wal", "shm"))):
        if disk.status(path.parent, name) is None:
            continue
        with os.fdopen(disk.opened(path.parent, name), "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - len(_SUPER_JOURNAL)))
            if name.endswith("-journal") and file.read() == _SUPER_JOURNAL:
                raise disk.unsafe(path.parent, name, "a journal that names another file to delete")
