"""Commands in processes of their own, and what they print."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType


def run_command(
    command: Sequence[str | Path],
    *,
    exits: int | None = 0,
    cwd: Path | None = None,
    env: Mapping[str, str] = MappingProxyType({}),
) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end, with `env` added to the environment.

    A test fails with what the command printed, unless it ends with the code `exits`; None: any.
    """
    environment = {**os.environ, **env}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert exits in (None, done.returncode), done.stdout[-3000:] + done.stderr[-4000:]
    return done
