"""The command that looks into one step of a run: replay."""

from pathlib import Path
from typing import Annotated

import typer

from loopwright import launch, settings
from loopwright.cli.arguments import RunDirectory, TrustedCode, run_config
from loopwright.errors import printable


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
    config = run_config(run, task)
    if launch.is_command_line():
        # Before TensorFlow is imported: the steps were run by these.
        launch.apply(settings.recorded(run, step or settings.last_step(run) + 1))
    from loopwright.cli import job

    with job.open_job(config) as opened:
        arguments = {**job.fit_arguments(opened), "verbose": 1}
        seen = opened.trainer.replay(step, **arguments, debugger=pdb)
    typer.echo(printable(str(seen)))
    saved = seen.batch.save(batch or Path(f"{run.resolve().name}-step-{seen.step}.npz"))
    typer.echo(f"\nbatch saved to {saved}")
    if seen.matches is False:
        raise typer.Exit(1)
