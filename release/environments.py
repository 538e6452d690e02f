"""Install a wheel into a new environment of each Python, and use it there as people do."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

VERSIONS = ("3.11", "3.12", "3.13")
_SECONDS_BETWEEN_LINES = 30.0
_COLUMNS = 150
_REFUSED = 2

# An import of TensorFlow raises ImportError here.
_HELP_WITHOUT_TENSORFLOW = (
    "import sys; sys.modules['tensorflow'] = None; sys.argv = ['loopwright', '--help']; "
    "from loopwright.cli.main import main; main()"
)


@final
@dataclass(frozen=True)
class Use:
    """A command, the exit code that it must have, and what it must print."""

    words: tuple[str, ...]
    place: Path
    code: int = 0
    says: tuple[str, ...] = ()


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


def objections_to_pythons(found: Mapping[str, Path | None]) -> list[str]:
    """Return the versions that are not there: a release supports only what was tried."""
    return [
        f"Python {version} was not found: install it, or name the others with --python"
        for version, python in found.items()
        if python is None
    ]


def objections_of_use(python: Path, wheel: Path, directory: Path, wheels: Path) -> list[str]:
    """Return what fails when the wheel is installed and used; the environment is deleted.

    What pip downloads stays in `wheels`, for the next time.
    """
    work = directory / "work"
    work.mkdir(parents=True)
    # What the caller's shell sets must not help: the environment has only what the wheel brings.
    own = {n: v for n, v in os.environ.items() if not n.startswith(("PYTHON", "VIRTUAL_ENV"))}
    own |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_PROGRESS_BAR": "off"}
    environment = directory / "environment"
    made = Use((str(python), "-m", "venv", str(environment)), work)
    try:
        for use in (made, *_uses(environment / "bin", wheel, work, wheels)):
            if objection := objection_to(use, own):
                return [objection]
        return []
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _uses(binaries: Path, wheel: Path, work: Path, wheels: Path) -> list[Use]:
    """Return what is done: first without any extra, then with those of the examples."""
    python, loopwright = str(binaries / "python"), str(binaries / "loopwright")
    pip = (python, "-m", "pip")
    full = (f"{wheel}[examples]", "pytest")
    install = (*pip, "install", "--no-index", "--find-links", str(wheels))
    first = work / "first"

    def needs(extra: str, *words: str) -> Use:
        return Use((loopwright, *words), first, _REFUSED, (_pip_line(extra),))

    extras = ("examples", "plot", "augment", "litert", "onnx", "mlflow", "wandb", "tune")
    bare = [
        Use((*pip, "download", "--only-binary", ":all:", "--dest", str(wheels), *full), work),
        Use((*install, str(wheel)), work),
        Use((*pip, "check"), work),
        Use((python, "-c", _HELP_WITHOUT_TENSORFLOW), work, says=("Usage: loopwright",)),
        Use((loopwright, "doctor"), work, says=tuple(map(_pip_line, extras))),
        Use((loopwright, "new", first.name), work),
        Use((loopwright, "train", "config.yaml"), first),
        needs("litert", "export", "runs/first", "--format", "litert"),
        needs("onnx", "export", "runs/first", "--format", "onnx"),
        needs("plot", "find", "learning-rate", "config.yaml", "--figure", "rates.png"),
        needs("mlflow", "train", "config.yaml", "sinks=[mlflow]", "run_dir=runs/tracked"),
        needs("wandb", "train", "config.yaml", "sinks=[wandb]", "run_dir=runs/tracked"),
        needs("tune", "tune", "config.yaml", "model.units=int(4,8)"),
        needs("examples", "train", "digits"),
    ]
    with_extras = [
        Use((*install, *full), work),
        Use((loopwright, "train", "digits", "quick=true"), work, says=("completed",)),
        Use((loopwright, "find", "learning-rate", "digits", "--quick", "--figure=rates.png"), work),
        Use((python, "-m", "pytest", "--quiet"), first, says=("3 passed",)),
    ]
    return bare + with_extras


def _pip_line(extra: str) -> str:
    return f"pip install 'loopwright[{extra}]'"


def objection_to(use: Use, environment: Mapping[str, str]) -> str | None:
    """Run a command and print its time; a slow one tells twice a minute where it is."""
    shown = " ".join(Path(word).name if word.startswith("/") else word for word in use.words)
    began = time.monotonic()
    with tempfile.NamedTemporaryFile(prefix="loopwright-release-") as log:
        with subprocess.Popen(
            use.words, cwd=use.place, env=environment, stdout=log, stderr=subprocess.STDOUT
        ) as process:
            while (code := _waited(process)) is None:
                _tell(began, f"... {_read(log.name).rpartition(chr(10))[2] or shown}")
        said = _read(log.name)
    _tell(began, shown)
    if code != use.code:
        return f"{shown}: exit code {code}, expected {use.code}\n{said[-2000:]}"
    # A terminal's width decides where lines are broken.
    unsaid = [text for text in use.says if text not in " ".join(said.split())]
    return f"{shown} does not say {' nor '.join(unsaid)}\n{said[-2000:]}" if unsaid else None


def _waited(process: "subprocess.Popen[bytes]") -> int | None:
    try:
        return process.wait(_SECONDS_BETWEEN_LINES)
    except subprocess.TimeoutExpired:
        return None


def _read(log: str) -> str:
    return Path(log).read_text(encoding="utf-8", errors="replace").strip()


def _tell(began: float, what: str) -> None:
    line = what if len(what) <= _COLUMNS else f"{what[:_COLUMNS]}..."
    print(f"    {time.monotonic() - began:5.0f} s  {line}", flush=True)
