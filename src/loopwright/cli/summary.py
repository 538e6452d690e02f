"""The page at the end of a training: scores, best step, time, files, what is next."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, final

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from loopwright import disk
from loopwright.errors import printable
from loopwright.sinks.progress_text import length_of_time, number
from loopwright.sinks.record import Record
from loopwright.sinks.record import number as finite

_LEAST_SHARE = 0.01


@final
class Row(NamedTuple):
    """What a line is about, and what it says."""

    name: str
    text: str


def summary(record: Record, scores: Mapping[str, Any], commands: Sequence[str]) -> list[Row]:
    """What a person wants to know when a run is over, from its files and its scores."""
    rows = [
        Row("run", _ending(record)),
        Row("scores", _numbers(scores)),
        Row("last epoch", _numbers(record.last_epoch)),
    ]
    if record.best is not None:
        metric, score, step = record.best
        rows.append(Row("best", f"{metric} {number(score)} at step {step:,}"))
    shown = [f"{name} {share:.0%}" for name, share in record.shares if share >= _LEAST_SHARE]
    rows.append(Row("time", ", ".join(shown)))
    rows.append(Row("advice", str(record.finished.get("advice", ""))))
    rows.append(Row("resume", record.inexact))
    rows += [Row("files" if i == 0 else "", f) for i, f in enumerate(_files(record))]
    rows += [Row("next" if i == 0 else "", command) for i, command in enumerate(commands)]
    return [Row(row.name, printable(row.text)) for row in rows if row.text]


def show(rows: Sequence[Row], output: Console) -> None:
    """Prints the page: in a frame in a terminal, as plain lines elsewhere."""
    width = max(len(row.name) for row in rows)
    if not output.is_terminal:
        for row in rows:
            output.out(f"{row.name:{width}}  {row.text}", highlight=False)
        return
    grid = Table.grid(padding=(0, 2))
    for row in rows:
        grid.add_row(Text(row.name, "dim"), Text(row.text, overflow="fold"))
    output.print(Panel(grid, expand=False, border_style="dim"))


def _ending(record: Record) -> str:
    status = record.status
    words = [str(record.directory), str(status.get("status", "unknown"))]
    words.append(f"{finite(status.get('step')) or 0:,.0f} steps")
    seconds = finite(record.finished.get("seconds"))
    if seconds is not None:
        words.append(length_of_time(seconds))
    return " · ".join(words)


def _numbers(numbers: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {number(value)}" for name, value in numbers.items())


def _files(record: Record) -> list[str]:
    """The files that a person may want to open, each with what it is."""
    directory = record.directory
    exports = disk.names(directory, "export")
    versions = sorted((name for name in exports if name.isdigit()), key=int)
    for_keras = [name for name in exports if name.endswith(".keras")]
    known = [
        ("report.html", "curves, plan, time, environment"),
        *((f"export/{name}", "for serving") for name in versions[-1:]),
        *((f"export/{name}", "for Keras") for name in for_keras[-1:]),
        ("checkpoints", _steps(record)),
        ("figures", ", ".join(disk.names(directory, "figures"))),
    ]
    there = [(name, what) for name, what in known if disk.status(directory, name) is not None]
    return [f"{directory / name}  ({what})" for name, what in there]


def _steps(record: Record) -> str:
    return "steps " + ", ".join(f"{entry.step:,}" for entry in record.checkpoints)
