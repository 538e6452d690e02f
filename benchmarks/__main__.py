"""Prints steps per second, best of several interleaved rounds: `make bench`.

Machines are noisy: compare figures of one run with each other only.
"""

import argparse
import datetime
import json
import os
import platform
import time
from pathlib import Path

import keras
import tensorflow as tf

from benchmarks.contenders import CONTENDERS, progress_share
from benchmarks.workloads import Workload, cnn, mlp

RESULTS = Path(__file__).parent / "results"


def measure(work: Workload, rounds: int) -> dict[str, float]:
    """Steps per second of each contender: the best round, all contenders taking turns."""
    chosen = {name: c for name, c in CONTENDERS.items() if name not in work.without}
    trainings = {name: prepare(work) for name, prepare in chosen.items()}
    for train in trainings.values():
        train()  # traces, builds, fills caches
    best = dict.fromkeys(trainings, 0.0)
    for _ in range(rounds):
        for name, train in trainings.items():
            began = time.perf_counter()
            train()
            best[name] = max(best[name], work.steps / (time.perf_counter() - began))
    return best


def table(results: dict[str, dict[str, float]]) -> str:
    """A Markdown table: steps per second, and the ratio to Keras `fit`."""
    names = list(CONTENDERS)
    lines = [f"| workload | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for workload, rates in results.items():
        base = rates[names[0]]
        cells = [
            f"{rates[name]:,.0f} ({rates[name] / base:.2f}x)" if name in rates else "-"
            for name in names
        ]
        lines.append(f"| {workload} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--only", choices=["mlp", "cnn"])
    arguments = parser.parse_args()
    workloads = {"mlp": mlp, "cnn": cnn}
    chosen = [arguments.only] if arguments.only else list(workloads)
    results: dict[str, dict[str, float]] = {}
    shares: list[str] = []
    for name in chosen:
        work = workloads[name]()
        results[work.name] = measure(work, arguments.rounds)
        shares.append(f"{progress_share(work):.1%} ({name})")
    machine = f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}"
    versions = f"TensorFlow {tf.__version__}, Keras {keras.__version__}"
    heading = f"Steps per second, best of {arguments.rounds} interleaved rounds, in brackets the "
    heading += f"ratio to Keras fit. {datetime.date.today()}, {machine}, {versions}."
    progress = f"The progress bar takes {' and '.join(shares)} of a run's time."
    report = f"{heading}\n\n{table(results)}\n\n{progress}\n"
    print(report)
    if not arguments.only:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "speed.md").write_text(report)
        (RESULTS / "speed.json").write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
