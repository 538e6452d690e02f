"""Install a wheel into a new environment of each Python, and train with it there."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

VERSIONS = ("3.11", "3.12", "3.13")


def pythons(versions: Sequence[str] = VERSIONS) -> dict[str, Path | None]:
    """Return an interpreter of each version that runs: on the PATH, or installed by pyenv."""
    return {version: _found(version) for version in versions}


def _found(version: str) -> Path | None:
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    on_path = [Path(found)] if (found := shutil.which(f"python{version}")) else []
    installed = sorted(root.glob(f"versions/{version}.*/bin/python{version}"), reverse=True)
    for python in (*installed, *on_path):
        # pyenv puts a command on the PATH for versions that are installed but not selected.
        asked = [str(python), "-c", "import sys, ensurepip; print('%d.%d' % sys.version_info[:2])"]
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
        if done.returncode == 0 and done.stdout.strip() == version:
            return python
    return None


def objections_of_use(python: Path, wheel: Path, directory: Path) -> list[str]:
    """Return what fails when the wheel is installed and used; the environment is deleted."""
    environment, work = directory / "environment", directory / "work"
    work.mkdir(parents=True)
    try:
        subprocess.run([str(python), "-m", "venv", str(environment)], check=True)
        return _used(environment / "bin", wheel, work)
    except subprocess.CalledProcessError as error:
        return [f"{' '.join(map(str, error.cmd))}: exit code {error.returncode}"]
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _used(binaries: Path, wheel: Path, work: Path) -> list[str]:
    quiet = ("--quiet", "--disable-pip-version-check")
    run, loopwright = work / "runs" / "digits", str(binaries / "loopwright")
    new = work / "first"
    steps = [
        ([str(binaries / "pip"), "install", *quiet, f"{wheel}[recipes]"], work),
        ([str(binaries / "pip"), "check", *quiet], work),
        ([loopwright, "doctor"], work),
        ([loopwright, "train", "digits", "quick=true", f"run_dir={run}"], work),
        ([loopwright, "plot", str(run), "--output", "digits.png"], work),
        ([loopwright, "new", new.name], work),
        ([loopwright, "train", "config.yaml"], new),
    ]
    # What the caller's shell sets must not help: the environment has only what the wheel brings.
    own = {n: v for n, v in os.environ.items() if not n.startswith(("PYTHON", "VIRTUAL_ENV"))}
    for command, place in steps:
        began = time.monotonic()
        done = subprocess.run(
            command, cwd=place, env=own, capture_output=True, text=True, check=False
        )
        said = f"{done.stdout}{done.stderr}".strip()
        words = " ".join([Path(command[0]).name, *command[1:]])
        if done.returncode != 0:
            return [f"{words}: exit code {done.returncode}\n{said[-2000:]}"]
        print(f"    {time.monotonic() - began:5.0f} s  {words}", flush=True)
    status = json.loads((run / "status.json").read_text())["status"]
    return [] if status == "completed" else [f"training digits ended as {status}"]
