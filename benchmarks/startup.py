"""Measure the seconds from the start of a process to its first step and to its full speed."""

import signal
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import full_speed, processes, reports
from benchmarks.measuring import say

_CONTENDERS = ("Keras fit", "Loopwright")
_WORKLOADS = ("mlp", "transformer")
_STAGES = ("Loopwright imported", "TensorFlow imported", "ready to fit", "first step")
_LATER_SECONDS = 10.0


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--only", choices=_WORKLOADS, action="append", help="may be repeated")
    parser.add_argument("--runs", type=int, default=3, help="starts to the first step, of each")
    parser.add_argument(
        "--seconds",
        type=float,
        default=40.0,
        help="duration of a first start, in which the plan has to be chosen",
    )


def run(arguments: Namespace) -> str:
    """Start each process several times, in turns, and return the report."""
    workloads = arguments.only or _WORKLOADS
    pairs = [(workload, contender) for workload in workloads for contender in _CONTENDERS]
    runs: dict[tuple[str, str], list[dict[str, float]]] = {pair: [] for pair in pairs}
    for _ in range(arguments.runs):
        for (workload, contender), found in runs.items():
            found.append(_reached(workload, contender))
    best = {pair: earliest(found) for pair, found in runs.items()}
    starts = {workload: starts_of(workload, arguments.seconds) for workload in workloads}
    report = render_starts(starts)
    if best and arguments.runs:
        report = f"{render(best, arguments.runs)}\n{report}"
    seconds = [
        {"workload": workload, "contender": contender, "seconds": stages, "runs": found}
        for ((workload, contender), stages), found in zip(best.items(), runs.values(), strict=True)
    ]
    data = {"measured_on": reports.measured_on(), "startup": seconds, "full_speed": starts}
    reports.save(reports.directory(arguments), "startup", report, data)
    return report


def earliest(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the run with the earliest first step."""
    return min(runs, key=lambda reached: reached["first step"], default={})


def render(best: dict[tuple[str, str], dict[str, float]], runs: int) -> str:
    """Return the report: a row per workload and contender, a column per stage."""
    rows = [
        [workload, contender, *(_seconds(stages.get(stage)) for stage in _STAGES)]
        for (workload, contender), stages in best.items()
    ]
    heading = f"Seconds since the start of the process, best of {runs}. {reports.measured_on()}"
    return f"{heading}\n\n{reports.table(['workload', 'contender', *_STAGES], rows)}\n"


def starts_of(workload: str, seconds: float) -> dict[str, dict[str, Any]]:
    """Return the stops of a first start, of a second one, and of a resume after a SIGKILL."""
    with tempfile.TemporaryDirectory() as directory:
        cache, run_dir = (str(Path(directory, name)) for name in ("cache", "run"))
        long, later = f"{seconds:.0f} seconds", f"{_LATER_SECONDS:.0f} seconds"
        first = _trained(cache, workload, long, seconds)
        second = _trained(cache, workload, later, _LATER_SECONDS)
        _trained(cache, workload, "10 minutes", seconds, run_dir, kills=True)
        resumed = _trained(cache, workload, "10 minutes", _LATER_SECONDS, run_dir)
    return {"first start": first, "second start": second, "resumed after SIGKILL": resumed}


def render_starts(starts: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Return the report: a row per start; a dash where the plan of the first was not reached."""
    rows: list[list[str]] = []
    for workload, found in starts.items():
        best_plan = found["first start"]["plan"]
        for name, start in found.items():
            stops, is_best = start["stops"], start["plan"] == best_plan
            to_full = full_speed.seconds_to_full_speed(stops) if is_best else None
            rate = reports.count(full_speed.last_rate(stops))
            cells = [_seconds(stops[0][0]), _seconds(to_full), f"{rate} {start['plan']}"]
            rows.append([workload, name, *cells])
    header = ["workload", "start", "to the first step", "from it to full speed", "steps/s"]
    heading = "Seconds to 90% of the speed of the plan that the first start chose. "
    return f"{heading}{reports.measured_on()}\n\n{reports.table(header, rows)}\n"


def _reached(workload: str, contender: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as empty:
        # This clock is the same in every process of a machine.
        command = [sys.executable, "-m", "benchmarks.first_step", str(time.monotonic())]
        environment = processes.environment(empty)
        return processes.run([*command, contender, workload], environment)


def _trained(
    cache: str, workload: str, until: str, seconds: float, run_dir: str = "", *, kills: bool = False
) -> dict[str, Any]:
    say(f"startup: {workload}, {until}{' until it is killed' if kills else ''}")
    command = [sys.executable, "-m", "benchmarks.full_speed", str(time.monotonic()), workload]
    command += [until, str(seconds), run_dir, "yes" if kills else ""]
    environment = processes.environment(cache)
    if not kills:
        return processes.run(command, environment)
    done = subprocess.run(command, cwd=processes.ROOT, env=environment, check=False)
    if done.returncode != -signal.SIGKILL:
        raise RuntimeError(f"{workload} chose no plan in {seconds:.0f} s, or failed")
    return {}


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
