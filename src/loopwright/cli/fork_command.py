"""`loopwright fork`: a new run that begins with a checkpoint of an old one."""

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loopwright.cli.arguments import Overrides, RunDirectory, TrustedCode, run_config
from loopwright.errors import ConfigurationError, message, printable

if TYPE_CHECKING:
    from loopwright.checkpoints.manifest import Checkpoint
    from loopwright.config.schema import Config

_OF_THE_DATA = ("data", "fit.batch_size", "fit.steps_per_epoch", "fit.validation_split", "quick")
_OF_THE_PROGRAM = ("task", "precision", "strategy", "callbacks")


def fork(
    run: RunDirectory,
    step: Annotated[
        int, typer.Option(metavar="N", help="The step to begin with: one with a checkpoint.", min=0)
    ],
    overrides: Overrides = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The new run directory.", show_default="RUN-stepN"),
    ] = None,
    trains: Annotated[
        bool, typer.Option("--train/--no-train", help="Train at once, or only make the run.")
    ] = True,
    task: TrustedCode = None,
) -> None:
    """Start a new run from a step of an old one, with changed config values.

    The new run has the state, the position in the data, the plans and the curves of the old one up
    to that step; the old run is not touched. Example: loopwright fork runs/digits --step 1200
    optimizer.learning_rate=0.0001 fit.epochs=20
    """
    from loopwright.checkpoints.fork import checkpoint_at, write_fork
    from loopwright.config import file
    from loopwright.insight.comparison import config_changes

    target = run.with_name(f"{run.name}-step{step}") if run_dir is None else run_dir
    before = run_config(run, task)
    config = run_config(run, task, overrides, trains=True)
    found = checkpoint_at(run, step)
    changed = config_changes(before, config.model_copy(update={"sinks": []}))
    _refuse_changes(list(changed))
    _require_new(target)
    config = _checked(config, run, found)
    config = config.model_copy(update={"run_dir": str(target)})
    origin = {
        "run": str(run),
        "step": step,
        "changes": [f"{key}: {old} -> {now}" for key, (old, now) in changed.items()],
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    write_fork(found, target, file.to_yaml(config).encode(), origin, file.FILE)
    typer.echo(printable(f"{target}: forked from {run}, step {step:,}"))
    for change in origin["changes"]:
        typer.echo(printable(f"  {change}"))
    words = ["resume", str(target), *(word for name in task or () for word in ("--task", name))]
    words += [word for word in overrides or () if word.startswith("sinks")]
    if not trains:
        typer.echo(printable(f"to train it: loopwright {' '.join(words)}"))
        return
    _train(words)


def _refuse_changes(keys: list[str]) -> None:
    """Raise for changes that no checkpoint can be continued with."""
    of_data = [key for key in keys if _begins(key, _OF_THE_DATA)]
    of_program = [key for key in keys if _begins(key, _OF_THE_PROGRAM)]
    if of_data or of_program:
        why = "the position in the data would mean another batch" if of_data else "another program"
        raise ConfigurationError(
            message(
                "This change cannot be forked.",
                expected="changes of the learning rate, optimizer settings, loss, seed, length, "
                "intervals, plan, keep or export",
                received=f"{', '.join([*of_data, *of_program])} ({why})",
                do="leave it out, or start a new run: in a script, Trainer(init_from=RUN) begins "
                "with the weights of a run",
            )
        )


def _begins(key: str, names: tuple[str, ...]) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in names)


def _require_new(target: Path) -> None:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigurationError(
            message(
                "The new run directory already exists.",
                expected="a path that does not exist yet",
                received=str(target),
                do="choose a different directory with --run-dir; to continue this run: "
                f"loopwright resume {target}",
            )
        )


def _checked(config: "Config", run: Path, found: "Checkpoint") -> "Config":
    """Return the config with the edits that it has to accept; raise if it does not fit the state.

    Builds the task and its data in memory, as a resumed run would.
    """
    from loopwright.checkpoints.snapshot import parsed
    from loopwright.cli import job
    from loopwright.config.edits import LENGTH, STEP
    from loopwright.fit.request import duration
    from loopwright.fit.resume import entry
    from loopwright.insight.history_state import run_states

    snapshot = parsed(found)
    trial = config.model_copy(update={"run_dir": str(run), "callbacks": [], "plan": "auto"})
    with job.open_job(trial) as opened:
        fit = opened.config.fit
        until = duration(fit.epochs or 1, fit.until)
        if entry(snapshot.leg, until, snapshot.reached) != "resume":
            raise ConfigurationError(
                message(
                    "The fork would have nothing left to train.",
                    expected=f"a length beyond step {found.step:,}",
                    received=f"until {until}, and a checkpoint at epoch {snapshot.place.epoch}",
                    do="pass fit.epochs=N or fit.until='N steps'",
                )
            )
        with run_states(opened.trainer, **job.fit_arguments(opened)) as states:
            edits, objection = states.edits(found.step), states.objection(found.step)
    names = list(dict.fromkeys(edit.name for edit in edits))
    if objection is not None or LENGTH in names:
        first, *rest = (objection or f"{LENGTH} differs").splitlines()
        received = [line.strip() for line in rest if not line.strip().startswith("do:")]
        raise ConfigurationError(
            message(
                "This change cannot be forked: the checkpoint does not fit the new program.",
                expected="the model, the optimizer's variables and the data of the old run",
                received=" ".join([first, *received])[:600],
                do="leave the change out, or start a new run: in a script, "
                "Trainer(init_from=RUN) begins with the weights that match",
            )
        )
    accepted = [name for name in names if name != STEP]
    return config.model_copy(update={"on_change": accepted}) if accepted else config


def _train(words: list[str]) -> None:
    """Train in a process of its own, which has the settings that the old run has recorded."""
    from loopwright.distribute.supervisor import python
    from loopwright.plans import launch

    command = [*python(), "-m", "loopwright", *words]
    sys.stdout.flush()
    sys.stderr.flush()
    environment = launch.unmarked(os.environ)
    if launch.is_command_line():
        os.execve(command[0], command, environment)
    code = subprocess.run(command, env=environment, check=False).returncode
    if code:
        raise typer.Exit(code)
