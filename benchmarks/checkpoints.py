"""Measure the cost of saving: the cnn saved every 500 steps, and a checkpoint of 100 MB."""

import tempfile
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from benchmarks import processes, reports
from benchmarks.measuring import say

_MEGABYTE = 2**20


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, default=1000, help="steps of the cnn in each round")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--saves", type=int, default=8, help="checkpoints of the large model")


def run(arguments: Namespace) -> str:
    """Run each part in its own process and return the report."""
    found: dict[str, Any] = {
        "cnn": processes.call(
            "benchmarks.checkpoints:interval", steps=arguments.steps, rounds=arguments.rounds
        ),
        "large": processes.call("benchmarks.checkpoints:blocking", saves=arguments.saves),
        "policies": processes.call("benchmarks.checkpoints:policies", rounds=arguments.rounds),
    }
    report = render(found)
    data = {"measured_on": reports.measured_on(), **found}
    reports.save(reports.directory(arguments), "checkpoints", report, data)
    return report


def interval(steps: int, rounds: int) -> dict[str, Any]:
    """Return the seconds of the cnn with and without `save_every="500 steps"`, in turns."""
    import loopwright as lw
    from benchmarks.workloads import WORKLOADS

    work = WORKLOADS["cnn"]()
    seconds: dict[str, list[float]] = {"saved": [], "not saved": []}
    shares: list[float] = []
    with tempfile.TemporaryDirectory() as directory:
        for number in range(rounds):
            for kind, taken in seconds.items():
                say(f"{kind}, round {number + 1} of {rounds}")
                run_dir = Path(directory) / f"{kind}-{number}" if kind == "saved" else None
                trainer = lw.Trainer(work.task(), plan="graph", run_dir=run_dir)
                trainer.fit(**work.given(), until="100 steps", verbose=0)  # traces
                began, finished = time.perf_counter(), None
                for event in trainer.events(
                    **work.given(), until=f"{steps} steps", save_every="500 steps"
                ):
                    finished = event
                taken.append(time.perf_counter() - began)
                if run_dir is not None and isinstance(finished, lw.Finished):
                    shares.append(finished.spent["checkpoint"] / finished.seconds)
    return {"steps": steps, "seconds": seconds, "share_of_time_waiting": min(shares)}


def blocking(saves: int) -> dict[str, Any]:
    """Return how long a checkpoint of 100 MB blocks training, and the time of a copy in memory."""
    import keras
    import numpy as np

    import loopwright as lw

    width = 5120
    model = keras.Sequential([keras.Input((width,)), keras.layers.Dense(width, use_bias=False)])
    megabytes = width * width * 4 / _MEGABYTE
    x = np.zeros((8 * saves, width), "float32")
    held: list[float] = []
    with tempfile.TemporaryDirectory() as directory:
        trainer = lw.Trainer(
            lw.Supervised(model, "mse", keras.optimizers.SGD(0.01)), run_dir=directory, plan="graph"
        )
        for event in trainer.events(x, x, batch_size=8, save_every="1 step"):
            if isinstance(event, lw.Saved):
                held.append(event.seconds)
                time.sleep(0.6)  # until it is written, so that none waits for the one before
    values = np.asarray(model.get_weights()[0])
    copies: list[float] = []
    for _ in range(saves):
        began = time.perf_counter()
        _ = values.copy()
        copies.append(time.perf_counter() - began)
    return {"megabytes": megabytes, "held_up_seconds": held, "copy_seconds": copies}


def policies(rounds: int) -> dict[str, float]:
    """Return the best steps per second of the mlp with each `on_nan`, in turns."""
    import loopwright as lw
    from benchmarks.workloads import WORKLOADS

    work = WORKLOADS["mlp"]()
    best: dict[str, float] = {}
    trainers = {
        f"{plan}, {policy}": lw.Trainer(work.task(), plan=plan, on_nan=policy)
        for plan in ("graph", "fused")
        for policy in ("raise", "skip")
    }
    for number in range(rounds + 1):
        for name, trainer in trainers.items():
            steps = 20_000 if "fused" in name else 4_000
            began = time.perf_counter()
            trainer.fit(**work.given(), until=f"{steps} steps", verbose=0)
            if number:  # the first one traces and compiles
                rate = steps / (time.perf_counter() - began)
                best[name] = max(best.get(name, 0.0), rate)
    return best


def render(found: dict[str, Any]) -> str:
    """Return the report as Markdown."""
    cnn, large, rates = found["cnn"], found["large"], found["policies"]
    saved, plain = (min(cnn["seconds"][kind]) for kind in ("saved", "not saved"))
    held, copied = min(large["held_up_seconds"]), min(large["copy_seconds"])
    rows = [
        [
            'the cnn, save_every="500 steps"',
            f"{saved / plain - 1:+.1%} ({saved:.1f} s against {plain:.1f} s without a run_dir)",
            f"{cnn['share_of_time_waiting']:.2%} of the time spent waiting",
        ],
        [
            f"a checkpoint of {large['megabytes']:.0f} MB",
            f"blocks training for {1000 * held:.1f} ms",
            f"{held / copied:.2f}x the time of a copy in memory ({1000 * copied:.1f} ms)",
        ],
    ]
    for plan in ("graph", "fused"):
        raising, skipping = rates[f"{plan}, raise"], rates[f"{plan}, skip"]
        rows.append(
            [
                f'the mlp, plan="{plan}", on_nan="skip"',
                f"{skipping:,.0f} steps/s against {raising:,.0f}",
                f"{skipping / raising:.2f}x the speed",
            ]
        )
    heading = f"The cost of saving and skipping. {reports.measured_on()}"
    return f"{heading}\n\n{reports.table(['case', 'measured', 'relative'], rows)}\n"
