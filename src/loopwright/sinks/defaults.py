"""The sinks that a training has by itself: the console, and files of its run directory."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from loopwright.dispatch import RunFile
from loopwright.events import Sink
from loopwright.sinks import curves, terminal
from loopwright.sinks.report import ReportFile
from loopwright.sinks.tensorboard import HOME, TensorBoardFiles
from loopwright.sinks.terminal import show_scores as show_scores

if TYPE_CHECKING:
    from loopwright import History, KeepBest
    from loopwright.checkpoints.run_directory import Run


def console(
    verbose: 'Literal["auto", 0, 1, 2]',
    rule: "KeepBest",
    run: "Run | None",
    histories: "Sequence[History]",
) -> Sink:
    """Return the display of a call of `fit`; `histories` are those of the calls before it."""
    directory = None if run is None else run.directory
    return terminal.console(
        verbose,
        rule,
        lambda: None if run is None else run.best(rule),
        lambda: curves.before(directory, histories),
    )


def run_files(directory: Path, clock: Callable[[], float]) -> Sequence[RunFile]:
    """Return the files that a run directory has besides its journal."""
    return [
        TensorBoardFiles(directory / HOME, clock),
        ReportFile(directory),
        terminal.LogFile(directory, "train.log", clock),
    ]


def worker_log(directory: Path, worker: int, clock: Callable[[], float]) -> RunFile:
    """Return the log of a worker that is not the chief, which writes nothing else."""
    return terminal.LogFile(directory, f"worker-{worker}.log", clock)
