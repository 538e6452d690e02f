"""`loopwright run` starts a program by its process settings; `find settings` measures them.

The program replaces the process of `run`, once and before it starts, so that its exit code,
signals, terminal and arguments are its own. Nothing here imports TensorFlow.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from loopwright import settings
from loopwright.cli.process_settings import SettingsOption
from loopwright.errors import ConfigurationError
from loopwright.launch import unmarked
from loopwright.processes import python


def run(
    program: Annotated[
        list[str],
        typer.Argument(
            metavar="SCRIPT [ARGS]", help="A Python script and its arguments, or -m MODULE [ARGS]."
        ),
    ],
    word: SettingsOption = "auto",
) -> None:
    """Run a program with the process settings that were measured for it.

    Example: loopwright run train.py --width 64
    """
    command = _command(program)
    is_auto = word == "auto"
    environment = settings.variables_for(program, command) if is_auto else unmarked(os.environ)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(command[0], command, environment)


def find_settings(
    program: Annotated[
        list[str],
        typer.Argument(
            metavar="PROGRAM",
            help="A script and its arguments, -m MODULE [ARGS], or train and its arguments.",
        ),
    ],
) -> None:
    """Measure which process settings train a program fastest, and remember it.

    Starts the program two or three times up to its first fit; nothing is written. Afterwards
    `loopwright run` and `loopwright train` start it by the fastest settings.

    Example: loopwright find settings train.py --width 64
    """
    is_train = program[0] == "train"
    command = [*python(), "-m", "loopwright", *program] if is_train else _command(program)
    typer.echo(settings.find(command))


def _command(program: Sequence[str]) -> list[str]:
    """Return the command that starts a program as Python does; raise if there is none."""
    if program[0] == "--probe":
        what, received = "--probe was removed.", "--probe"
        do = "use `loopwright find settings SCRIPT [ARGS]`, then `loopwright run SCRIPT [ARGS]`"
    elif program[0] == "-m" and len(program) < 2:
        what, received, do = "No module to run.", "-m alone", "name the module"
    elif program[0] != "-m" and not Path(program[0]).exists():
        what, received, do = "The program does not exist.", program[0], "check the path"
    else:
        return [sys.executable, *program]
    expected = "a Python script and its arguments, or -m MODULE [ARGS]"
    raise ConfigurationError(what, expected=expected, received=received, do=do)
