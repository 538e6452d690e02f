"""A bundle of a replayed step: one file with what a colleague needs to look at it."""

import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any

from loopwright import disk
from loopwright.checkpoints.manifest import MANIFEST, in_run
from loopwright.checkpoints.run_directory import Run
from loopwright.insight.replayed import Replayed

_DESCRIBING = ("config.yaml", "environment.json", "plan.json", "status.json", "model.txt")


def write(path: str | os.PathLike[str], replayed: Replayed, run: Run) -> Path:
    """Write a `.zip` with the report, the batch and the files that describe the run; no pickles.

    The weights are left out: the run directory has them.
    """
    files = {name: _read(run.directory, name) for name in _DESCRIBING}
    if replayed.has_checkpoint:
        at, name = in_run(run.chosen(replayed.start_step)[0].path)
        files[f"checkpoint-{MANIFEST}"] = _read(at, f"{name}/{MANIFEST}")
    files["report.txt"] = f"{replayed}\n".encode()
    files["step.json"] = json.dumps(_facts(replayed), indent=2).encode()
    buffer = io.BytesIO()
    replayed.batch.write(buffer)
    files["batch.npz"] = buffer.getvalue()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, content in files.items():
            if content is not None:
                bundle.writestr(name, content)
    return Path(path)


def _read(run_dir: Path, name: str) -> bytes | None:
    return None if disk.status(run_dir, name) is None else disk.read(run_dir, name)


def _facts(replayed: Replayed) -> dict[str, Any]:
    """Return the step as JSON values; NaN and infinity as words."""
    plan, eager = replayed.recorded_plan, replayed.eager
    looks = () if replayed.shown is None else (*replayed.shown.layers, *replayed.shown.gradients)
    return {
        "run": str(replayed.run),
        "step": replayed.step,
        "plan": replayed.plan,
        "batch": replayed.batch.words,
        "examples": replayed.batch.examples,
        "numbers": {} if plan is None else {n: str(v) for n, v in plan.numbers.items()},
        "eager": {} if eager is None else {n: str(v) for n, v in eager.numbers.items()},
        "first_operation": replayed.first_operation,
        "error": replayed.error,
        "checks": [vars(check) for check in replayed.checks],
        "causes": list(replayed.causes),
        "tensors": [{name: str(v) for name, v in vars(look).items()} for look in looks],
    }
