"""The `loopwright` program: its commands, warnings, errors and exit codes.

Exit codes: 0 done, also when stopped early; 1 the training failed; 2 usage error; 3 NaN; 130
Ctrl-C and 143 SIGTERM, both after the run was saved; 193 lost another worker, restart all of them.
"""

import os
import sys
import warnings
from collections.abc import Callable

import typer

from loopwright.cli import (
    compare_command,
    find_commands,
    look_commands,
    new_command,
    process_settings,
    replay_command,
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
app.command("train", epilog=train_commands.EXAMPLES)(train_commands.train)
app.command("resume")(train_commands.resume)
app.command(
    "run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)(process_settings.run)
app.command("launch")(train_commands.launch)
app.command("verify")(train_commands.verify)
app.command("evaluate")(use_commands.evaluate)
app.command("predict")(use_commands.predict)
app.command("export")(use_commands.export)
app.command("runs")(look_commands.runs)
app.command("report")(look_commands.report)
app.command("compare")(compare_command.compare)
app.command("replay")(replay_command.replay)
app.add_typer(find_commands.app, name="find")
app.command("profile")(find_commands.profile)
app.command("tune")(tune_command.tune)
app.command("doctor")(look_commands.doctor)

_REMOVED = {
    "schedule": "loopwright train SOURCE --rehearse prints the schedule, and tries every part",
    "fork": "loopwright train --from RUN@STEP [KEY=VALUE] trains a copy of the run from that step",
    "inspect": "loopwright runs RUN shows the checkpoints, plans and variables of a run",
    "plans": "loopwright runs RUN shows the plans of a run and why; loopwright doctor "
    "--forget-plans forgets what this machine remembers",
    "sync": "start the run's command again, or loopwright resume RUN: what a tracker misses is "
    "sent at a start",
    "plot": "loopwright report RUN and loopwright compare RUN RUN write pages with the curves; in "
    "Python, history.plot(path=FILE) draws them",
    "board": "tensorboard --logdir DIR",
    "recipes": "loopwright train --help lists them",
    "schema": "the schema is the file docs/config.schema.json",
    "find batch-size": "if a step runs out of memory, fit names the tensor that did not fit: halve "
    "batch_size; loopwright profile shows examples per second",
}
"""What to use instead of a removed command: each answers with it, whatever its arguments."""


def _answer(name: str, instead: str) -> Callable[[], None]:
    def answer() -> None:
        raise ConfigurationError(f"{name} was removed: {instead}")

    return answer


for _name, _instead in _REMOVED.items():
    _group = find_commands.app if _name.startswith("find ") else app
    _group.command(
        _name.rpartition(" ")[2],
        hidden=True,
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )(_answer(_name, _instead))


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
