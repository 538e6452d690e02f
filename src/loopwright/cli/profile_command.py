"""The command `profile`: why a step is slow."""

from pathlib import Path
from typing import Annotated

import typer

from loopwright.cli.arguments import Overrides, Quick, Source, load_config


def profile(
    source: Source,
    overrides: Overrides = None,
    quick: Quick = False,
    steps: Annotated[int, typer.Option(metavar="N", help="Number of steps to profile.")] = 50,
    directory: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Keep the profile here, for TensorBoard.", show_default="not kept"
        ),
    ] = None,
) -> None:
    """Show which operations and which stage of the data take the time of a step.

    Profiles some steps in memory; no run directory is written.
    """
    config = load_config(source, overrides, None, quick)
    from loopwright.cli import job

    with job.open_job(config) as opened:
        given = job.fit_arguments(opened)
        names = ("x", "y", "sample_weight", "batch_size", "class_weight", "shuffle")
        data = {name: given[name] for name in names if name in given}
        found = opened.trainer.profile(**data, steps=steps, directory=directory)
    typer.echo(str(found))
