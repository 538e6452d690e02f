"""A description of the checkpoints of a run: files, checksums, variables, environment."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loopwright.checkpoints.manifest import (
    Checkpoint,
    DamagedError,
    read_manifest,
    verified,
)
from loopwright.checkpoints.store import Store
from loopwright.exactness import recorded_reasons

_BYTES = {"bool": 1} | {
    f"{kind}{bits}": bits // 8
    for kind in ("float", "int", "uint", "bfloat")
    for bits in (8, 16, 32, 64)
}


def inspected(run_dir: Path) -> dict[str, Any]:
    """Return a description of the checkpoints of a run; verify every byte."""
    found = Store(run_dir / "checkpoints").all()
    usable = [checkpoint for checkpoint in found if not checkpoint.damage]
    newest = usable[-1].content if usable else {}
    return {
        "run": str(run_dir),
        "checkpoints": [_described(checkpoint) for checkpoint in found],
        "variables": [_variable(row) for row in newest.get("variables", [])],
        "environment": dict(newest.get("environment", {})),
        "not_exactly_resumable": recorded_reasons(newest),
    }


def position_bytes(checkpoint: Path, variables: Sequence[Mapping[str, Any]]) -> int:
    """Return the bytes of a checkpoint that are not variables, mostly the position in the data."""
    known = sum(_variable(row)["bytes"] or 0 for row in variables)
    entries = read_manifest(checkpoint)["files"].items()
    files = sum(file["bytes"] for name, file in entries if name.startswith("state.data-"))
    return max(files - known, 0)


def _described(checkpoint: Checkpoint) -> dict[str, Any]:
    damage = checkpoint.damage
    if not damage:
        try:
            verified(checkpoint.path)
        except DamagedError as error:
            damage = str(error)
    files = {} if damage else read_manifest(checkpoint.path)["files"]
    content = checkpoint.content
    return {
        "step": checkpoint.step,
        "leg": content.get("leg"),
        "epoch": content.get("place", {}).get("epoch"),
        "scores": dict(content.get("scores", {})),
        "bytes": sum(file["bytes"] for file in files.values()),
        "files": files,
        "damage": damage,
    }


def _variable(row: Mapping[str, Any]) -> dict[str, Any]:
    shape, size = row.get("shape"), _BYTES.get(row.get("dtype", ""))
    known = None if shape is None or size is None else math.prod(shape) * size
    return {**row, "shape": shape, "bytes": known}
