"""Commands that train: train, resume, schedule, verify."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loopwright import recipes
from loopwright.cli.arguments import (
    NamedCode,
    Overrides,
    RunDirectory,
    Source,
    config_of,
    launching,
    named_code,
)
from loopwright.distribute import cluster

if TYPE_CHECKING:
    from loopwright.config import schema
import threading

from loopwright.distribute import supervisor

_MOST_STOPS = 40
_EXIT_INTERRUPTED = 130


def train(
    source: Source,
    overrides: Overrides = None,
    run_dir: Annotated[
        Path | None, typer.Option(help="Where the run is kept; runs/NAME if left out.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Seconds instead of minutes.")] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over; the run before is moved aside.")
    ] = False,
    show: Annotated[
        bool, typer.Option("--show", help="Print the config that would be trained, and leave.")
    ] = False,
) -> None:
    """Trains a recipe or a config. Started again, it goes on where it was saved."""
    config = _loaded(source, overrides, run_dir, quick)
    if show:
        from loopwright.config.file import written

        typer.echo(written(config), nl=False)
        return
    _train(config, fresh=fresh)


def resume(run: RunDirectory, overrides: Overrides = None, task: NamedCode = None) -> None:
    """Goes on with a run; fit.epochs=30 lets one that is finished train further."""
    _train(config_of(run, task, overrides, trains=True), fresh=False)


def schedule(
    source: Source,
    overrides: Overrides = None,
    quick: Annotated[bool, typer.Option("--quick", help="As for train.")] = False,
    every_stop: Annotated[bool, typer.Option("--all", help="Every stop, however many.")] = False,
) -> None:
    """Prints the stops of a run before it starts: when it validates, saves, ends."""
    config = _loaded(source, overrides, None, quick)
    found = launching()
    with found.launched(config) as launch:
        planned = found.schedule_of(launch)
    intervals = {"validate": planned.validate_every, "save": planned.save_every}
    length = planned.steps_per_epoch or "an unknown number of"
    typer.echo(f"until {planned.until}, {length} steps per epoch")
    for what, interval in intervals.items():
        typer.echo(
            f"{what}: {'never' if interval is None else f'every {interval}, and at the end'}"
        )
    best = [keep.best for keep in config.keep if keep.best]
    if best and planned.validate_every is not None:
        typer.echo(f"save also: each validation that is the best so far by {', '.join(best)}")
    if planned.total_steps is None:
        typer.echo("which steps these are shows only while it trains")
        return
    stops = list(planned.stops())
    shown = (
        stops
        if every_stop or len(stops) <= _MOST_STOPS
        else [*stops[:-1][: _MOST_STOPS - 1], stops[-1]]
    )
    typer.echo(f"{len(stops)} stops in {stops[-1].step} steps:")
    for stop in shown:
        if stop is stops[-1] and len(shown) < len(stops):
            typer.echo(f"  ... {len(stops) - len(shown)} more; --all lists them")
        words = {
            "validate": stop.validate,
            "save": stop.save,
            "end of epoch": stop.ends_epoch,
            "end": stop.ends_run,
        }
        typer.echo(f"  {stop.step:>9}  " + ", ".join(word for word, due in words.items() if due))


def verify(
    what: Annotated[
        str, typer.Argument(metavar="RECIPE|RUN", help="A recipe, or a run directory.")
    ],
    kills: Annotated[int, typer.Option(help="How often it is killed.", min=1)] = 3,
    seed: Annotated[int, typer.Option(help="Decides the moments.")] = 0,
    task: NamedCode = None,
) -> None:
    """Trains twice, once killed at random moments and started again, and compares every bit."""
    from loopwright.cli import kill_test

    if Path(what).is_dir():
        config_of(Path(what), task)
        command = kill_test.command_for_run(Path(what))
    else:
        recipes.require(what)
        command = kill_test.command_for_recipe(what)
    verdict = kill_test.verify(what, command, kills=kills, seed=seed, say=typer.echo)
    typer.echo(str(verdict))
    if verdict.exit_code:
        raise typer.Exit(verdict.exit_code)


def _loaded(
    source: str, overrides: list[str] | None, run_dir: Path | None, quick: bool
) -> "schema.Config":
    from loopwright.config import file

    words = [*(overrides or ()), *(["quick=true"] if quick else [])]
    config = file.load(source, words, environment=os.environ)
    if config.recipe is not None:
        recipes.require(config.recipe)
    return config if run_dir is None else config.model_copy(update={"run_dir": str(run_dir)})


def _train(config: "schema.Config", *, fresh: bool) -> None:
    """Trains and sums up; whoever asked it to leave is told how to go on."""
    from loopwright.loop.signals import Preempted

    try:
        scores = launching().train(config, fresh=fresh, say=lambda text: typer.echo(text, err=True))
    except KeyboardInterrupt:
        typer.echo(_how_to_go_on(config), err=True)
        raise typer.Exit(_EXIT_INTERRUPTED) from None
    except Preempted:
        typer.echo(_how_to_go_on(config), err=True)
        raise
    workers = cluster.found(os.environ)
    if config.fit.verbose != 0 and (workers is None or workers.is_chief):
        _sum_up(config, scores)


def _sum_up(config: "schema.Config", scores: "Mapping[str, Any]") -> None:
    from rich.console import Console

    from loopwright.cli.run_overview import show, summary
    from loopwright.config.file import saved_in
    from loopwright.sinks.record import read_record
    from loopwright.sinks.terminal import is_terminal

    run, task = config.directory, named_code(config)
    epochs = (saved_in(Path(run)) or config).fit.epochs
    more = f"fit.epochs={2 * epochs}" if epochs else "fit.until=..."
    record = read_record(Path(run))
    use = "evaluate" if record.best is not None else "export"
    checkpoint = "best" if use == "evaluate" else "last"
    commands = [
        f"loopwright {use} {run} --checkpoint {checkpoint}{task}",
        f"loopwright resume {run} {more}{task}",
        f"loopwright board {Path(run).parent}",
    ]
    output = Console(force_terminal=None if is_terminal(sys.stdout) else False)
    show(summary(record, scores, commands), output)


def _how_to_go_on(config: "schema.Config") -> str:
    from loopwright.checkpoints.store import Store

    found = Store(Path(config.directory) / "checkpoints").all()
    if not found:
        return "\ninterrupted before anything was saved"
    command = f"loopwright resume {config.directory}{named_code(config)}"
    return f"\ninterrupted; saved at step {found[-1].step}. To go on: {command}"


def launch(
    command: Annotated[
        list[str],
        typer.Argument(metavar="-- COMMAND...", help="A command of loopwright: train digits."),
    ],
    workers: Annotated[int, typer.Option(help="How many processes train together.", min=1)] = 2,
    restarts: Annotated[
        int, typer.Option(help="How often all are started again after a death.", min=0)
    ] = 0,
) -> None:
    """Trains with several processes of this machine: launch --workers 2 -- train digits."""
    writing = threading.Lock()

    def say(line: str) -> None:
        with writing:
            typer.echo(line)

    code = supervisor.supervise(
        [*supervisor.python(), "-m", "loopwright", *command],
        workers=workers,
        restarts=restarts,
        environment=os.environ,
        say=say,
    )
    raise typer.Exit(code)
