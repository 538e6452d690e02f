"""`loopwright compare`: curves of several runs, what differs, and since which step."""

import itertools
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, final

import typer

from loopwright.cli.arguments import TrustedCode, code_options, project_code
from loopwright.cli.look_commands import print_wrapped
from loopwright.errors import ConfigurationError, LoopwrightError, printable

if TYPE_CHECKING:
    from loopwright.cli.replay_child import ReplayedRun
    from loopwright.cli.run_overview import Row
    from loopwright.insight.comparison import Differs
    from loopwright.insight.first_difference import Difference
    from loopwright.runs import RunRecord

_MOST_LISTED = 12
_MOST_SECONDS = 300.0
"""Replays that take longer are not started unless asked for."""
_EXIT_DIFFERENT = 1
_COLORS = 10


def compare(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN RUN [...]", help="Run directories to compare.")
    ],
    find: Annotated[
        bool | None,
        typer.Option(
            "--find/--no-find",
            help="Replay two runs to find the first step at which they differ.",
            show_default="if that takes at most 5 minutes",
        ),
    ] = None,
    page: Annotated[
        Path, typer.Option(metavar="FILE", help="Where to write the page with the curves.")
    ] = Path("compare.html"),
    task: TrustedCode = None,
) -> None:
    """Compare runs: curves, what differs, and since which step.

    Two runs that should be equal are compared step by step: from the checkpoints that both have,
    then by replaying each run in memory. Nothing is written into a run. Exit code 0: done, with
    two runs: no difference found in their states; 1: two runs whose states differ; 2: usage error.
    """
    from loopwright.cli.run_overview import rows
    from loopwright.insight.comparison import differences, same_kinds
    from loopwright.runs import open as open_run

    if len(runs) < 2 or len({path.resolve() for path in runs}) < len(runs):
        raise ConfigurationError(
            "compare needs at least two different runs.",
            expected="loopwright compare RUN RUN [...]",
            received=" ".join(map(str, runs)),
            do="name two run directories; `loopwright runs` lists them",
        )
    records = [open_run(path) for path in runs]
    shown = [rows(path)[0] for path in runs]
    found = differences(records)
    _print_runs(shown, records)
    _print_differences(found, same_kinds(records, found))
    verdict = Verdict([_untrained(run) for run in records if not run.checksums])
    if len(runs) == 2:
        verdict = compared_states(records, found, task or [], find)
    typer.echo("")
    for line in verdict.lines:
        print_wrapped(line)
    _write_page(page, shown, records, found, same_kinds(records, found), verdict.lines)
    typer.echo(f"\ncurves: {page}")
    if verdict.differs:
        raise typer.Exit(_EXIT_DIFFERENT)


@final
class Verdict(NamedTuple):
    """What is known of the states of two runs."""

    lines: Sequence[str]
    differs: bool = False


def compared_states(
    records: "Sequence[RunRecord]", found: "Sequence[Differs]", code: list[str], find: bool | None
) -> Verdict:
    """Compare the states of two runs: by their checkpoints, then by replays."""
    from loopwright.insight.comparison import equal_until, first_other_epoch

    one, other = records
    if not one.checksums or not other.checksums:
        missing = one if not one.checksums else other
        return Verdict([f"states not compared: {_untrained(missing)}"])
    equal, differing = equal_until(one, other)
    last = min(max(one.checksums), max(other.checksums))
    if equal == last:
        return Verdict([f"equal: the states after step {last:,} are the same, bit for bit"])
    lines = list[str]()
    if equal is not None:
        lines.append(f"equal until step {equal:,} at least: both have this checkpoint, same bits")
    if differing is not None:
        lines.append(f"checkpoints differ at step {differing:,}")
    hint = first_other_epoch(one, other)
    objection = _objection_to_replay(records, code)
    if objection is not None:
        stored = [] if differing is None else [_stored(records)]
        return Verdict([*lines, *stored, objection], differs=differing is not None)
    start = equal or 0
    seconds = sum((last - start) * run.seconds_per_step for run in records)
    if find is False or (find is None and seconds > _MOST_SECONDS):
        command = f"loopwright compare {one.directory} {other.directory} --find"
        length = timedelta(seconds=round(seconds))
        options = "".join(f" --task {name}" for name in code)
        return Verdict(
            [*lines, f"to find the first step (replays, about {length}): {command}{options}"],
            differs=differing is not None,
        )

    def say(text: str) -> None:
        if find:
            typer.echo(text, err=True)

    return _searched(records, found, code, lines, equal, hint, say)


