"""What a run's bits depend on beside its code: versions, threads, compiler settings, machine."""

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

_NO_PROGRAMS = (
    *("--no-optional-locks", "-c", "core.fsmonitor=false"),
    *("-c", "core.hooksPath=/dev/null"),
)
_SETTINGS = ("XLA_FLAGS", "TF_XLA_FLAGS", "TF_ENABLE_ONEDNN_OPTS")


def environment() -> dict[str, Any]:
    """The same in two processes that give the same bits for the same program."""
    return {
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "devices": [device.device_type for device in tf.config.list_physical_devices()],
        "intra-op threads": tf.config.threading.get_intra_op_parallelism_threads(),
        "inter-op threads": tf.config.threading.get_inter_op_parallelism_threads(),
        **{name: os.environ.get(name) for name in _SETTINGS},
    }


def about(run_dir: Path | None = None) -> dict[str, Any]:
    """The environment, and what else tells where a run came from."""
    return {
        **environment(),
        "loopwright": metadata.version("loopwright"),
        "python": platform.python_version(),
        "system": platform.platform(),
        "command": sys.argv,
        "git": _git(run_dir),
    }


def _git(run_dir: Path | None) -> dict[str, Any] | None:
    """The revision of the directory that a run was started in; None outside a repository.

    A repository inside the run directory came with it: its settings can name programs, which
    `git status` would start.
    """

    def told(*arguments: str) -> str:
        done = subprocess.run(
            ["git", *_NO_PROGRAMS, *arguments],
            capture_output=True,
            text=True,
            check=True,
            timeout=5,
        )
        return done.stdout.strip()

    try:
        repository = Path(told("rev-parse", "--absolute-git-dir")).resolve()
        if run_dir is not None and repository.is_relative_to(run_dir.resolve()):
            return None
        changed = told("status", "--short", "--untracked-files=no", "--ignore-submodules=all")
        return {"revision": told("rev-parse", "HEAD"), "is_changed": bool(changed)}
    except (OSError, subprocess.SubprocessError):
        return None


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What is different, one line each.

    >>> changes({"cores": 4, "keras": "3.15.1"}, {"cores": 2, "keras": "3.15.1"})
    ['cores: 4 then, 2 now']
    """
    names = sorted({*before, *now})
    return [
        f"{name}: {before.get(name)} then, {now.get(name)} now"
        for name in names
        if before.get(name) != now.get(name)
    ]


def processor() -> str:
    """The name of the processor, as far as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())
