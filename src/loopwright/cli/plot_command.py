"""`loopwright plot`: a figure with the curves of runs, read from their files."""

from pathlib import Path
from typing import Annotated

import typer

from loopwright.errors import ConfigurationError, message, printable

_KINDS = (".png", ".svg", ".pdf")
_MOST_RUNS = 20


def plot(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN [...]", help="Run directories.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="A .png, .svg or .pdf file.")
    ] = Path("curves.png"),
    metric: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Metric to draw; repeatable.", show_default="all"),
    ] = None,
) -> None:
    """Draw the curves of runs: a panel for each metric, training and validation, the best.

    Needs matplotlib: pip install 'loopwright[plot]'. Reads files only, without TensorFlow.
    """
    from loopwright.runs import open as open_run
    from loopwright.sinks import curves, figures
    from loopwright.sinks.report import curves as of_journal

    _require_drawable(runs, output)
    records = dict(zip(_names(runs), map(open_run, runs), strict=True))
    found = {name: of_journal(record.journal) for name, record in records.items()}
    bests = {name: curves.best_of(drawn) for name, drawn in found.items()}
    if metric:
        everywhere = {m: lines for drawn in found.values() for m, lines in drawn.items()}
        wanted = curves.chosen(everywhere, metric)
        found = {
            name: {m: lines for m, lines in drawn.items() if m in wanted}
            for name, drawn in found.items()
        }
    figures.saved(figures.plotted(found, "step", bests), output)
    typer.echo(printable(str(output)))


def _names(runs: list[Path]) -> list[str]:
    """Return a short name for each run: the last parts of its path, as many as tell them apart.

    >>> _names([Path("/runs/a/seed0"), Path("/runs/b/seed0")])
    ['a/seed0', 'b/seed0']
    """
    parts = [path.resolve().parts for path in runs]
    names = list[str]()
    for count in range(1, max(map(len, parts)) + 1):
        names = ["/".join(each[-count:]) for each in parts]
        if len(set(names)) == len(names):
            break
    return names


def _require_drawable(runs: list[Path], output: Path) -> None:
    if output.suffix.lower() not in _KINDS or output.is_dir():
        raise ConfigurationError(
            message(
                "The figure cannot be written there.",
                expected=f"a file that ends in {', '.join(_KINDS[:-1])} or {_KINDS[-1]}",
                received=str(output),
                do="--output curves.png",
            )
        )
    if len({path.resolve() for path in runs}) < len(runs) or len(runs) > _MOST_RUNS:
        raise ConfigurationError(
            message(
                f"plot takes up to {_MOST_RUNS} different runs.",
                expected="each run once",
                received=f"{len(runs)} paths",
                do="leave out what is there twice; `loopwright runs` lists runs",
            )
        )
