"""The command line: `loopwright --help`. TensorFlow is imported by what trains, and only there.

Exit codes: 0 done, also when stopped early; 1 the training failed; 2 wrongly asked; 3 NaN; 130
Ctrl-C and 143 SIGTERM, both after the run was saved; 193 another worker is gone, start all again.
"""

import os
import sys
import warnings

import typer

from loopwright.cli import (
    look_commands,
    train_commands,
    use_commands,
)
from loopwright.cli import (
    train_commands as worker_commands,
)
from loopwright.errors import (
    EXIT_WORKER_LOST,
    ConfigurationError,
    LoopwrightError,
    NotFiniteError,
    WorkerLostError,
    printable,
)

_ABOUT = "You write the training step; Loopwright owns everything around it."

app = typer.Typer(
    help=_ABOUT,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)
app.command("recipes")(look_commands.list_recipes)
app.command("train")(train_commands.train)
app.command("resume")(train_commands.resume)
app.command("launch")(worker_commands.launch)
app.command("evaluate")(use_commands.evaluate)
app.command("predict")(use_commands.predict)
app.command("export")(use_commands.export)
app.command("runs")(look_commands.runs)
app.command("report")(look_commands.report)
app.command("inspect")(look_commands.inspect)
app.command("schedule")(train_commands.schedule)
app.command("verify")(train_commands.verify)
app.command("board")(look_commands.board)
app.command("schema")(look_commands.schema)
app.command("doctor")(look_commands.doctor)


def main() -> None:
    """Runs the command line; what a person did wrong is told in words, without a stack."""
    # TensorFlow reads it when it is imported: no notices, but its warnings. Whoever set it wins.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    warnings.formatwarning = _worded
    try:
        app()
    except WorkerLostError:
        # It has been said. TensorFlow's own end would wait for workers that are gone.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(EXIT_WORKER_LOST)
    except LoopwrightError as error:
        typer.echo(printable(f"error: {error}"), err=True)
        raise SystemExit(exit_code(error)) from None


def exit_code(error: LoopwrightError) -> int:
    """What an error means to whoever started the program: whether trying again may help.

    >>> exit_code(ConfigurationError("")), exit_code(NotFiniteError("", step=1))
    (2, 3)
    """
    if isinstance(error, NotFiniteError):
        return 3
    return 2 if isinstance(error, ConfigurationError) else 1


def _worded(text: Warning | str, *_: object, **__: object) -> str:
    return printable(f"warning: {text}\n")
