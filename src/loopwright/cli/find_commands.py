"""Commands that search: find learning-rate, find batch-size."""

from pathlib import Path
from typing import Annotated, Any

import typer

from loopwright.cli.arguments import Overrides, Quick, Source, load_config

app = typer.Typer(
    help="Find a learning rate or a batch size, by trying them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Figure = Annotated[
    Path | None,
    typer.Option("--figure", metavar="FILE", help="Draw the result: a .png, .pdf or .svg file."),
]


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
    figure: Figure = None,
) -> None:
    """Raise the learning rate at each step, and see where the loss falls fastest.

    Trains in memory until the loss diverges; no run directory is written.
    """

    def found(job: Any, data: dict[str, Any]) -> Any:
        return job.trainer.find_learning_rate(
            **data, start=start, stop=stop, steps=steps, optimizer=optimizer, monitor=monitor
        )

    _find(source, overrides, quick, figure, found, ("batch_size", "class_weight"))


@app.command("batch-size")
def batch_size(
    source: Source,
    overrides: Overrides = None,
    quick: Quick = False,
    sizes: Annotated[
        str | None,
        typer.Option(metavar="N,N,...", help="The sizes to try.", show_default="doubled from 8"),
    ] = None,
    figure: Figure = None,
) -> None:
    """Measure examples per second and memory by batch size.

    Doubles the size until that stops paying or does not fit in memory, in a child process; no run
    directory is written.
    """
    chosen = None if sizes is None else _numbers(sizes)

    def found(job: Any, data: dict[str, Any]) -> Any:
        return job.trainer.find_batch_size(**data, sizes=chosen)

    _find(source, overrides, quick, figure, found, ("class_weight",))


def _find(
    source: str,
    overrides: list[str] | None,
    quick: bool,
    figure: Path | None,
    found: Any,
    names: tuple[str, ...],
) -> None:
    """Print what `found` returns for a config and its data; `names` are arguments of `fit`."""
    config = load_config(source, overrides, None, quick)
    from loopwright.cli import job

    with job.open_job(config) as opened:
        given = job.fit_arguments(opened)
        data = {name: given[name] for name in ("x", "y", "sample_weight", *names) if name in given}
        result = found(opened, data)
    typer.echo(str(result))
    if figure is not None:
        result.plot(figure)
        typer.echo(f"figure: {figure}")


def _numbers(text: str) -> list[int]:
    from loopwright.errors import ConfigurationError, message

    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigurationError(
            message(
                "These are not batch sizes.",
                expected="whole numbers with commas: --sizes 16,32,64",
                received=f"--sizes {text}",
                do="correct --sizes, or omit it",
            )
        ) from None
