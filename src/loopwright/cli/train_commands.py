"""Commands that train: train, resume, launch, schedule, verify."""

import os
import shlex
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loopwright.cli import process_settings
from loopwright.cli.arguments import (
    Overrides,
    Quick,
    RunDirectory,
    Source,
    TrustedCode,
    code_options,
    load_config,
    run_config,
)
from loopwright.cli.process_settings import SettingsOption, SettingsWord
from loopwright.distribute import cluster, supervisor
from loopwright.errors import ConfigurationError, message, printable

if TYPE_CHECKING:
    from loopwright.config import schema

_MOST_STOPS = 40
_EXIT_INTERRUPTED = 130


def train(
    source: Source,
    overrides: Overrides = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Run directory.", show_default="runs/NAME"),
    ] = None,
    quick: Quick = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over; a previous run is moved, not deleted.")
    ] = False,
    show: Annotated[
        bool, typer.Option("--show", help="Print the resulting config and exit.")
    ] = False,
    rehearse: Annotated[
        bool,
        typer.Option(
            "--rehearse",
            help="Try every part of the run once, print what it will take, and leave no trace.",
        ),
    ] = False,
    callbacks: Annotated[
        bool,
        typer.Option(
            "--callbacks", help="With --rehearse: call the callbacks too; their effects stay."
        ),
    ] = False,
    overfit: Annotated[
        bool,
        typer.Option(
            "--overfit",
            help="With --rehearse: train a copy on one batch; exit code 1 if its loss stays.",
        ),
    ] = False,
    settings: SettingsOption = "auto",
) -> None:
    """Train a task or a config: digits, a file such as examples/gan.py, or your own function.

    Run the same command again to resume from the last checkpoint.
    """
    _require_rehearsal(rehearse, callbacks=callbacks, overfit=overfit)
    config = load_config(source, overrides, run_dir, quick)
    if show:
        from loopwright.config.file import to_yaml

        typer.echo(to_yaml(config), nl=False)
        return
    if rehearse:
        _rehearse(config, fresh=fresh, settings=settings, callbacks=callbacks, overfit=overfit)
        return
    _train(config, fresh=fresh, settings=settings)


def resume(
    run: RunDirectory,
    overrides: Overrides = None,
    task: TrustedCode = None,
    settings: SettingsOption = "auto",
) -> None:
    """Resume a run from its last checkpoint.

    To train a complete run for longer, pass more epochs: fit.epochs=30.
    """
    _train(run_config(run, task, overrides, trains=True), fresh=False, settings=settings)


def launch(
    command: Annotated[
        list[str],
        typer.Argument(metavar="COMMAND", help="A loopwright command, for example train digits."),
    ],
    workers: Annotated[
        int, typer.Option(metavar="N", help="Number of worker processes.", min=1)
    ] = 2,
    restarts: Annotated[
        int,
        typer.Option(metavar="N", help="Restart all workers up to N times if one fails.", min=0),
    ] = 0,
) -> None:
    """Train with several worker processes on this machine.

    Example: loopwright launch --workers 2 -- train digits
    """
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


def schedule(
    source: Source,
    overrides: Overrides = None,
    quick: Quick = False,
    every_stop: Annotated[
        bool, typer.Option("--all", help=f"List every stop, not only the first {_MOST_STOPS - 1}.")
    ] = False,
) -> None:
    """Show when a run will validate, save and end."""
    from loopwright.cli import job

    config = load_config(source, overrides, None, quick)
    with job.open_job(config) as opened:
        planned = job.schedule_of(opened)
    intervals = {"validate": planned.validate_every, "save": planned.save_every}
    length = planned.steps_per_epoch or "an unknown number of"
    typer.echo(f"until {planned.until}, {length} steps per epoch")
    for what, interval in intervals.items():
        typer.echo(
            f"{what}: {'never' if interval is None else f'every {interval}, and at the end'}"
        )
    best = [keep.best for keep in config.keep if keep.best]
    if best and planned.validate_every is not None:
        typer.echo(f"save also: after each validation with the best {', '.join(best)} so far")
    if planned.total_steps is None:
        typer.echo("the number of steps is known only while the run trains")
        return
    stops = list(planned.stops())
    shown = (
        stops
        if every_stop or len(stops) <= _MOST_STOPS
        else [*stops[:-1][: _MOST_STOPS - 1], stops[-1]]
    )
    typer.echo(f"{len(stops)} stops in {stops[-1].step} steps:")
    for stop in shown:
        if stop is stops[-1] and len(shown) < len(stops):
            typer.echo(f"  ... {len(stops) - len(shown)} more; --all lists them")
        words = {
            "validate": stop.validate,
            "save": stop.save,
            "end of epoch": stop.ends_epoch,
            "end": stop.ends_run,
        }
        typer.echo(f"  {stop.step:>9}  " + ", ".join(word for word, due in words.items() if due))


