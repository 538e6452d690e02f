"""Fork: start a new run from a checkpoint of an old run, which is not changed.

Nothing here imports TensorFlow: the process settings of a fork are read from its files.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loopwright import disk, untrusted
from loopwright.checkpoints import lock
from loopwright.checkpoints.manifest import Checkpoint, in_run
from loopwright.checkpoints.store import Store
from loopwright.errors import CheckpointError, disk_explained
from loopwright.plans import record as plan_record

ORIGIN = "origin.json"
"""Which step of which run a run was forked from, and with which changes."""
_JOURNAL = "metrics.jsonl"


def is_fork(target: Path, origin: Mapping[str, Any]) -> bool:
    """Return whether a run was forked from this origin; it is resumed instead of made again."""
    recorded = untrusted.json_or_none(target, ORIGIN)
    return isinstance(recorded, dict) and all(recorded.get(k) == v for k, v in origin.items())


def write_fork(
    found: Checkpoint, target: Path, config: bytes, origin: Mapping[str, Any], config_name: str
) -> None:
    """Write a run directory that begins with a checkpoint: state, data position, plans, journal."""
    source = found.path.parent.parent
    content = dict(found.content)
    with disk_explained(target):
        disk.make_run_directory(target)
    with lock.held(target / lock.NAME), disk_explained(target):
        length = int(content.get("lengths", {}).get(_JOURNAL, 0))
        if length:
            disk.copy(source, _JOURNAL, target, _JOURNAL)
            disk.cut(target, _JOURNAL, length)
            disk.flush(target, _JOURNAL)
        # TensorBoard files and the log begin with the fork.
        content["lengths"] = {_JOURNAL: length} if length else {}
        plans = plan_record.parsed(content["plans"])
        if plans.changes:
            disk.write_whole(target, "plan.json", plans.text().encode(), durable=True)
        disk.write_whole(target, config_name, config, durable=True)

        def copy(into: Path) -> None:
            root, name = in_run(found.path)
            for file in found.files:
                disk.copy(root, f"{name}/{file}", into, file)

        store = Store(target / "checkpoints")
        store.write(found.step, content, copy)
        if store.at(found.step).files != found.files:
            raise CheckpointError(
                f"The checkpoint of step {found.step} changed while it was copied.",
                expected=f"the files of {found.path} as they were written",
                received="other checksums",
                do=f"delete {target} and fork again",
            )
        # Last: a copy that was interrupted is not taken for a fork.
        written = json.dumps(dict(origin), indent=2).encode()
        disk.write_whole(target, ORIGIN, written, durable=True)