def _untrained(run: "RunRecord") -> str:
    steps = run.finished.get("step") or max(run.epoch_losses, default=0)
    return f"{run.directory} has {'no checkpoint' if steps else 'not trained'}"


def _searched(
    records: "Sequence[RunRecord]",
    found: "Sequence[Differs]",
    code: list[str],
    lines: list[str],
    equal: int | None,
    hint: int | None,
    say: Callable[[str], None],
) -> Verdict:
    from loopwright.cli.replay_child import ReplayedRun
    from loopwright.exactness import recorded_reasons
    from loopwright.insight.comparison import explained
    from loopwright.insight.first_difference import NotReproducedError, bisect_states

    first_step = equal or 0
    with (
        ReplayedRun(records[0].directory, code, first_step=first_step) as one,
        ReplayedRun(records[1].directory, code, first_step=first_step) as other,
    ):
        try:
            difference = bisect_states(
                one,
                other,
                known_equal=[] if equal is None else [equal],
                hints=[] if hint is None else [hint],
                say=say,
            )
        except NotReproducedError as error:
            run = (one, other)[error.which]
            reasons = "; ".join(run.reasons) or "nothing that is recorded has changed since"
            return Verdict(
                [*lines, f"{run.directory}: {str(error).splitlines()[0]} ({reasons})"], differs=True
            )
        except LoopwrightError as error:
            reason = " ".join(line.strip() for line in str(error).splitlines())
            return Verdict([*lines, f"not replayed: {reason}"], differs=True)
        if difference is None:
            last = min(max(one.steps), max(other.steps))
            return Verdict([f"equal: the variables after step {last:,} are the same, bit for bit"])
        facts = [{}, {}]
        if difference.step:
            facts = [run.facts(difference.step) for run in (one, other)]
        size = _size(one, other, difference)
        reasons = [*dict.fromkeys(r for run in records for r in recorded_reasons(run.content))]
        cause = explained(
            difference,
            (facts[0], facts[1]),
            found,
            relative=None if size is None else size[1],
            reasons=reasons,
        )
    examples = facts[0].get("examples")
    place = f"step {difference.step:,}{f' ({examples})' if examples else ''}"
    lines.append(f"first difference: {place if difference.step else 'before the first step'}")
    by = "" if size is None else f", by at most {size[0]:.2g} ({size[1]:.1g} of its size)"
    lines.append(f"first variable: {_first_of(difference, by)}")
    lines.append(f"likely cause: {cause}")
    return Verdict(lines, differs=True)


def _size(
    one: "ReplayedRun", other: "ReplayedRun", difference: "Difference"
) -> tuple[float, float] | None:
    """Return by how much the first variable differs, also as a share of its largest value.

    None if it has no numbers to compare.
    """
    import numpy as np

    step, name = difference.step, difference.variables[0]
    try:
        first, second = (run.value(step, name).astype(np.float64) for run in (one, other))
    except (LoopwrightError, ValueError, TypeError):
        return None
    if first.shape != second.shape or not first.size:
        return None
    largest = float(np.abs(first - second).max())
    return largest, largest / (float(np.abs(first).max()) or 1.0)


def _first_of(difference: "Difference", by: str = "") -> str:
    names = difference.variables
    return f"{names[0]}{by}" + (f", and {len(names) - 1} more" if len(names) > 1 else "")


