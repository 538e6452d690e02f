"""Commands that only read: recipes, runs, inspect, report, schema, board, doctor."""

import json
import os
import platform
import subprocess
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loopwright import __version__, recipes
from loopwright.cli.arguments import AsJson, RunDirectory, RunsDirectory
from loopwright.errors import ConfigurationError, message, printable
from loopwright.exactness import Inexact
from loopwright.extras import install_command, is_installed

if TYPE_CHECKING:
    from loopwright.cli.run_overview import Row

_PARTS = (
    *("tensorflow", "keras", "numpy", "jinja2", "pydantic", "pyyaml", "rich", "tensorboard"),
    "typer",
)
_OPTIONAL = {
    "sklearn": ("scikit-learn", "recipes"),
    "matplotlib": ("matplotlib", "plot"),
    "albumentations": ("albumentations", "augment"),
    "ai_edge_litert": ("ai-edge-litert", "litert"),
    "onnxruntime": ("onnxruntime", "onnx"),
    "tf2onnx": ("tf2onnx", "onnx"),
    "mlflow": ("mlflow-skinny", "mlflow"),
    "wandb": ("wandb", "wandb"),
    "optuna": ("optuna", "tune"),
}
"""By module: the package, and the extra that installs it."""


def list_recipes() -> None:
    """List the recipes that ship with Loopwright."""
    titles = recipes.titles()
    width = max(map(len, titles))
    for name, title in titles.items():
        typer.echo(f"{name:{width}}  {title}")


