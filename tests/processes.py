"""Commands in processes of their own, and what they print."""

import os
import subprocess
import sys
import textwrap
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


def run_code(
    code: str,
    *arguments: str | Path,
    exits: int | None = 0,
    env: Mapping[str, str] = MappingProxyType({}),
) -> "subprocess.CompletedProcess[str]":
    """Run Python code, which may import from `tests`, as `run_command` runs a command."""
    command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
    return run_command(command, exits=exits, cwd=Path(__file__).parents[1], env=env)


def lines_with_compiles(code: str, dump: Path) -> list[str]:
    """Return what code prints that has `compiled()`: how often XLA has compiled so far."""
    count = f"len(list(__import__('pathlib').Path({str(dump)!r}).glob('module_*before_opt*.txt')))"
    counts = f"def compiled():\n    return {count}\n"
    flags = {"XLA_FLAGS": f"--xla_dump_to={dump} --xla_dump_hlo_as_text"}
    return run_code(counts + textwrap.dedent(code), env=flags).stdout.splitlines()
