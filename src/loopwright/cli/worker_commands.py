"""The command that starts several workers on this machine."""

import os
import threading
from typing import Annotated

import typer

from loopwright.distribute import supervisor


def launch(
    command: Annotated[
        list[str],
        typer.Argument(metavar="-- COMMAND...", help="A command of loopwright: train digits."),
    ],
    workers: Annotated[int, typer.Option(help="How many processes train together.", min=1)] = 2,
    restarts: Annotated[
        int, typer.Option(help="How often all are started again after a death.", min=0)
    ] = 0,
) -> None:
    """Trains with several processes of this machine: launch --workers 2 -- train digits."""
    writing = threading.Lock()

    def say(line: str) -> None:
        with writing:
            typer.echo(line)

    code = supervisor.supervise(
        [*supervisor.python(), "-m", "loopwright", *command],
        workers=workers,
        restarts=restarts,
        environment=os.environ,
        say=say,
    )
    raise typer.Exit(code)