def verify(
    what: Annotated[
        str,
        typer.Argument(metavar="TASK|RUN", help="A task, trained quickly, or a run directory."),
    ],
    kills: Annotated[
        int, typer.Option(metavar="N", help="Kill the second training N times.", min=1)
    ] = 3,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed for the moments of the kills.")] = 0,
    repeat: Annotated[
        bool,
        typer.Option(
            "--repeat", help="Train twice without kills, and say what makes the two differ."
        ),
    ] = False,
    task: TrustedCode = None,
) -> None:
    """Prove exact resume: train with random kills, compare bits.

    Trains once undisturbed and once with random kills and restarts, and compares the two final
    checkpoints byte by byte. Exit code 0: identical, 1: different, 4: not exactly resumable.

    With --repeat, trains twice from the beginning; the second training follows the plans of the
    first. Exit code 0: the program repeats itself, 1: it does not, and the cause is printed.
    """
    from loopwright.cli import kill_test, repeat_test
    from loopwright.config.file import FILE

    if Path(what).is_dir():
        config = run_config(Path(what), task)
        words = [str(Path(what) / FILE), f"task={config.task}"]
    else:
        config = load_config(what, None, None, quick=True)
        words = [what, "quick=true"]
    if repeat:
        # Training that cannot be resumed exactly is trained all the same: that is the question.
        command = kill_test.command(*words, "exact=best_effort")
        found = repeat_test.repeated(what, command, config.code, say=typer.echo)
        typer.echo(str(found))
        if not found.is_same:
            raise typer.Exit(1)
        return
    command = kill_test.command(*words, "fit.save_every=5 steps")
    verdict = kill_test.verify(what, command, kills=kills, seed=seed, say=typer.echo)
    typer.echo(str(verdict))
    if verdict.exit_code:
        raise typer.Exit(verdict.exit_code)


def _rehearse(
    config: "schema.Config", *, fresh: bool, settings: SettingsWord, callbacks: bool, overfit: bool
) -> None:
    """Rehearse a training and print its page; after an interruption, say that nothing changed."""
    # Before TensorFlow is imported.
    process_settings.prepare(config, settings, fresh=fresh, may_measure=False)
    from loopwright.cli import job

    typer.echo(f"rehearsing {config.title}: nothing is kept\n")
    try:
        found = job.rehearse(
            config, fresh=fresh, callbacks=callbacks, overfit="1 batch" if overfit else None
        )
    except KeyboardInterrupt:
        typer.echo("\nrehearsal interrupted; nothing was written", err=True)
        raise typer.Exit(_EXIT_INTERRUPTED) from None
    typer.echo("\n" + printable(found.page()))
    if found.overfit is not None and not found.overfit.falls:
        raise typer.Exit(1)


def _require_rehearsal(is_asked: bool, **options: bool) -> None:
    given = [f"--{name}" for name, value in options.items() if value]
    if given and not is_asked:
        raise ConfigurationError(
            message(
                f"{given[0]} belongs to a rehearsal.",
                expected=f"--rehearse {given[0]}",
                received=" ".join(given),
                do=f"add --rehearse, or omit {given[0]}",
            )
        )


def _train(config: "schema.Config", *, fresh: bool, settings: SettingsWord) -> None:
    """Train and print the summary; after an interruption, print the command that resumes."""
    process_settings.prepare(config, settings, fresh=fresh)  # before TensorFlow is imported
    from loopwright.cli import job
    from loopwright.loop.signals import Preempted

    try:
        scores = job.train(config, fresh=fresh, say=lambda text: typer.echo(text, err=True))
    except KeyboardInterrupt:
        typer.echo(_how_to_resume(config), err=True)
        raise typer.Exit(_EXIT_INTERRUPTED) from None
    except Preempted:
        typer.echo(_how_to_resume(config), err=True)
        raise
    workers = cluster.found(os.environ)
    if config.fit.verbose != 0 and (workers is None or workers.is_chief):
        _print_summary(config, scores)


def _print_summary(config: "schema.Config", scores: "Mapping[str, Any]") -> None:
    from rich.console import Console

    from loopwright import runs
    from loopwright.cli.run_overview import show, summary
    from loopwright.config.file import saved_in
    from loopwright.sinks.terminal import is_terminal

    run, task = config.directory, code_options(config)
    epochs = (saved_in(Path(run)) or config).fit.epochs
    more = f"fit.epochs={2 * epochs}" if epochs else "fit.until=..."
    record = runs.open(Path(run))
    use = "evaluate" if record.best is not None else "export"
    checkpoint = "best" if use == "evaluate" else "last"
    commands = [
        f"loopwright {use} {run} --checkpoint {checkpoint}{task}",
        _resume_command(config, more),
        f"loopwright board {Path(run).parent}",
    ]
    output = Console(force_terminal=None if is_terminal(sys.stdout) else False)
    show(summary(record, scores, commands), output)


def _how_to_resume(config: "schema.Config") -> str:
    from loopwright.checkpoints.store import Store

    found = Store(Path(config.directory) / "checkpoints").all()
    if not found:
        return "\ninterrupted before the first checkpoint was saved"
    return f"\ninterrupted; saved at step {found[-1].step}. To resume: {_resume_command(config)}"


def _resume_command(config: "schema.Config", *words: str) -> str:
    """Return the command that resumes a run, with the sinks that it may not name itself."""
    if config.trusted_sinks:
        listed = f"sinks=[{', '.join(config.trusted_sinks)}]"
        # An address with a password is not printed: terminals and logs keep what they show.
        words += ("sinks=..." if "@" in listed else shlex.quote(listed),)
    return " ".join(["loopwright resume", config.directory, *words]) + code_options(config)
