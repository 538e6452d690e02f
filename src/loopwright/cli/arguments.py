"""What several commands take: runs, their configs, which checkpoint."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loopwright import recipes
from loopwright.errors import ConfigurationError, message

if TYPE_CHECKING:
    from loopwright.config import schema

_SOURCES = "A recipe, a CONFIG.yaml, or MODULE:FUNCTION of this directory."


def complete_recipe(incomplete: str) -> list[str]:
    """For the shell: recipes that begin like this."""
    return [name for name in recipes.names() if name.startswith(incomplete)]


Source = Annotated[
    str, typer.Argument(metavar="RECIPE|CONFIG", help=_SOURCES, autocompletion=complete_recipe)
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Other values: fit.epochs=5 seed=1."),
]
RunDirectory = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")]
NamedCode = Annotated[
    list[str] | None,
    typer.Option(
        "--task",
        metavar="MODULE:FUNCTION",
        help="The run's own task, loss or metric; may come again. A run's files alone run no code.",
    ),
]
WhichCheckpoint = Annotated[str, typer.Option("--checkpoint", help="best, last, or a step.")]


def which(text: str) -> "str | int":
    """A checkpoint as people name it.

    >>> which("best"), which("120")
    ('best', 120)
    """
    return int(text) if text.isdecimal() and len(text) < 19 else text


def launching() -> Any:
    """What trains: the module, and with it TensorFlow."""
    from loopwright.cli import job

    return job


def config_of(
    run: Path, code: list[str] | None, overrides: list[str] | None = None, *, trains: bool = False
) -> "schema.Config":
    """The config that a run was started with, to be used in this directory."""
    from loopwright.config import file

    found = file.saved_in(run, overrides or ())
    if found is None:
        raise ConfigurationError(
            message(
                f"{run} was not started from a config.",
                expected=f"a run directory with a {file.FILE}",
                received="none" if run.is_dir() else "no such directory",
                do="check the path; a run that a script started goes on with the same script",
            )
        )
    if any(name not in (code or ()) for name in found.code):
        raise ConfigurationError(
            message(
                f"{run} was trained with code of your own, which a run directory may not call.",
                expected=f"{named_code(found).strip()}, if you know it and trust it",
                received=" ".join(f"--task {name}" for name in code or ()) or "no --task",
                do="name the code yourself, from the directory of your project",
            )
        )
    named = any(word.startswith("sinks") for word in overrides or ())
    if trains and found.sinks and not named:
        raise ConfigurationError(
            message(
                f"{run} was heard by code of your own, which a run directory may not call.",
                expected=f"sinks=[{','.join(found.sinks)}], if you know them and trust them",
                received="no sinks=",
                do="name them yourself, or go on without: sinks=[]",
            )
        )
    sinks = found.sinks if trains else []
    return found.model_copy(update={"run_dir": str(run), "sinks": sinks})


def named_code(config: "schema.Config") -> str:
    """The options that name the code of a config's own, as a command takes them."""
    return "".join(f" --task {name}" for name in config.code)
