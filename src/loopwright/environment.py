"""What a run's bits depend on besides its code: versions, threads, settings, machine."""

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

from loopwright import launch, processor

_VECTORS = "processor instructions"


def environment() -> dict[str, Any]:
    """Return what is equal in two processes that compute the same bits for the same program."""
    return {**_machine(), _VECTORS: processor.vectors(), **_by_name(launch.current())}


def for_digest(found: launch.Settings) -> dict[str, Any]:
    """Return the environment of a process like this one with these settings, to be digested.

    In the form of the first version, which named variables: digests in old records still match.
    """
    is_default = found.onednn == launch.onednn_by_default()
    return {
        **_machine(),
        "XLA_FLAGS": " ".join(found.xla_flags) or None,
        "TF_XLA_FLAGS": None,
        launch.ONEDNN: None if is_default else str(int(found.onednn)),
        **found.threads,
    }


def _machine() -> dict[str, Any]:
    return {
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "processor": processor.name(),
        "cores": processor.cores(),
        "devices": [device.device_type for device in tf.config.list_physical_devices()],
        "intra-op threads": tf.config.threading.get_intra_op_parallelism_threads(),
        "inter-op threads": tf.config.threading.get_inter_op_parallelism_threads(),
    }


def _by_name(found: launch.Settings) -> dict[str, Any]:
    """Return settings by their meaning: a variable that only names a file changes no bits."""
    return {
        "oneDNN": "on" if found.onednn else "off",
        "XLA flags": " ".join(found.xla_flags) or None,
        **{variable: getattr(found, name) or None for name, variable in launch.THREADS.items()},
    }


def about(run_dir: Path | None = None) -> dict[str, Any]:
    """Return the environment, and where a run came from."""
    return {
        **environment(),
        "loopwright": metadata.version("loopwright"),
        "python": platform.python_version(),
        "system": platform.platform(),
        "command": sys.argv,
        "git": _git(run_dir),
    }


def _git(run_dir: Path | None) -> dict[str, Any] | None:
    """Return the revision of the program's own code; None outside a repository.

    Only `rev-parse` is asked: it starts no program that the settings of a repository may name, as
    `git status` does. A repository inside the run directory came with the run.
    """
    code = _code()
    if code is None or (run_dir is not None and code.is_relative_to(run_dir.resolve())):
        return None
    variables = {name: v for name, v in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-C", str(code), "rev-parse", "--verify", "HEAD"]
    try:
        done = subprocess.run(
            command, env=variables, capture_output=True, text=True, check=True, timeout=5
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return {"revision": done.stdout.strip()}


def _code() -> Path | None:
    """Return the directory of the program: a script, a prompt, or the task that a command names."""
    main = getattr(sys.modules["__main__"], "__file__", None)
    here = Path.cwd().resolve()
    if not launch.is_command_line():
        if main is None:
            return here
        if "site-packages" not in main:  # not by pytest, for example
            return Path(main).resolve().parent
    files = [getattr(module, "__file__", None) or "" for module in list(sys.modules.values())]
    own = [file for file in files if file.startswith(f"{here}/") and "site-packages" not in file]
    return Path(own[0]).parent if own else None


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the differences, one line each.

    >>> changes({"cores": 4, "keras": "3.15.1"}, {"cores": 2, "keras": "3.15.1"})
    ['cores: 4 then, 2 now']
    """
    before = {_VECTORS: now.get(_VECTORS), **before}  # earlier versions did not record them
    names = sorted({*before, *now})
    return [
        f"{name}: {before.get(name)} then, {now.get(name)} now"
        for name in names
        if before.get(name) != now.get(name)
    ]
