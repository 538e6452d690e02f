"""Commands that only look: recipes, runs, inspect, report, schema, board, doctor."""

import json
import os
import platform
import subprocess
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loopwright import __version__, recipes
from loopwright.cli.arguments import RunDirectory
from loopwright.errors import ConfigurationError, message, printable
from loopwright.exactness import Inexact

if TYPE_CHECKING:
    from loopwright.cli.run_overview import Row

_PARTS = (
    *("tensorflow", "keras", "numpy", "jinja2", "pydantic", "pyyaml", "rich", "tensorboard"),
    "typer",
)
_OPTIONAL = {"sklearn": "scikit-learn", "matplotlib": "matplotlib"}


def list_recipes() -> None:
    """Lists the recipes."""
    titles = recipes.titles()
    width = max(map(len, titles))
    for name, title in titles.items():
        typer.echo(f"{name:{width}}  {title}")


def runs(
    directory: Annotated[Path, typer.Argument(metavar="[DIR]", help="Where runs lie.")] = Path(
        "runs"
    ),
    sort: Annotated[str, typer.Option(help="when, name, status, step, best or duration.")] = "when",
    metric: Annotated[
        str | None, typer.Option(help="What is best by; the run's own KeepBest if left out.")
    ] = None,
    mode: Annotated[
        str,
        typer.Option(help="min or max: which values of --metric are better; auto: by its name."),
    ] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Lists the runs in a directory: status, step, best score, duration, when."""
    from loopwright.cli import run_overview

    _require_directory(directory)
    if sort not in run_overview.SORT_KEYS:
        raise ConfigurationError(
            message(
                "Runs cannot be sorted by this.",
                expected=" or ".join(run_overview.SORT_KEYS),
                received=repr(sort),
                do="choose one of these, or leave --sort out",
            )
        )
    if mode not in ("auto", "min", "max") or (mode != "auto" and metric is None):
        raise ConfigurationError(
            message(
                "This mode cannot be used.",
                expected="--metric NAME --mode min, or max",
                received=f"--mode {mode}" + ("" if metric is None else f" --metric {metric}"),
                do="name the metric as well, or leave --mode out",
            )
        )
    rows = run_overview.rows(directory, metric, mode, sort=sort)
    if as_json:
        plain = [{**vars(row), "path": str(row.path)} for row in rows]
        typer.echo(json.dumps(plain, indent=2))
        return
    if not rows:
        typer.echo(f"no runs in {directory}")
        return
    _print_table(
        ("run", "status", "step", "best", "duration", "when"),
        [
            (
                str(row.path),
                row.status,
                "" if row.step is None else f"{row.step:,}",
                "" if row.best is None else _best(row),
                "" if row.seconds is None else str(timedelta(seconds=round(row.seconds))),
                datetime.fromtimestamp(row.changed).strftime("%Y-%m-%d %H:%M"),
            )
            for row in rows
        ],
    )


def _best(row: "Row") -> str:
    return f"{row.metric} {row.best:.4g} at step {row.best_step:,}"


def inspect(
    run: RunDirectory,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Shows what lies in a run: checkpoints, checksums, sizes, every variable of its state."""
    from loopwright.checkpoints.inspection import inspected

    _require_directory(run)
    found = inspected(run)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    _print_table(
        ("step", "epoch", "bytes", "scores", "state"),
        [
            (
                f"{one['step']:,}",
                str(one["epoch"]),
                f"{one['bytes']:,}",
                " ".join(f"{name} {_short(value)}" for name, value in one["scores"].items()),
                one["damage"] or "whole",
            )
            for one in found["checkpoints"]
        ],
    )
    files = [
        (f"{one['step']:,}", name, f"{file['bytes']:,}", file["sha256"][:16])
        for one in found["checkpoints"]
        for name, file in one["files"].items()
    ]
    _print_table(("step", "file", "bytes", "sha256 begins"), files)
    variables = [
        (
            row["name"],
            row["dtype"],
            "?" if row["shape"] is None else "x".join(map(str, row["shape"])) or "single",
            "?" if row["bytes"] is None else f"{row['bytes']:,}",
        )
        for row in found["variables"]
    ]
    _print_table(("variable", "dtype", "shape", "bytes"), variables)
    known = sum(row["bytes"] or 0 for row in found["variables"])
    typer.echo(f"{len(variables)} variables, {known:,} bytes")
    if found["not_exactly_resumable"]:
        typer.echo(printable(str(Inexact(tuple(found["not_exactly_resumable"])))))


def report(run: RunDirectory) -> None:
    """Writes report.html of a run: curves, plan, time, config, environment in one page."""
    from loopwright.sinks.report import write_report

    _require_directory(run)
    typer.echo(write_report(run))


def schema() -> None:
    """Prints the JSON schema of configs, for editors."""
    from loopwright.config.schema import Config

    typer.echo(json.dumps(Config.model_json_schema(), indent=2))


def board(
    directory: Annotated[Path, typer.Argument(metavar="[DIR]", help="Where runs lie.")] = Path(
        "runs"
    ),
    port: Annotated[int, typer.Option(help="On this machine only.", min=1, max=65535)] = 6006,
) -> None:
    """Starts TensorBoard on the runs in a directory, for this machine only."""
    from loopwright.cli import run_overview
    from loopwright.distribute.supervisor import python

    _require_directory(directory)
    run_overview.refuse_linked_boards(directory)
    command = [*python(), "-m", "tensorboard.main", "--logdir", str(directory)]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    typer.echo(f"http://127.0.0.1:{port}/ - Ctrl-C ends it")
    with subprocess.Popen(command) as process:
        try:
            code = process.wait()
        except KeyboardInterrupt:
            process.terminate()
            code = 0
    raise typer.Exit(min(abs(code), 1))


def doctor() -> None:
    """Tells what is installed, which devices there are, and what is missing."""
    from importlib import util

    typer.echo(
        f"python        {platform.python_version()} on {platform.system()} {platform.machine()}"
    )
    missing = list[str]()
    typer.echo(f"loopwright    {__version__}")
    for part in _PARTS:
        version = _version(part)
        typer.echo(f"{part:13} {version or 'MISSING'}")
        if version is None:
            missing.append(part)
    for module, part in _OPTIONAL.items():
        is_there = util.find_spec(module) is not None
        typer.echo(f"{part:13} {_version(part) if is_there else 'not installed; recipes use it'}")
    if missing:
        typer.echo(f"missing: {', '.join(missing)}; pip install loopwright brings them")
        raise typer.Exit(1)
    from loopwright.compat.environment import environment

    for name, value in environment().items():
        if name not in _PARTS and value is not None:
            typer.echo(f"{name:18} {', '.join(value) if isinstance(value, list) else value}")
    for name in ("KERAS_BACKEND", "CUDA_VISIBLE_DEVICES", "LOOPWRIGHT_CACHE_DIR"):
        if name in os.environ:
            typer.echo(f"{name:18} {os.environ[name]}")
    if os.environ.get("KERAS_BACKEND", "tensorflow") != "tensorflow":
        typer.echo("wrong: Loopwright trains with KERAS_BACKEND=tensorflow")
        raise typer.Exit(1)


def _version(part: str) -> str | None:
    from importlib import metadata  # it takes its time, and --help has none

    try:
        return metadata.version(part)
    except metadata.PackageNotFoundError:
        return None


def _require_directory(directory: Path) -> None:
    if not directory.is_dir():
        raise ConfigurationError(
            message(
                "There is no such directory.",
                expected="a directory with runs",
                received=str(directory),
                do="check the path, or train something first: loopwright train digits --quick",
            )
        )


def _print_table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """Plain columns, as wide as they need to be: for eyes and for awk."""
    rows = [tuple(map(printable, row)) for row in rows]
    widths = [max(len(row[at]) for row in [head, *rows]) for at in range(len(head))]
    for row in [head, *rows]:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        typer.echo("  ".join(cells).rstrip())
    typer.echo()


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
