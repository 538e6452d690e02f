"""Arguments and options that several commands share, and the config of a run."""

import os
import tomllib
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loopwright.errors import ConfigurationError

if TYPE_CHECKING:
    from loopwright.config import schema


def complete_source(incomplete: str) -> list[str]:
    """Return digits and the programs and configs that start with `incomplete`, for the shell."""
    found = [path for end in ("*.py", "*/*.py", "*.yaml") for path in glob(f"{incomplete}{end}")]
    return [name for name in ("digits", *sorted(found)) if name.startswith(incomplete)]


_SOURCE = typer.Argument(
    metavar="TASK|CONFIG",
    help="digits, a file such as examples/gan.py, MODULE:FUNCTION in the current directory, "
    "or a YAML file.",
    autocompletion=complete_source,
    show_default=False,
)
Source = Annotated[str, _SOURCE]
OptionalSource = Annotated[str | None, _SOURCE]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE", help="Override config values, for example fit.epochs=5 seed=1."
    ),
]
Quick = Annotated[
    bool, typer.Option("--quick", help="Train a small version, in seconds, if the task has one.")
]
RunDirectory = Annotated[Path, typer.Argument(metavar="RUN", help="Path of a run directory.")]
RunsDirectory = Annotated[
    Path, typer.Argument(metavar="DIR|RUN", help="Directory that contains the runs, or one run.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
TrustedCode = Annotated[
    list[str] | None,
    typer.Option(
        "--task",
        metavar="MODULE:FUNCTION",
        help="Custom task (or FILE.py), loss or metric of the run; repeatable. A run directory "
        "alone executes no code.",
    ),
]
CheckpointOption = Annotated[
    str, typer.Option("--checkpoint", metavar="CHECKPOINT", help="best, last, or a step number.")
]


def parse_checkpoint(text: str) -> Any:
    """Convert the value of --checkpoint: a step number becomes an int; `restore` checks words.

    >>> parse_checkpoint("best"), parse_checkpoint("120")
    ('best', 120)
    """
    return int(text) if text.isdecimal() and len(text) < 19 else text


def load_config(
    source: str, overrides: list[str] | None, run_dir: Path | None, quick: bool
) -> "schema.Config":
    """Return the config that the arguments of a command name."""
    from loopwright.config import file

    words = [*(overrides or ()), *(["quick=true"] if quick else [])]
    config = file.load(source, words, environment=os.environ)
    return config if run_dir is None else config.model_copy(update={"run_dir": str(run_dir)})


def run_config(
    run: Path, code: list[str] | None, overrides: list[str] | None = None, *, trains: bool = False
) -> "schema.Config":
    """Return the config that a run was started with; custom code must be in `code`."""
    from loopwright.config import file

    found = file.saved_in(run, overrides or ())
    if found is None:
        raise ConfigurationError(
            f"{run} was not started from a config, so its task and data are not known here.",
            expected=f"a run directory with a {file.FILE}",
            received="none" if run.is_dir() else "no such directory",
            do="check the path; a run of a script is resumed by the same script, and replayed "
            "there by print(trainer.replay(STEP, ...)) in place of trainer.fit(...)",
        )
    code = [*(code or ()), *project_code(run)]
    if any(name not in code for name in found.code):
        raise ConfigurationError(
            f"{run} was trained with custom code, which a run directory may not call.",
            expected=f"{code_options(found).strip()}, if you know and trust this code",
            received=" ".join(f"--task {name}" for name in code) or "no --task",
            do="name the code yourself, from the directory of your project; or once, in its "
            f'pyproject.toml: [tool.loopwright] task = "{found.code[0]}"',
        )
    is_overridden = any(word.startswith("sinks") for word in overrides or ())
    if trains and found.trusted_sinks and not is_overridden:
        listed = ", ".join(found.trusted_sinks)
        raise ConfigurationError(
            f"{run} used sinks that a run directory may not name.",
            expected=f"sinks=[{listed}], if you know and trust this code, or this address",
            received="no sinks=",
            do="pass the sinks again, or continue without them: sinks=[]",
        )
    sinks = found.sinks if trains else []
    return found.model_copy(update={"run_dir": str(run), "sinks": sinks})


def project_code(run: Path) -> list[str]:
    """Return the code that the `pyproject.toml` of the current directory names for its runs."""
    project = Path.cwd().resolve()
    if project.is_relative_to(run.resolve()):
        return []  # a stranger's run may bring a pyproject.toml
    try:
        content = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))
        given = content["tool"]["loopwright"]["task"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return given if isinstance(given, list) else [given]


def code_options(config: "schema.Config") -> str:
    """Return the --task options that name a config's custom code, with a leading space each."""
    known = project_code(Path(config.directory))
    return "".join(f" --task {name}" for name in config.code if name not in known)
