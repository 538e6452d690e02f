"""The `loopwright` program: its commands, warnings, errors and exit codes.

Exit codes: 0 done, also when stopped early; 1 the training failed; 2 usage error; 3 NaN; 130
Ctrl-C and 143 SIGTERM, both after the run was saved; 193 lost another worker, restart all of them.
"""

import os
import sys
import warnings

import typer

from loopwright.cli import (
    compare_command,
    find_commands,
    fork_command,
    look_commands,
    memory_commands,
    new_command,
    plot_command,
    profile_command,
    replay_command,
    run_command,
    train_commands,
    tune_command,
    use_commands,
)
from loopwright.errors import (
    EXIT_WORKER_LOST,
    ConfigurationError,
    LoopwrightError,
    NotFiniteError,
    WorkerLostError,
    printable,
)

_ABOUT = "You write the training step; Loopwright runs the loop around it."
_EPILOG = (
    "Exit codes: 0 success, 1 training failed, 2 usage error, 3 NaN or infinity, 4 verify: not "
    "exactly resumable, 130 Ctrl-C, 143 SIGTERM, 193 lost another worker."
)

app = typer.Typer(
    help=_ABOUT,
    epilog=_EPILOG,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("new")(new_command.new)
app.command("train")(train_commands.train)
app.command("resume")(train_commands.resume)
app.command("fork")(fork_command.fork)
app.command("launch")(train_commands.launch)
app.command(
    "run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)(run_command.run)
app.command("schedule")(train_commands.schedule)
app.command("verify")(train_commands.verify)
app.command("replay")(replay_command.replay)
app.add_typer(find_commands.app, name="find")
app.command("tune")(tune_command.tune)
app.command("profile")(profile_command.profile)
app.command("evaluate")(use_commands.evaluate)
app.command("predict")(use_commands.predict)
app.command("export")(use_commands.export)
app.command("runs")(look_commands.runs)
app.command("inspect")(look_commands.inspect)
app.command("report")(look_commands.report)
app.command("plot")(plot_command.plot)
app.command("compare")(compare_command.compare)
app.command("board")(look_commands.board)
app.command("plans")(memory_commands.plans)
app.command("recipes")(look_commands.list_recipes)
app.command("schema")(look_commands.schema)
app.command("doctor")(look_commands.doctor)


def main() -> None:
    """Run the command line; print errors of Loopwright as text, without a traceback."""
    # Read when TensorFlow is imported: hide its notices, show its warnings. A value the user has
    # set wins.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    warnings.formatwarning = _format_warning
    try:
        app()
    except WorkerLostError:
        # Already reported. TensorFlow's own shutdown would wait for the lost workers.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(EXIT_WORKER_LOST)
    except LoopwrightError as error:
        typer.echo(printable(f"error: {error}"), err=True)
        raise SystemExit(exit_code(error)) from None


def exit_code(error: LoopwrightError) -> int:
    """Return the exit code of an error: it says whether a retry can help.

    >>> exit_code(ConfigurationError("")), exit_code(NotFiniteError("", step=1))
    (2, 3)
    """
    if isinstance(error, NotFiniteError):
        return 3
    return 2 if isinstance(error, ConfigurationError) else 1


def _format_warning(text: Warning | str, *_: object, **__: object) -> str:
    return printable(f"warning: {text}\n")
