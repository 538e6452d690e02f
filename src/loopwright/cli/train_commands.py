"""Commands that train: train, resume, launch, verify."""

import os
import shlex
import sys
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loopwright import disk
from loopwright.cli import process_settings
from loopwright.cli.arguments import (
    OptionalSource,
    Overrides,
    Quick,
    RunDirectory,
    TrustedCode,
    code_options,
    load_config,
    run_config,
)
from loopwright.cli.process_settings import SettingsOption, SettingsWord
from loopwright.distribute import cluster, supervisor
from loopwright.errors import ConfigurationError, printable
from loopwright.processes import python
from loopwright.settings import last_step

if TYPE_CHECKING:
    from loopwright.config import schema

EXAMPLES = (
    "Examples: digits, which comes with the package, and examples/*.py of the repository: "
    "loopwright train digits --quick, loopwright train examples/gan.py."
)
_NOT_CONTINUED = (
    *("data", "fit.batch_size", "fit.steps_per_epoch", "fit.validation_split", "quick"),
    *("task", "precision", "strategy", "callbacks"),
)
"""Keys by which the position in the data or the program would no longer fit a checkpoint."""


def train(
    source: OptionalSource = None,
    overrides: Overrides = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Run directory.", show_default="runs/NAME"),
    ] = None,
    origin: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="RUN@STEP",
            help="Train a copy of a run from one of its checkpoints, with its config and the "
            "changes KEY=VALUE, in RUN-stepN or --run-dir. The run itself is not changed.",
        ),
    ] = None,
    task: TrustedCode = None,
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
    build: Annotated[
        bool, typer.Option("--build", hidden=True, help="Build all parts of the run, and exit.")
    ] = False,
    settings: SettingsOption = "auto",
) -> None:
    """Train a task, or what a config names.

    Run the same command again to resume from the last checkpoint.
    """
    _require_option("--rehearse", rehearse, callbacks=callbacks, overfit=overfit)
    _require_option("--from", origin is not None, task=bool(task))
    if origin is not None:
        words = [*([] if source is None else [source]), *(overrides or ())]
        options = {"--quick": quick, "--fresh": fresh, "--show": show, "--rehearse": rehearse}
        unusable = [*(name for name, is_given in options.items() if is_given)]
        unusable += [word for word in words[:1] if "=" not in word]
        if unusable:
            raise ConfigurationError(
                f"{unusable[0]} does not go with --from.",
                expected="loopwright train --from RUN@STEP [KEY=VALUE]",
                received=" ".join(unusable),
                do=f"omit {unusable[0]}: the config is the one of the run",
            )
        _train_copy(origin, words, run_dir, task, settings)
        return
    if source is None:
        raise ConfigurationError(
            "Nothing to train.",
            expected="digits, a program, MODULE:FUNCTION or a YAML file",
            received="no argument",
            do="loopwright train digits; loopwright train --help lists examples",
        )
    config = load_config(source, overrides, run_dir, quick)
    if show:
        from loopwright.config.file import to_yaml

        typer.echo(to_yaml(config), nl=False)
        return
    if build:
        from loopwright.cli import job

        with job.open_job(config) as opened:
            job.fit_arguments(opened)
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
        [*python(), "-m", "loopwright", *command],
        workers=workers,
        restarts=restarts,
        environment=os.environ,
        say=say,
    )
    raise typer.Exit(code)


