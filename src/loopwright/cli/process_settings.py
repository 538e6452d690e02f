"""Process settings of `train` and `run`, applied before TensorFlow is imported.

The program replaces the process of `run`, once and before it starts, so that its exit code,
signals, terminal and arguments are its own. `find settings` measures them.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from loopwright import settings
from loopwright.errors import ConfigurationError
from loopwright.processes import python

if TYPE_CHECKING:
    from loopwright.config import schema

_OF_THE_STEP = (
    *("task", "quick", "model", "data", "optimizer", "loss", "metrics"),
    *("precision", "strategy"),
)

SettingsWord = Literal["auto", "default"]
SettingsOption = Annotated[
    SettingsWord,
    typer.Option(
        "--settings",
        help="Process settings such as oneDNN: auto uses those of the run, or the fastest known; "
        "default leaves them as TensorFlow decides.",
    ),
]


def prepare(
    config: "schema.Config", word: SettingsWord, *, fresh: bool, may_measure: bool = True
) -> None:
    """Set this process up for a training: by its record, by what is remembered, or as it is."""
    content = config.model_dump(mode="json")
    # What decides the step of a config: not where, how long or from what seed it trains.
    parts = {name: content[name] for name in _OF_THE_STEP}
    code = str(Path.cwd()) if config.code else ""
    command = [*python(), *sys.orig_argv[1:]] if may_measure and not config.quick else []
    settings.apply(
        settings.command_key("train", parts, content["fit"]["batch_size"], code),
        command,
        "" if fresh else config.directory,
        config.plan,
        is_auto=word == "auto",
    )


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
    settings.apply(settings.program_key(program), command, is_auto=word == "auto")
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(command[0], command)


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
