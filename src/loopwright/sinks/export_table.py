"""The exports of a run, for its report: read from the comparison stored with each of them.

The files may come from an untrusted source: any field may have any type.
"""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loopwright import disk, untrusted
from loopwright.errors import printable
from loopwright.runs import mapping, number

_HOME = "export"
_MOST = 12


def export_rows(run_dir: Path) -> list[dict[str, Any]]:
    """Return the rows of the table of exports, the newest last."""
    found = [_row(name, _content(run_dir, name)) for name in _by_time(run_dir)]
    return [row for row in found if row][-_MOST:]


def _reports(run_dir: Path) -> list[str]:
    names = disk.names(run_dir, _HOME)
    versions = [f"{_HOME}/{name}/loopwright.json" for name in names if name.isdigit()]
    return [*versions, *(f"{_HOME}/{name}" for name in names if name.endswith(".json"))]


def _by_time(run_dir: Path) -> list[str]:
    """Return the names of the comparisons, the oldest first; a symlink is left out."""
    times = dict[str, int]()
    for name in _reports(run_dir):
        with contextlib.suppress(disk.UnsafeFileError):
            status = disk.status(run_dir, name)
            if status is not None:
                times[name] = status.st_mtime_ns
    return sorted(times, key=lambda name: (times[name], name))


def _content(run_dir: Path, name: str) -> dict[str, Any]:
    try:
        return mapping(untrusted.read_json(run_dir, name))
    except (OSError, ValueError):
        return {}


def _row(name: str, told: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row; empty if the file is not the comparison of an export."""
    difference, step = number(told.get("largest_difference")), number(told.get("step"))
    if difference is None or not isinstance(told.get("format"), str):
        return {}
    kinds = [told.get("format"), told.get("quantize"), "averaged" if told.get("averaged") else ""]
    path = name.removesuffix("/loopwright.json").removesuffix(".json")
    return {
        "file": printable(path),
        "holds": printable(str(told.get("holds") or "")[:300]),
        "kind": printable(", ".join(str(kind) for kind in kinds if kind)),
        "step": "" if step is None else f"{step:,.0f}",
        "size": _size(number(told.get("bytes"))),
        "difference": f"{difference:.2g}",
        "runtime": printable(str(told.get("runtime") or "")[:80]),
    }


def _size(count: float | None) -> str:
    """Return a size in words.

    >>> _size(4680.0), _size(2.5e6), _size(None)
    ('4.7 kB', '2.5 MB', '')
    """
    if count is None:
        return ""
    unit, name = (1e6, "MB") if count >= 1e6 else (1e3, "kB")
    return f"{count / unit:,.1f} {name}"
