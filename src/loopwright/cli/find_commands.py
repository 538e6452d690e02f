"""Commands that measure: find learning-rate, find settings, profile."""

from pathlib import Path
from typing import Annotated

import typer

from loopwright.cli import process_settings
from loopwright.cli.arguments import Overrides, Quick, Source, load_config

app = typer.Typer(
    help="Find a learning rate, or the fastest process settings.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("learning-rate")
def learning_rate(
    source: Source,
    overrides: Overrides = None,
    quick: Quick = False,
    start: Annotated[float, typer.Option(metavar="RATE", help="The lowest rate.")] = 1e-7,
    stop: Annotated[float, typer.Option(metavar="RATE", help="The highest rate.")] = 10.0,
    steps: Annotated[int, typer.Option(metavar="N", help="Number of steps.")] = 200,
    optimizer: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The optimizer whose rate is changed.",
            show_default="all together",
        ),
    ] = None,
    monitor: Annotated[
        str, typer.Option(metavar="NAME", help="The number that is watched.")
    ] = "loss",
    figure: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw the result: a .png, .pdf or .svg file."),
    ] = None,
) -> None:
    """Raise the learning rate at each step, and see where the loss falls fastest.

    Trains in memory until the loss diverges; no run directory is written.
    """
    config = load_config(source, overrides, None, quick)
    from loopwright.cli import job

    with job.open_job(config) as opened:
        given = job.fit_arguments(opened)
        names = ("x", "y", "sample_weight", "batch_size", "class_weight")
        result = opened.trainer.find_learning_rate(
            **{name: given[name] for name in names if name in given},
            start=start,
            stop=stop,
            steps=steps,
            optimizer=optimizer,
            monitor=monitor,
        )
    typer.echo(str(result))
    if figure is not None:
        result.plot(figure)
        typer.echo(f"figure: {figure}")


app.command(
    "settings", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)(process_settings.find_settings)


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
    """Show which operations and data stages take the time of a step.

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
