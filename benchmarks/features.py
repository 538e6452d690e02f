"""Measure what surrounds the step: run directory and progress, a call of fit, skipping NaN."""

import contextlib
import os
import pty
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import processes, reports
from benchmarks.measuring import say

CASES = {"cnn": ("graph", 1000, "500 steps"), "mlp": ("fused", 60_000, "10 minutes")}
"""The best plan of each model, steps for some seconds, and how often it is saved."""
MOST = {"cnn": 0.02, "mlp": 0.05, "skip": 0.15, "call": 0.05}
"""What each may cost: shares of the time without it; seconds for a call of fit."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--share", type=float, default=1.0, help="share of the steps in each round")


def run(arguments: Namespace) -> str:
    """Measure each model in its own process and return the report."""
    share, rounds = arguments.share, arguments.rounds
    found: dict[str, Any] = {
        key: processes.call(
            "benchmarks.features:measure",
            key=key,
            plan=plan,
            steps=round(steps * share),
            rounds=rounds,
            save_every=save_every,
        )
        for key, (plan, steps, save_every) in CASES.items()
    }
    steps = round(25_600 * share)
    found["skip"] = processes.call("benchmarks.features:skipping", steps=steps, rounds=rounds)
    found["call"] = processes.call("benchmarks.features:calls", rounds=rounds)
    report = render(found)
    data = {"measured_on": reports.measured_on(), **found}
    reports.save(reports.directory(arguments), "features", report, data)
    return report


def measure(key: str, plan: str, steps: int, rounds: int, save_every: str) -> dict[str, Any]:
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
                given = {**work.given(), "verbose": verbose, "save_every": save_every}
                trainer.fit(**given, until=f"{work.steps_per_epoch} steps")  # traces
                for taken, count in ((once, 1), (seconds, steps)):
                    began = time.perf_counter()
                    trainer.fit(**given, until=f"{count} steps")
                    taken[kind].append(time.perf_counter() - began)
    return {
        "plan": plan,
        "steps": steps,
        "save_every": save_every,
        "seconds": seconds,
        "once": once,
    }


def skipping(steps: int, rounds: int) -> dict[str, Any]:
    """Return the seconds of the fused mlp that raises for NaN, and that skips it, in turns."""
    import loopwright as lw
    from benchmarks.workloads import WORKLOADS

    work = WORKLOADS["mlp"]()
    policies: tuple[Any, Any] = ("raise", "skip")
    trainers = {each: lw.Trainer(work.task(), plan="fused", on_nan=each) for each in policies}
    seconds: dict[str, list[float]] = {each: [] for each in policies}
    for trainer in trainers.values():
        trainer.fit(**work.given(), verbose=0, epochs=1)  # traces
    for number in range(rounds):
        say(f"the mlp that skips NaN, round {number + 1} of {rounds}")
        for each, trainer in trainers.items():
            began = time.perf_counter()
            trainer.fit(**work.given(), verbose=0, until=f"{steps} steps")
            seconds[each].append(time.perf_counter() - began)
    return {"steps": steps, "seconds": seconds}


def calls(rounds: int) -> dict[str, Any]:
    """Return the seconds outside the steps of calls of fit: the example `unet`, epoch by epoch."""
    import loopwright as lw
    import unet
    from loopwright.events import Trained

    dataset = unet.experiment(quick=True).fit["x"]
    trainer = lw.Trainer(unet.make_task, plan="graph")
    trainer.fit(dataset, verbose=0, epochs=1)  # traces
    seconds = list[float]()
    for number in range(rounds):
        say(f"a call of fit on a shuffled stream, round {number + 1} of {rounds}")
        began = time.perf_counter()
        events = list(trainer.events(dataset, verbose=0, epochs=1))
        whole = time.perf_counter() - began
        seconds.append(whole - sum(e.seconds for e in events if isinstance(e, Trained)))
    return {"seconds": seconds}


@contextlib.contextmanager
def _terminal() -> Iterator[None]:
    """Use a real terminal as standard output, and restore the previous one afterwards."""
    master, slave = pty.openpty()
    # Another process reads it, as with a terminal in a window.
    reader = subprocess.Popen(
        ["cat"], stdin=master, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    os.close(master)
    before = sys.stdout
    os.environ.setdefault("TERM", "xterm-256color")
    try:
        with os.fdopen(slave, "w", encoding="utf-8") as screen:
            sys.stdout = screen
            try:
                yield
            finally:
                sys.stdout = before
    finally:
        reader.wait()


def render(found: dict[str, Any]) -> str:
    """Return the report: one row for each model, and one for each of the other figures."""
    rows = []
    for key in CASES:
        one = found[key]
        on, off = min(one["seconds"]["on"]), min(one["seconds"]["off"])
        once = max(0.0, min(one["once"]["on"]) - min(one["once"]["off"]))
        rows.append(
            [
                f'{key}, plan="{one["plan"]}", {one["steps"]:,} steps, '
                f'save_every="{one["save_every"]}"',
                f"{off:.2f} s",
                f"{on:.2f} s",
                f"{on / off - 1:+.1%}",
                f"{MOST[key]:.0%}",
                f"{once:.2f} s",
                f"{(on - once) / off - 1:+.1%}",
            ]
        )
    head = ["case", "all off", "all on", "cost", "at most", "fixed, at start and end", "per step"]
    heading = f"The cost of everything around the step. {reports.measured_on()}"
    skip, call = found["skip"], found["call"]
    raises, skips = min(skip["seconds"]["raise"]), min(skip["seconds"]["skip"])
    others = [
        [
            f'on_nan="skip", the mlp, plan="fused", {skip["steps"]:,} steps',
            f"{skips / raises - 1:+.1%} ({skips:.2f} s against {raises:.2f} s)",
            f"{MOST['skip']:.0%}",
        ],
        [
            "a call of fit on a shuffled stream (the example unet), outside its steps",
            f"{min(call['seconds']):.3f} s",
            f"{MOST['call']:.2f} s",
        ],
    ]
    tables = [reports.table(head, rows), reports.table(["case", "cost", "at most"], others)]
    return "\n\n".join([heading, *tables]) + "\n"
