"""Measure the seconds from the start of a process to its first step."""

import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from benchmarks import processes, reports

_CONTENDERS = ("Keras fit", "Loopwright")
_WORKLOADS = ("mlp", "transformer")
_STAGES = ("Loopwright imported", "TensorFlow imported", "ready to fit", "first step")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=3)


def run(arguments: Namespace) -> str:
    """Start each process several times, in turns, and return the report."""
    pairs = [(workload, contender) for workload in _WORKLOADS for contender in _CONTENDERS]
    runs: dict[tuple[str, str], list[dict[str, float]]] = {pair: [] for pair in pairs}
    for _ in range(arguments.runs):
        for (workload, contender), found in runs.items():
            found.append(_reached(workload, contender))
    best = {pair: earliest(found) for pair, found in runs.items()}
    report = render(best, arguments.runs)
    seconds = [
        {"workload": workload, "contender": contender, "seconds": stages, "runs": found}
        for ((workload, contender), stages), found in zip(best.items(), runs.values(), strict=True)
    ]
    data = {"measured_on": reports.measured_on(), "startup": seconds}
    reports.save(reports.directory(arguments), "startup", report, data)
    return report


def earliest(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the run with the earliest first step."""
    return min(runs, key=lambda reached: reached["first step"])


def render(best: dict[tuple[str, str], dict[str, float]], runs: int) -> str:
    """Return the report: a row per workload and contender, a column per stage."""
    rows = [
        [workload, contender, *(_seconds(stages.get(stage)) for stage in _STAGES)]
        for (workload, contender), stages in best.items()
    ]
    heading = f"Seconds since the start of the process, best of {runs}. {reports.measured_on()}"
    return f"{heading}\n\n{reports.table(['workload', 'contender', *_STAGES], rows)}\n"


def _reached(workload: str, contender: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as empty:
        # This clock is the same in every process of a machine.
        command = [sys.executable, "-m", "benchmarks.first_step", str(time.monotonic())]
        environment = processes.environment(empty)
        return processes.run([*command, contender, workload], environment)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
