"""`loopwright run`: a program of the user, by the process settings recorded or remembered for it.

The program replaces this process, once and before it starts, so that its exit code, signals,
terminal and arguments are its own. Nothing here imports TensorFlow.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from loopwright.cli.process_settings import SettingsOption, decide, last_step, recorded
from loopwright.errors import ConfigurationError, message
from loopwright.plans import launch, settings_memory


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
    command, environment = command_of(program), launch.unmarked(os.environ)
    if word != "default":
        key = settings_memory.program_key(program)
        choice = settings_memory.remembered(key)
        run_dir = "" if choice is None else choice.run_dir
        given = recorded(run_dir, last_step(Path(run_dir))) if run_dir else None
        environment = launch.marked(environment, *decide(given, key, command))
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(command[0], command, environment)


def command_of(program: Sequence[str]) -> list[str]:
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
    raise ConfigurationError(message(what, expected=expected, received=received, do=do))
