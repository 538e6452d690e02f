"""Command that searches values for the keys of a config: tune."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loopwright.cli.arguments import Quick, complete_source, load_config
from loopwright.cli.process_settings import SettingsOption
from loopwright.errors import ConfigurationError, printable

if TYPE_CHECKING:
    from loopwright.search.result import Tuned


def tune(
    source: Annotated[
        str,
        typer.Argument(
            metavar="TASK|CONFIG",
            help="digits, FILE.py, MODULE:FUNCTION or a YAML file; with --show a study directory.",
            autocompletion=complete_source,
        ),
    ],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=SPACE",
            help="What may vary: float(1e-4,1e-1,log), int(16,256,log), int(1,8), "
            "float(0,1,step=0.1), choice(a,b,null). Other KEY=VALUE words override the config.",
        ),
    ] = None,
    trials: Annotated[
        int, typer.Option(metavar="N", help="Number of trials that the study shall have.", min=1)
    ] = 50,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--dir", metavar="DIR", help="Study directory.", show_default="runs/tune-NAME"
        ),
    ] = None,
    objective: Annotated[
        str, typer.Option(metavar="NAME", help="The score that decides, as in the history.")
    ] = "val_loss",
    mode: Annotated[
        str,
        typer.Option(metavar="MODE", help="min or max: which scores are better; auto: by name."),
    ] = "auto",
    take: Annotated[
        str, typer.Option(metavar="best|last", help="Which of a trial's scores counts.")
    ] = "best",
    sampler: Annotated[
        str, typer.Option(metavar="NAME", help="Optuna's sampler: tpe, random or grid.")
    ] = "tpe",
    pruner: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Optuna's pruner: median, hyperband, successive-halving or none."
        ),
    ] = "median",
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the sampler.", min=0)] = 0,
    workers: Annotated[
        int, typer.Option(metavar="N", help="Trials that train at the same time.", min=1)
    ] = 1,
    quick: Quick = False,
    show: Annotated[
        bool, typer.Option("--show", help="Print the table of a study directory, and exit.")
    ] = False,
    settings: SettingsOption = "auto",
) -> None:
    """Search values for the keys of a config with many trials.

    Run the same command again to continue: finished trials are not repeated, interrupted ones
    resume from their last checkpoint. Needs pip install 'loopwright[tune]'.

    Example: loopwright tune digits --trials 20 'optimizer.learning_rate=float(1e-4,1e-1,log)'
    """
    from loopwright.config.space import parsed
    from loopwright.loop.signals import Preempted
    from loopwright.search import study
    from loopwright.search import tune as studies

    if show:
        _print(studies.shown(Path(source)))
        return
    if Path(source).is_dir():
        raise ConfigurationError(
            f"{source} is a directory.",
            expected="the task or config that the study was started with",
            received="a directory, which may call no code",
            do=f"run the command of the study again, or print its table: loopwright tune "
            f"{source} --show",
        )
    space, overrides = parsed(words or ())
    config = load_config(source, overrides, None, quick)
    wanted = study.SearchSpace(
        config=config,
        space=space,
        objective=objective,
        mode=mode,
        take=take,
        sampler=sampler,
        pruner=pruner,
        seed=seed,
    )
    path = directory or studies.default_directory(config)
    try:
        found = studies.search(
            wanted, path, trials=trials, workers=workers, settings=settings, say=_say
        )
    except (KeyboardInterrupt, Preempted):
        _say(f"interrupted; the trials are saved in {path}. To continue, run the same command")
        raise
    _print(found)


def _say(text: str) -> None:
    typer.echo(printable(text))


def _print(found: "Tuned") -> None:
    from rich.console import Console

    from loopwright.sinks.terminal import is_terminal

    is_screen = is_terminal(sys.stdout)
    width = None if is_screen or "COLUMNS" in os.environ else 100
    found.print(Console(force_terminal=None if is_screen else False, width=width))
    typer.echo(f"report: {found.directory / 'report.html'}")
