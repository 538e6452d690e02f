"""`loopwright new`: a small project that trains at once, with its own test."""

import keyword
import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from loopwright import disk
from loopwright.errors import ConfigurationError, printable

_FILES = ("task.py", "config.yaml", "test_task.py", "pyproject.toml", "README.md", ".gitignore")


def new(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the project, and of its directory.")
    ],
    directory: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory that the project is created in.")
    ] = Path(),
) -> None:
    """Create a small project: a task, a config, a test. It trains at once."""
    _require_usable(name)
    _require_free(directory, name)
    _write(directory, name)
    place = directory / name
    typer.echo(printable(f"created {place}: {', '.join(_FILES)}"))
    typer.echo(printable(f"\n  cd {place}"))
    typer.echo("  loopwright train config.yaml   # some seconds; Ctrl-C saves, again resumes")
    typer.echo("  pytest                         # proves that it resumes exactly")


def contents(name: str) -> dict[str, str]:
    """Return the files of a project by their names."""
    import jinja2  # slow to import; --help does not need it

    loader = jinja2.PackageLoader("loopwright.cli", "project")
    templates = jinja2.Environment(  # autoescape is for HTML; the name is an identifier
        loader=loader, undefined=jinja2.StrictUndefined, keep_trailing_newline=True
    )
    return {
        file: templates.get_template(f"{file.lstrip('.')}.jinja").render(name=name)
        for file in _FILES
    }


def _write(directory: Path, name: str) -> None:
    """Write the project under another name and rename it: it is there as a whole, or not."""
    try:
        with disk.staged(directory, f".{name}-") as made:
            for file, text in contents(name).items():
                disk.write_whole(made, file, text.encode())
            disk.give_modes(directory, made.name)
            disk.rename(directory, made.name, name)
    except OSError as error:
        raise ConfigurationError(
            "The project cannot be written.",
            expected=f"a directory to write to: {directory}",
            received=f"{type(error).__name__}: {error}",
            do="choose another directory: --directory DIR",
        ) from error


def _require_usable(name: str) -> None:
    from importlib import machinery

    usable = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")
    if not usable.isidentifier() or keyword.iskeyword(usable):
        usable = f"my_{usable or 'project'}"
    problem = "not an identifier"
    if name == usable:
        # Not the current directory: what is there is the project's own.
        outside = [place for place in sys.path if place and Path(place).resolve() != Path.cwd()]
        found = machinery.PathFinder.find_spec(name, outside)
        is_module = found is not None and found.origin is not None
        is_hiding = is_module or name in sys.stdlib_module_names
        problem = f"would hide the installed module {name}" if is_hiding else ""
        usable = f"my_{name}"
    if problem:
        raise ConfigurationError(
            "Invalid name of a project.",
            expected="letters, digits and underscores, not the name of an installed module",
            received=f"{name!r}, {problem}",
            do=f"loopwright new {usable}",
        )


def _require_free(directory: Path, name: str) -> None:
    if not directory.is_dir():
        raise ConfigurationError(
            "No such directory.",
            expected="a directory to create the project in",
            received=str(directory),
            do=f"mkdir -p {directory}, or leave --directory out",
        )
    place = directory / name
    is_link = place.is_symlink()
    if is_link or (place.exists() and not (place.is_dir() and not any(place.iterdir()))):
        raise ConfigurationError(
            f"{place} exists; nothing was changed.",
            expected="a new name, or an empty directory",
            received="a symlink" if is_link else "files" if place.is_dir() else "a file",
            do=f"choose another name: loopwright new {name}_2, or another --directory",
        )
