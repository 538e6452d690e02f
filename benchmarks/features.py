"""Measure the cost of TensorBoard, journal, report, checkpoints and progress."""

import contextlib
import os
import pty
import sys
import tempfile
import threading
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import processes, reports
from benchmarks.measuring import say

PLANS = {"cnn": ("graph", 400), "mlp": ("fused", 60_000)}
"""The best plan of each model, and steps for some seconds."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--share", type=float, default=1.0, help="share of the steps in each round")


def run(arguments: Namespace) -> str:
    """Measure each model in its own process and return the report."""
    found = {
        key: processes.call(
            "benchmarks.features:measure",
            key=key,
            plan=plan,
            steps=round(steps * arguments.share),
            rounds=arguments.rounds,
        )
        for key, (plan, steps) in PLANS.items()
    }
    report = render(found)
    data = {"measured_on": reports.measured_on(), **found}
    reports.save(reports.directory(arguments), "features", report, data)
    return report


def measure(key: str, plan: str, steps: int, rounds: int) -> dict[str, Any]:
    """Return the seconds with everything on and everything off, in turns.

    What happens once, when a run directory is opened and left, is measured apart: by a run of a
    single step.
    """
    import loopwright as lw
    from benchmarks.workloads import WORKLOADS

    work = WORKLOADS[key]()
    seconds: dict[str, list[float]] = {"on": [], "off": []}
    once: dict[str, list[float]] = {"on": [], "off": []}
    with tempfile.TemporaryDirectory() as directory, _terminal():
        for number in range(rounds):
            for kind in ("on", "off"):
                say(f"{key}, everything {kind}, round {number + 1} of {rounds}")
                run_dir = Path(directory) / f"{kind}-{number}" if kind == "on" else None
                verbose = 1 if kind == "on" else 0
                trainer = lw.Trainer(work.task(), plan=plan, run_dir=run_dir)
                given = {**work.given(), "verbose": verbose}
                trainer.fit(**given, until=f"{work.steps_per_epoch} steps")  # traces
                for taken, count in ((once, 1), (seconds, steps)):
                    began = time.perf_counter()
                    trainer.fit(**given, until=f"{count} steps")
                    taken[kind].append(time.perf_counter() - began)
    return {"plan": plan, "steps": steps, "seconds": seconds, "once": once}


@contextlib.contextmanager
def _terminal() -> Iterator[None]:
    """Use a real terminal as standard output, and restore the previous one afterwards."""
    master, slave = pty.openpty()

    def read() -> None:
        with contextlib.suppress(OSError):
            while os.read(master, 65_536):
                pass

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    before = sys.stdout
    os.environ.setdefault("TERM", "xterm-256color")
    with os.fdopen(slave, "w", encoding="utf-8") as screen:
        sys.stdout = screen
        try:
            yield
        finally:
            sys.stdout = before


def render(found: dict[str, Any]) -> str:
    """Return the report: one row for each model."""
    rows = []
    for key, one in found.items():
        on, off = min(one["seconds"]["on"]), min(one["seconds"]["off"])
        once = max(0.0, min(one["once"]["on"]) - min(one["once"]["off"]))
        rows.append(
            [
                f'{key}, plan="{one["plan"]}", {one["steps"]:,} steps',
                f"{off:.2f} s",
                f"{on:.2f} s",
                f"{on / off - 1:+.1%}",
                f"{once:.2f} s",
                f"{(on - once) / off - 1:+.1%}",
            ]
        )
    head = ["case", "all off", "all on", "cost", "fixed cost at start and end", "per step"]
    heading = f"The cost of everything around the step. {reports.measured_on()}"
    return f"{heading}\n\n{reports.table(head, rows)}\n"