def _objection_to_replay(records: "Sequence[RunRecord]", code: list[str]) -> str | None:
    """Return why the runs cannot be replayed; None if they can."""
    from loopwright.config import file

    for record in records:
        config = file.saved_in(record.directory)
        if config is None:
            return (
                f"not replayed: {record.directory} was not started from a config; in its script, "
                "lw.first_difference(one_trainer, other_trainer, x, y, ...) finds the step"
            )
        known = [*code, *project_code(record.directory)]
        if any(name not in known for name in config.code):
            return (
                f"not replayed: {record.directory} was trained with custom code, which a run "
                f"directory may not call; if you trust it, pass{code_options(config)}"
            )
    return None


def _stored(records: "Sequence[RunRecord]") -> str:
    """Return which variables differ in the checkpoints that both runs have."""
    from loopwright.insight.history_state import first_difference

    difference = first_difference(*(record.directory for record in records))
    if difference is None:
        return "variables: the same in these checkpoints; only the position in the data differs"
    return f"variables that differ after step {difference.step:,}: {_first_of(difference)}"


def _print_runs(shown: "Sequence[Row]", records: "Sequence[RunRecord]") -> None:
    from loopwright.insight.comparison import letters

    for label, row, record in zip(letters(len(shown)), shown, records, strict=True):
        typer.echo(printable(f"{label}  {row.path}"))
        best = f"best {row.best_text(6)}" if row.best_text() else ""
        words = [row.status, f"{row.step or 0:,} steps", best, row.duration]
        typer.echo(f"   {', '.join(filter(None, words))}")
        if record.origin:
            print_wrapped(f"   forked from {record.origin}", indent="     ")


def _print_differences(found: "Sequence[Differs]", same: Sequence[str]) -> None:
    typer.echo("")
    if not found:
        typer.echo("no recorded difference")
    for kind, group in itertools.groupby(found, key=lambda each: each.kind):
        listed = list(group)
        for at, each in enumerate(listed[:_MOST_LISTED]):
            start = f"{kind if at == 0 else '':12}"
            print_wrapped(f"{start}{each}", indent=" " * 14)
        if len(listed) > _MOST_LISTED:
            typer.echo(f"{'':12}... and {len(listed) - _MOST_LISTED} more, in the page")
    if same:
        print_wrapped(f"{'the same':12}{', '.join(same)}", indent=" " * 14)


def _write_page(
    page: Path,
    shown: "Sequence[Row]",
    records: "Sequence[RunRecord]",
    found: "Sequence[Differs]",
    same: Sequence[str],
    verdict: Sequence[str],
) -> None:
    from loopwright.insight.comparison import letters
    from loopwright.sinks.curves import charts
    from loopwright.sinks.report import rendered

    labels = letters(len(records))
    names = [f"{label} {row.path.name}" for label, row in zip(labels, shown, strict=True)]
    journals = {name: r.journal for name, r in zip(names, records, strict=True)}
    has_origin = any(record.origin for record in records)
    columns = ["path", "status", "steps", "best", "time", *(["forked from"] if has_origin else [])]
    cells = [
        {
            "name": name,
            "color": at % _COLORS,
            "cells": [
                str(row.path),
                row.status,
                f"{row.step or 0:,}",
                row.best_text(6),
                row.duration,
                *([record.origin] if has_origin else []),
            ],
        }
        for at, (name, row, record) in enumerate(zip(names, shown, records, strict=True))
    ]
    groups = itertools.groupby(found, key=lambda each: each.kind)
    text = rendered(
        "comparison.html.jinja",
        name=f"Comparison of {len(records)} runs",
        columns=columns,
        runs=cells,
        verdict=verdict,
        curves={"x": "step", "best": None, "charts": charts(journals)},
        differences=[
            (kind, [{"name": one.name, "cells": one.values} for one in group])
            for kind, group in groups
        ],
        same=", ".join(same),
    )
    page.write_text(text, encoding="utf-8", errors="replace")
