"""Measure the time of a step with one and two workers, and the cost of communication."""

import json
import os
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks import processes, reports
from benchmarks.measuring import say
from loopwright.distribute.cluster import tf_config
from loopwright.distribute.supervisor import free_ports

_BYTES = 4
_COMPUTE = {"width": 512, "depth": 3, "batch_size": 8192}
_WIDTHS = (32, 128, 512, 1024, 2048)


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="duration of each round")


def run(arguments: Namespace) -> str:
    """Measure one and two workers, each with one thread, and return the report."""
    common = {"rounds": arguments.rounds, "seconds": arguments.seconds}
    jobs = [_COMPUTE, *({"width": width, "depth": 1, "batch_size": 2} for width in _WIDTHS)]
    found = {str(count): _measured(count, {"jobs": jobs, **common}) for count in (1, 2)}
    report = render(jobs, found)
    data = {"measured_on": reports.measured_on(), "jobs": jobs, "seconds_per_step": found}
    reports.save(reports.directory(arguments), "distribution", report, data)
    return report


def _measured(count: int, arguments: Mapping[str, Any]) -> list[float]:
    """Return the seconds per step of each job with this number of workers."""
    say(f"{count} worker(s)")
    function = "benchmarks.distribution:steps"
    command = [sys.executable, "-m", "benchmarks.processes", function, json.dumps(arguments)]
    addresses = [f"127.0.0.1:{port}" for port in free_ports(count)]
    with tempfile.TemporaryDirectory() as empty, ThreadPoolExecutor(count) as pool:
        plain = processes.environment(empty)
        started = [
            pool.submit(processes.run, command, {**plain, "TF_CONFIG": tf_config(addresses, i)})
            for i in range(count)
        ]
        chief, *_ = [each.result() for each in started]
        return chief


def steps(jobs: list[dict[str, int]], rounds: int, seconds: float) -> list[float]:
    """Return the best seconds per step of each job in this worker."""
    import keras
    import numpy as np
    import tensorflow as tf

    import loopwright as lw
    from loopwright.distribute import strategy as joining

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    # Before anything else: workers are connected once.
    strategy = joining.strategy_for("auto")
    best: list[float] = []
    for job in jobs:
        width, batch_size = job["width"], job["batch_size"]

        def make_task(width: int = width, depth: int = job["depth"]) -> lw.Task:
            layers = [keras.layers.Dense(width, "relu") for _ in range(depth)]
            model = keras.Sequential([keras.Input((width,)), *layers])
            return lw.Supervised(model, "mse", keras.optimizers.SGD(1e-3))

        x = np.zeros((4 * batch_size, width), "float32")
        trainer = lw.Trainer(make_task, strategy=strategy, plan="graph")
        given: dict[str, Any] = {"batch_size": batch_size, "verbose": 0}
        trainer.fit(x, x, until="20 steps", **given)  # traces
        taken: list[float] = []
        for _ in range(rounds):
            began, before = time.perf_counter(), int(trainer.task.step_counter.read_value())
            trainer.fit(x, x, until=f"{seconds} seconds", **given)
            done = int(trainer.task.step_counter.read_value()) - before
            taken.append((time.perf_counter() - began) / done)
        best.append(min(taken))
    return best


def parameters(job: Mapping[str, int]) -> int:
    """Return how many values a step exchanges."""
    return job["depth"] * job["width"] * (job["width"] + 1)


def line(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Return the offset (seconds) and slope (seconds per byte) through the first and last point.

    >>> line([(0.0, 1.0), (2.0, 2.0)])
    (1.0, 0.5)
    """
    (x0, y0), (x1, y1) = points[0], points[-1]
    slope = max((y1 - y0) / (x1 - x0), 0.0)
    return max(y0 - slope * x0, 0.0), slope


def reckoned(workers: int, fixed: float, per_byte: float, size: float) -> float:
    """Return the estimated seconds of a ring all-reduce, extrapolated from two workers.

    A ring has 2 (n - 1) rounds, in each of which every worker sends an n-th of the bytes.

    >>> reckoned(2, 1.0, 0.5, 4.0)
    3.0
    """
    rounds = 2 * (workers - 1)
    return rounds * fixed / 2 + rounds / workers * size * per_byte


def render(jobs: list[dict[str, int]], found: Mapping[str, list[float]]) -> str:
    """Return the report: measurements, limits, and an estimate for more workers."""
    one, two = found["1"], found["2"]
    sizes = [parameters(job) * _BYTES for job in jobs]
    costs = [(float(size), b - a) for size, a, b in zip(sizes, one, two, strict=True)][1:]
    fixed, per_byte = line(costs)
    measured = reports.table(
        ["exchanged", "one worker", "two workers", "cost of the exchange"],
        [
            [
                f"{size / 2**20:.3g} MB",
                f"{1000 * a:.2f} ms",
                f"{1000 * b:.2f} ms",
                f"{1000 * (b - a):.2f} ms",
            ]
            for size, a, b in list(zip(sizes, one, two, strict=True))[1:]
        ],
    )
    compute, whole = sizes[0], one[0]
    paper = [
        (count, whole / count + reckoned(count, fixed, per_byte, compute)) for count in (2, 8, 64)
    ]
    estimate = reports.table(
        ["workers", "estimated step", "estimated speed-up"],
        [[str(n), f"{1000 * t:.1f} ms", reports.times(whole / t)] for n, t in paper],
    )
    heavy = jobs[0]
    cores = os.cpu_count()
    return "\n".join(
        [
            f"Workers on one machine, one thread each. {reports.measured_on()}",
            "",
            f"Where computation dominates ({heavy['depth']} layers of {heavy['width']}, batches of "
            f"{heavy['batch_size']}, {compute / 2**20:.1f} MB exchanged in each step): "
            f"{1000 * whole:.1f} ms with one worker, {1000 * two[0]:.1f} ms with two, "
            f"{reports.times(whole / two[0])} as fast.",
            "",
            "With almost no computation, by size of the exchange:",
            "",
            measured,
            "",
            f"Each step costs {1000 * fixed:.2f} ms, independent of its size, and "
            f"{1000 * per_byte * 2**20:.2f} ms for each MB: gRPC copies every byte several times, "
            f"on the same {cores} cores that compute.",
            "",
            "More workers were not measured. **Estimate** for the step above, with the batch "
            "divided, a ring of 2 (n - 1) rounds, and a network as fast as between two processes "
            "of this machine:",
            "",
            estimate,
            "",
        ]
    )