def verify(
    what: Annotated[
        str,
        typer.Argument(metavar="TASK|CONFIG|RUN", help="What to train, or a run directory."),
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
    from loopwright.cli import verify as trainings
    from loopwright.config.file import FILE

    if Path(what).is_dir():
        config = run_config(Path(what), task)
        words = [str(Path(what) / FILE), f"task={config.task}"]
    else:
        # Examples have a small version; a config or a function of the user's own need not have one.
        is_own = ":" in what or what.endswith((".yaml", ".yml"))
        config = load_config(what, None, None, quick=not is_own)
        words = [what, *([] if is_own else ["quick=true"])]
    if repeat:
        # Training that cannot be resumed exactly is trained all the same: that is the question.
        command = trainings.command_for(*words, "exact=best_effort")
        verdict = trainings.train_twice(what, command, config.code, say=typer.echo)
    else:
        command = trainings.command_for(*words, "fit.save_every=5 steps")
        verdict = trainings.train_and_kill(what, command, kills=kills, seed=seed, say=typer.echo)
    typer.echo(verdict.text)
    if verdict.exit_code:
        raise typer.Exit(verdict.exit_code)


def _train_copy(
    origin: str,
    words: list[str],
    run_dir: Path | None,
    task: list[str] | None,
    settings: SettingsWord,
) -> None:
    """Copy a checkpoint of a run into a new run directory, and train there."""
    from loopwright.checkpoints.store import Store
    from loopwright.config import file
    from loopwright.insight.comparison import config_changes
    from loopwright.run_changes import NAMES, STEP
    from loopwright.runs import is_fork, write_fork

    run, step = _parse_origin(origin)
    target = run.with_name(f"{run.name}-step{step}") if run_dir is None else run_dir
    before = run_config(run, task)
    config = run_config(run, task, words, trains=True)
    checkpoint = Store(run / "checkpoints").at(step)
    changed = config_changes(before, config.model_copy(update={"sinks": []}))
    if refused := [key for key in changed if key.startswith(_NOT_CONTINUED)]:
        raise ConfigurationError(
            "A checkpoint cannot be continued with this change: its position in the data, or its "
            "program, would no longer match.",
            expected="changes of the learning rate, optimizer settings, loss, seed, length, "
            "intervals, plan, keep or export",
            received=", ".join(refused),
            do="leave it out, or start a new run: in a script, Trainer(init_from=RUN) begins with "
            "the weights of a run",
        )
    if checkpoint.ends_leg and not changed.keys() & {"fit.epochs", "fit.until"}:
        raise ConfigurationError(
            "The copy would have nothing left to train.",
            expected=f"a length beyond step {step:,}",
            received=f"the last step of {run}",
            do="pass fit.epochs=N or fit.until='N steps'",
        )
    # The state of the optimizer and of layers is kept, whatever their settings are now.
    accepted = [name for name in NAMES if name != STEP] if changed else config.on_change
    config = config.model_copy(update={"run_dir": str(target), "on_change": accepted})
    changes = [f"{key}: {old} -> {now}" for key, (old, now) in changed.items()]
    source = {"run": str(run), "step": step, "changes": changes}
    workers = cluster.found(os.environ)
    is_chief = workers is None or workers.is_chief
    if is_chief and not is_fork(target, source):
        _require_new(target)
        time = datetime.now(UTC).isoformat(timespec="seconds")
        files = {file.FILE: file.to_yaml(config).encode()}
        write_fork(checkpoint, target, files, {**source, "time": time})
        typer.echo(printable(f"{target}: from {run}, step {step:,}"))
        for change in changes:
            typer.echo(printable(f"  {change}"))
    try:
        _train(config, fresh=False, settings=settings)
    except ConfigurationError:
        # The state does not fit the changed program: the copy has trained nothing.
        if is_chief and last_step(target) == step:
            disk.delete(target.parent, target.name)
        raise


def _parse_origin(text: str) -> tuple[Path, int]:
    name, _, step = text.rpartition("@")
    if not name or not step.isdecimal() or len(step) > 18:
        raise ConfigurationError(
            "--from needs a run and one of its steps.",
            expected="RUN@STEP, for example runs/digits@1200",
            received=text,
            do="loopwright runs RUN lists the steps that have a checkpoint",
        )
    return Path(name), int(step)


def _require_new(target: Path) -> None:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigurationError(
            "The new run directory already exists.",
            expected="a path that does not exist yet",
            received=str(target),
            do="choose a different directory with --run-dir; to continue this run: "
            f"loopwright resume {target}",
        )


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
        raise
    typer.echo("\n" + printable(found.page()))
    if found.overfit is not None and not found.overfit.falls:
        raise typer.Exit(1)


def _require_option(option: str, is_given: bool, **belonging: bool) -> None:
    names = [f"--{name}" for name, value in belonging.items() if value]
    if names and not is_given:
        raise ConfigurationError(
            f"{names[0]} belongs to {option}.",
            expected=f"{option} {names[0]}",
            received=" ".join(names),
            do=f"add {option}, or omit {names[0]}",
        )


def _train(config: "schema.Config", *, fresh: bool, settings: SettingsWord) -> None:
    """Train and print the summary; after an interruption, print the command that resumes."""
    process_settings.prepare(config, settings, fresh=fresh)  # before TensorFlow is imported
    from loopwright.cli import job
    from loopwright.loop.signals import Preempted

    try:
        scores = job.train(config, fresh=fresh, say=lambda text: typer.echo(text, err=True))
    except (KeyboardInterrupt, Preempted):
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
        f"tensorboard --logdir {Path(run).parent}",
    ]
    output = Console(force_terminal=None if is_terminal(sys.stdout) else False)
    show(summary(record, scores, commands), output)


def _how_to_resume(config: "schema.Config") -> str:
    step = last_step(config.directory)
    if not step:
        return "\ninterrupted before the first checkpoint was saved"
    return f"\ninterrupted; saved at step {step}. To resume: {_resume_command(config)}"


def _resume_command(config: "schema.Config", *words: str) -> str:
    """Return the command that resumes a run, with the sinks that it may not name itself."""
    if config.trusted_sinks:
        listed = f"sinks=[{', '.join(config.trusted_sinks)}]"
        # An address with a password is not printed: terminals and logs keep what they show.
        words += ("sinks=..." if "@" in listed else shlex.quote(listed),)
    return " ".join(["loopwright resume", config.directory, *words]) + code_options(config)