def runs(
    directory: RunsDirectory = Path("runs"),
    sort: Annotated[
        str,
        typer.Option(metavar="KEY", help="Sort by when, name, status, step, best or duration."),
    ] = "when",
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Metric that decides the best checkpoint.",
            show_default="KeepBest of the run",
        ),
    ] = None,
    mode: Annotated[
        str,
        typer.Option(
            metavar="MODE", help="min or max: which values of --metric are better; auto: by name."
        ),
    ] = "auto",
    as_json: AsJson = False,
) -> None:
    """List runs: status, step, best score, duration, last change."""
    from loopwright.cli import run_overview

    _require_directory(directory)
    if sort not in run_overview.SORT_KEYS:
        raise ConfigurationError(
            message(
                "Unknown sort key.",
                expected=" or ".join(run_overview.SORT_KEYS),
                received=repr(sort),
                do="choose one of these, or omit --sort",
            )
        )
    if mode not in ("auto", "min", "max") or (mode != "auto" and metric is None):
        raise ConfigurationError(
            message(
                "Invalid --mode.",
                expected="--metric NAME --mode min, or max",
                received=f"--mode {mode}" + ("" if metric is None else f" --metric {metric}"),
                do="pass --metric as well, or omit --mode",
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
    is_forked = any(row.origin for row in rows)
    _print_table(
        ("run", "status", "step", "best", "duration", "when", *(["forked from"] * is_forked)),
        [
            (
                str(row.path),
                row.status,
                "" if row.step is None else f"{row.step:,}",
                "" if row.best is None else _best(row),
                "" if row.seconds is None else str(timedelta(seconds=round(row.seconds))),
                datetime.fromtimestamp(row.changed).strftime("%Y-%m-%d %H:%M"),
                *([row.origin] * is_forked),
            )
            for row in rows
        ],
    )


def _best(row: "Row") -> str:
    return f"{row.metric} {row.best:.4g} at step {row.best_step:,}"


def inspect(
    run: RunDirectory,
    as_json: AsJson = False,
) -> None:
    """List the checkpoints, files and variables of a run.

    Verifies the checksum of every file.
    """
    from loopwright.checkpoints.inspection import inspected
    from loopwright.sinks.record import origin_of

    _require_directory(run)
    origin = origin_of(run, changes=True)
    found = inspected(run)
    if origin:
        found["forked_from"] = origin
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    if origin:
        typer.echo(f"forked from {origin}\n")
    _print_table(
        ("step", "epoch", "bytes", "scores", "state"),
        [
            (
                f"{one['step']:,}",
                str(one["epoch"]),
                f"{one['bytes']:,}",
                " ".join(f"{name} {_short(value)}" for name, value in one["scores"].items()),
                one["damage"] or "valid",
            )
            for one in found["checkpoints"]
        ],
    )
    files = [
        (f"{one['step']:,}", name, f"{file['bytes']:,}", file["sha256"][:16])
        for one in found["checkpoints"]
        for name, file in one["files"].items()
    ]
    _print_table(("step", "file", "bytes", "sha256 prefix"), files)
    variables = [
        (
            row["name"],
            row["dtype"],
            "?" if row["shape"] is None else "x".join(map(str, row["shape"])) or "scalar",
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
    """Write report.html: curves, plan, timing, config, environment."""
    from loopwright.sinks.report import write_report

    _require_directory(run)
    typer.echo(write_report(run))


def schema() -> None:
    """Print the JSON schema of configs, for editors."""
    from loopwright.config.schema import Config

    typer.echo(json.dumps(Config.model_json_schema(), indent=2))


def board(
    directory: RunsDirectory = Path("runs"),
    port: Annotated[
        int, typer.Option(metavar="PORT", help="Port on 127.0.0.1.", min=1, max=65535)
    ] = 6006,
) -> None:
    """Start TensorBoard for the runs in a directory.

    It listens on 127.0.0.1 only.
    """
    from loopwright.cli import run_overview
    from loopwright.distribute.supervisor import python

    _require_directory(directory)
    run_overview.refuse_linked_boards(directory)
    command = [*python(), "-m", "tensorboard.main", "--logdir", str(directory)]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    typer.echo(f"http://127.0.0.1:{port}/ - press Ctrl-C to stop")
    with subprocess.Popen(command) as process:
        try:
            code = process.wait()
        except KeyboardInterrupt:
            process.terminate()
            code = 0
    raise typer.Exit(min(abs(code), 1))


def doctor() -> None:
    """Check the installation: versions, devices, missing extras."""
    typer.echo(
        f"python         {platform.python_version()} on {platform.system()} {platform.machine()}"
    )
    missing = list[str]()
    typer.echo(f"loopwright     {__version__}")
    for part in _PARTS:
        version = _version(part)
        typer.echo(f"{part:14} {version or 'MISSING'}")
        if version is None:
            missing.append(part)
    for module, (part, extra) in _OPTIONAL.items():
        found = _version(part) if is_installed(module) else None
        how = f"not installed: {install_command(extra)}"
        typer.echo(f"{part:14} {found or how}")
    if missing:
        typer.echo(f"missing: {', '.join(missing)}; run: pip install loopwright")
        raise typer.Exit(1)
    from loopwright.compat.environment import environment
    from loopwright.engine import xla_cache

    for name, value in environment().items():
        if name not in _PARTS and value is not None:
            typer.echo(f"{name:18} {', '.join(value) if isinstance(value, list) else value}")
    for name in ("KERAS_BACKEND", "CUDA_VISIBLE_DEVICES", "LOOPWRIGHT_CACHE_DIR"):
        if name in os.environ:
            typer.echo(f"{name:18} {os.environ[name]}")
    from loopwright.settings import onednn_is_left_off

    if onednn_is_left_off(os.environ):
        typer.echo(
            "TensorFlow leaves oneDNN off on this processor; convolutions may be faster with it.\n"
            "To measure it: loopwright find settings PROGRAM"
        )
    typer.echo(f"{'XLA programs':18} {xla_cache.described()}")
    if os.environ.get("KERAS_BACKEND", "tensorflow") != "tensorflow":
        typer.echo("error: Loopwright needs KERAS_BACKEND=tensorflow")
        raise typer.Exit(1)


def _version(part: str) -> str | None:
    from importlib import metadata  # slow to import; --help does not need it

    try:
        return metadata.version(part)
    except metadata.PackageNotFoundError:
        return None


def _require_directory(directory: Path) -> None:
    if not directory.is_dir():
        raise ConfigurationError(
            message(
                "No such directory.",
                expected="a directory with runs",
                received=str(directory),
                do="check the path, or train something first: loopwright train digits --quick",
            )
        )


def _print_table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """Print plain columns, each as wide as its longest cell."""
    rows = [tuple(map(printable, row)) for row in rows]
    widths = [max(len(row[at]) for row in [head, *rows]) for at in range(len(head))]
    for row in [head, *rows]:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        typer.echo("  ".join(cells).rstrip())
    typer.echo()


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
