"""Resident memory during a long run of the mlp: it has to stay where it is."""

import os
from argparse import ArgumentParser, Namespace
from dataclasses import replace
from pathlib import Path

from benchmarks import processes, reports

_SAMPLES = 20
_RUNS = {
    "default, arrays": {"plan": None, "is_pipeline": False},
    'plan="graph", arrays': {"plan": "graph", "is_pipeline": False},
    "default, tf.data": {"plan": None, "is_pipeline": True},
}


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, default=200_000, help="of the run by default")
    parser.add_argument("--other-steps", type=int, default=50_000, help="of the other runs")


def run(arguments: Namespace) -> str:
    """Watches each run in a process of its own, and returns the report."""
    sampled: dict[str, list[list[float]]] = {}
    for number, (name, how) in enumerate(_RUNS.items()):
        steps = arguments.other_steps if number else arguments.steps
        sampled[name] = processes.call("benchmarks.memory:sample", steps=steps, **how)
    report = render(sampled)
    data = {"measured_on": reports.measured_on(), "megabytes_after_steps": sampled}
    reports.save(reports.directory(arguments), "memory", report, data)
    return report


def sample(steps: int, plan: str | None, is_pipeline: bool) -> list[list[float]]:
    """Pairs of steps done and megabytes resident, at equal distances."""
    import loopwright as lw
    from benchmarks.contenders import trainer_of
    from benchmarks.workloads import mlp

    work = replace(mlp(), is_pipeline=is_pipeline)
    trainer = trainer_of(work, plan)
    found: list[list[float]] = []
    for event in trainer.events(**work.given(), until=f"{steps} steps"):
        is_due = isinstance(event, lw.Trained) and event.step >= steps * (len(found) + 1) / _SAMPLES
        if is_due:
            found.append([event.step, resident_megabytes()])
    return found


def resident_megabytes() -> float:
    """What this process holds in memory now, as Linux counts it."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def render(sampled: dict[str, list[list[float]]]) -> str:
    """A row per run: after a tenth, after a half, at the end, and what was added."""
    header = ["run", "steps", "after 10%", "after 50%", "at the end", "10% to end", "50% to end"]
    rows: list[list[str]] = []
    for name, samples in sampled.items():
        steps, last = samples[-1]
        tenth, half = (_megabytes_at(samples, part * steps) for part in (0.1, 0.5))
        held = [f"{megabytes:,.0f} MB" for megabytes in (tenth, half, last)]
        added = [f"{last - megabytes:+.1f} MB" for megabytes in (tenth, half)]
        rows.append([name, f"{steps:,.0f}", *held, *added])
    heading = f"Resident memory of the mlp, batch 32. {reports.measured_on()}"
    return f"{heading}\n\n{reports.table(header, rows)}\n"


def _megabytes_at(samples: list[list[float]], step: float) -> float:
    return next(megabytes for done, megabytes in samples if done >= step)
