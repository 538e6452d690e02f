"""Commands that only read: runs, report, doctor."""

import json
import os
import platform
import re
import textwrap
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from loopwright import __version__
from loopwright.cli.arguments import AsJson, RunDirectory, RunsDirectory
from loopwright.errors import ConfigurationError, printable
from loopwright.exactness import Inexact
from loopwright.extras import install_command

if TYPE_CHECKING:
    from loopwright.cli.run_overview import Row

SortKey = Literal["when", "name", "status", "step", "best", "duration"]
_FOR_DEVELOPERS = ("all", "docs", "dev")


def runs(
    directory: RunsDirectory = Path("runs"),
    sort: Annotated[SortKey, typer.Option(help="The order of the runs.")] = "when",
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Metric that decides the best checkpoint.",
            show_default="KeepBest of the run",
        ),
    ] = None,
    mode: Annotated[
        Literal["auto", "min", "max"],
        typer.Option(help="Which values of --metric are better; auto: by its name."),
    ] = "auto",
    as_json: AsJson = False,
) -> None:
    """List runs; of one run: checkpoints, plans, variables.

    Of one run, the checksum of every file is verified; --json lists files and variables as well.
    """
    from loopwright.cli import run_overview

    _require_directory(directory)
    if mode != "auto" and metric is None:
        raise ConfigurationError(
            "--mode belongs to --metric.",
            expected=f"--metric NAME --mode {mode}",
            received=f"--mode {mode}",
            do="pass --metric as well, or omit --mode",
        )
    rows = run_overview.rows(directory, metric, mode, sort=sort)
    if run_overview.is_run(directory):
        _show_run(rows[0], as_json=as_json)
        return
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
                row.best_text(),
                row.duration,
                datetime.fromtimestamp(row.changed).strftime("%Y-%m-%d %H:%M"),
                *([row.origin] * is_forked),
            )
            for row in rows
        ],
    )


def _show_run(row: "Row", *, as_json: bool) -> None:
    from loopwright.insight.comparison import plans_in_words
    from loopwright.runs import RunRecord, inspected

    run = row.path
    record = RunRecord(run)
    origin, plans = record.origin, record.plans
    found = {**{**vars(row), "path": str(run), "origin": origin}, **inspected(run)}
    if as_json:
        typer.echo(json.dumps({**found, "plans": plans.content()}, indent=2))
        return
    _print_row("run", f"{run}, {row.status}")
    if row.best is not None:
        _print_row("best", row.best_text())
    if origin:
        _print_row("forked from", origin)
    for name, text in plans_in_words(plans).items():
        if text not in ("none", "no step"):
            _print_row(name, text)
    for note in plans.notes:
        _print_row("", note)
    variables = found["variables"]
    known = sum(variable["bytes"] or 0 for variable in variables)
    _print_row("variables", f"{len(variables)}, {known:,} bytes; --json lists them")
    if found["not_exactly_resumable"]:
        _print_row("resume", str(Inexact(tuple(found["not_exactly_resumable"]))))
    typer.echo()
    rows = [
        (
            f"{checkpoint['step']:,}",
            str(checkpoint["epoch"]),
            f"{checkpoint['bytes']:,}",
            " ".join(f"{name} {_short(value)}" for name, value in checkpoint["scores"].items()),
            checkpoint["damage"] or "valid",
        )
        for checkpoint in found["checkpoints"]
    ]
    if rows:
        _print_table(("step", "epoch", "bytes", "scores", "state"), rows)
    else:
        typer.echo("no checkpoints yet")


def print_wrapped(text: str, indent: str = "  ") -> None:
    """Print a text in lines of at most 80 columns."""
    lines = textwrap.wrap(printable(text), 80, subsequent_indent=indent, break_on_hyphens=False)
    typer.echo("\n".join(lines))


def _print_row(name: str, text: str) -> None:
    print_wrapped(f"{name:13}{text}", indent=" " * 13)


def report(run: RunDirectory) -> None:
    """Write report.html: curves, plan, timing, config, environment."""
    from loopwright.sinks.report import write_report

    _require_directory(run)
    typer.echo(write_report(run))


def doctor(
    forget_plans: Annotated[
        bool,
        typer.Option(
            "--forget-plans",
            help="Forget the plans and process settings that earlier runs have measured on this "
            "machine, and exit.",
        ),
    ] = False,
) -> None:
    """Check the installation: versions, devices, missing extras."""
    if forget_plans:
        _forget_plans()
        return
    system = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    _print_fact("python", system)
    _print_fact("loopwright", __version__)
    packages = _packages()
    versions = {package: _version(package) for package in packages}
    for package, extra in packages.items():
        absent = f"not installed: {install_command(extra)}" if extra else "MISSING"
        _print_fact(package, versions[package] or absent)
    missing = [package for package in packages if not packages[package] and not versions[package]]
    if missing:
        typer.echo(f"missing: {', '.join(missing)}; run: pip install loopwright")
        raise typer.Exit(1)
    from loopwright.quiet_start import quiet_start

    with quiet_start():
        from loopwright.environment import environment

        known = environment()

    for name, value in known.items():
        if name not in packages and value is not None:
            _print_fact(name, ", ".join(value) if isinstance(value, list) else value)
    for name in ("KERAS_BACKEND", "CUDA_VISIBLE_DEVICES", "LOOPWRIGHT_CACHE_DIR"):
        if name in os.environ:
            _print_fact(name, os.environ[name])
    from loopwright.settings import onednn_is_left_off

    if onednn_is_left_off(os.environ):
        typer.echo(
            "TensorFlow leaves oneDNN off on this processor; convolutions may be faster with it.\n"
            "To measure it: loopwright find settings PROGRAM"
        )
    _print_fact("remembered plans", _remembered())
    if os.environ.get("KERAS_BACKEND", "tensorflow") != "tensorflow":
        typer.echo("error: Loopwright needs KERAS_BACKEND=tensorflow")
        raise typer.Exit(1)


def _print_fact(name: str, value: Any) -> None:
    typer.echo(f"{name:23} {value}")


def _remembered() -> str:
    from loopwright.plans import cache

    place = cache.directory()
    if place is None:
        return 'none: LOOPWRIGHT_CACHE_DIR="" switches the memory off'
    count = cache.plan_count()
    return f"{count} in {place}{'; --forget-plans forgets them' if count else ''}"


def _forget_plans() -> None:
    from loopwright.plans import cache

    try:
        count = cache.forget_all()
    except OSError as error:
        raise ConfigurationError(
            "The remembered plans cannot be deleted.",
            expected=f"files that can be deleted in {cache.directory()}",
            received=f"{type(error).__name__}: {error.strerror}",
            do="delete them yourself, or set LOOPWRIGHT_CACHE_DIR to a directory of your own",
        ) from None
    typer.echo(f"plans forgotten: {count}; the next run of each program measures again")


def _packages() -> dict[str, str]:
    """Return the packages that Loopwright uses, each with the extra that installs it, or ""."""
    from importlib import metadata  # slow to import; --help does not need it

    found = dict[str, str]()
    for line in metadata.requires("loopwright") or ():
        package, extra = re.split(r"[^\w-]", line)[0], re.search(r"extra == .(\w+)", line)
        if extra is None or (extra[1] not in _FOR_DEVELOPERS and package != "loopwright"):
            found[package] = "" if extra is None else extra[1]
    return found


def _version(package: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _require_directory(directory: Path) -> None:
    if not directory.is_dir():
        raise ConfigurationError(
            "No such directory.",
            expected="a directory with runs",
            received=str(directory),
            do="check the path, or train something first: loopwright train digits --quick",
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
