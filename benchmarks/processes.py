"""Call a function of a module in a new process: `python -m benchmarks.processes`."""

import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def environment(cache_directory: Path | str) -> dict[str, str]:
    """Return the environment of a measured process, with an empty plan cache."""
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ}
    return {**quiet, "LOOPWRIGHT_CACHE_DIR": str(cache_directory)}


def call(function: str, cache_directory: Path | str | None = None, **arguments: Any) -> Any:
    """Return the result of `module:function` in a new process, as JSON values."""
    command = [sys.executable, "-m", "benchmarks.processes", function, json.dumps(arguments)]
    with tempfile.TemporaryDirectory() as empty:
        return run(command, environment(cache_directory or empty))


def run(command: list[str], environment: Mapping[str, str]) -> Any:
    """Return the JSON in the last line of a command's output; raise RuntimeError if it fails."""
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment, check=False
    )
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        raise RuntimeError(f"{' '.join(command[2:])} ended with exit code {done.returncode}")
    return json.loads(lines[-1])


def _serve(function: str, arguments: str) -> None:
    module, _, name = function.partition(":")
    result = getattr(importlib.import_module(module), name)(**json.loads(arguments))
    print(json.dumps(result))


if __name__ == "__main__":
    _serve(*sys.argv[1:])
