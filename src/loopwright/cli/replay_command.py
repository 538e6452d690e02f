"""The command that looks into one step of a run: replay."""

from pathlib import Path
from typing import Annotated

import typer

from loopwright import settings
from loopwright.cli.arguments import RunDirectory, TrustedCode, run_config
from loopwright.errors import ConfigurationError, message, printable
from loopwright.plans import launch


def replay(
    run: RunDirectory,
    step: Annotated[
        int | None,
        typer.Option(
            "--step", metavar="N", help="The step to look into.", show_default="the failed step"
        ),
    ] = None,
    task: TrustedCode = None,
    pdb: Annotated[
        bool,
        typer.Option(
            "--pdb", help="Run the step in the debugger, from the first line of the step."
        ),
    ] = False,
    bundle: Annotated[
        Path | None,
        typer.Option(
            hidden=True, help="Removed: the run directory has all but the batch, which is saved."
        ),
    ] = None,
    batch: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Where to save the batch.", show_default="NAME-step-N.npz"
        ),
    ] = None,
) -> None:
    """Look into one step of a run: batch, layers, gradients, NaN.

    Trains from the checkpoint before the step, by the recorded plans, and compares with the record.
    The run directory is not changed. Exit code 1: the replay differs from the record.
    """
    if bundle is not None:
        raise ConfigurationError(
            message(
                "replay has no --bundle any more.",
                expected="the run directory, with the saved batch beside it",
                received=f"--bundle {bundle}",
                do=f"omit it, and send both: zip -r {bundle} {run} {run.name}-step-*.npz",
            )
        )
    config = run_config(run, task)
    if launch.is_command_line():
        # Before TensorFlow is imported: the steps were run by these.
        at = settings.last_step(run) if step is None else max(0, step - 1)
        launch.apply(settings.recorded(run, at))
    from loopwright.cli import job

    with job.open_job(config) as opened:
        arguments = {**job.fit_arguments(opened), "verbose": 1}
        seen = opened.trainer.replay(step, **arguments, debugger=pdb)
    typer.echo(printable(str(seen)))
    saved = seen.batch.save(batch or Path(f"{run.resolve().name}-step-{seen.step}.npz"))
    typer.echo(f"\nbatch saved to {saved}")
    if seen.matches is False:
        raise typer.Exit(1)
