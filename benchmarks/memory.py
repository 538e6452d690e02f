"""Measure resident memory during a long run of the mlp: it must not grow."""

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
    parser.add_argument("--steps", type=int, default=200_000, help="steps of the default run")
    parser.add_argument("--other-steps", type=int, default=50_000, help="steps of the other runs")


def run(arguments: Namespace) -> str:
    """Measure each run in its own process and return the report."""
    sampled: dict[str, list[list[float]]] = {}
    for number, (name, how) in enumerate(_RUNS.items()):
        steps = arguments.other_steps if number else arguments.steps
        sampled[name] = processes.call("benchmarks.memory:sample", steps=steps, **how)
    report = render(sampled)
    data = {"measured_on": reports.measured_on(), "megabytes_after_steps": sampled}
    reports.save(reports.directory(arguments), "memory", report, data)
    return report


def sample(steps: int, plan: str | None, is_pipeline: bool) -> list[list[float]]:
    """Return pairs of steps and resident megabytes, at equal intervals."""
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
    """Return the resident megabytes of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def render(sampled: dict[str, list[list[float]]]) -> str:
    """Return the report: a row per run with the memory after 10%, after 50%, at the end."""
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
