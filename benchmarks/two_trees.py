"""Compare two source trees of Loopwright: `python -m benchmarks.two_trees OLD_SRC NEW_SRC`.

Three processes stay open, one with the new tree and two with the old one: the second shows how
much the same code varies. They take turns for each row and round, so that noise hits all alike.
"""

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

import keras
import numpy as np
import tensorflow as tf

SECONDS_PER_CALL = 1.0


def rows() -> dict[str, tuple[Callable[[], Any], dict[str, Any]]]:
    """The workloads by name: a trainer, and what to fit."""
    import loopwright as lw  # of the tree that PYTHONPATH names

    rng = np.random.default_rng(0)
    x = rng.normal(size=(3200, 20)).astype("float32")
    images = rng.normal(size=(640, 28, 28, 1)).astype("float32")
    classes = rng.integers(0, 10, 640)
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(32).cache()

    def mlp() -> keras.Model:
        return keras.Sequential(
            [
                keras.Input((20,)),
                *(keras.layers.Dense(64, "relu") for _ in "ab"),
                keras.layers.Dense(1),
            ]
        )

    def cnn() -> keras.Model:
        convolutions = [keras.layers.Conv2D(16, 3, activation="relu") for _ in "ab"]
        return keras.Sequential(
            [
                keras.Input((28, 28, 1)),
                *convolutions,
                keras.layers.Flatten(),
                keras.layers.Dense(10),
            ]
        )

    def task(model: keras.Model, loss: Any) -> lw.Supervised:
        return lw.Supervised(model, loss, keras.optimizers.Adam(1e-3))

    def compiled() -> keras.Model:
        model = mlp()
        model.compile("adam", "mse")
        return model

    sparse = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    arrays = {"x": x, "y": x[:, :1], "batch_size": 32}
    return {
        "mlp, fused": (lambda: lw.Trainer(task(mlp(), "mse"), plan="fused"), arrays),
        "mlp, graph": (lambda: lw.Trainer(task(mlp(), "mse"), plan="graph"), arrays),
        "mlp, tf.data": (lambda: lw.Trainer(task(mlp(), "mse"), plan="graph"), {"x": data}),
        "compiled Keras model": (lambda: lw.Trainer(compiled(), plan="graph"), arrays),
        "mlp, validation": (
            lambda: lw.Trainer(task(mlp(), "mse"), plan="graph"),
            {**arrays, "validation_data": (x, x[:, :1])},
        ),
        "cnn, graph": (
            lambda: lw.Trainer(task(cnn(), sparse), plan="graph"),
            {"x": images, "y": classes, "batch_size": 64},
        ),
    }


def serve() -> None:
    """Train the row that is named on each line of the input; print its steps per second."""
    made, epochs = dict[str, Any](), dict[str, int]()
    for line in sys.stdin:
        name = line.strip()
        build, options = rows()[name]
        if name not in made:
            keras.utils.set_random_seed(0)
            made[name] = build()
            made[name].fit(**options, epochs=2, verbose=0)
            began = time.perf_counter()
            made[name].fit(**options, epochs=2, verbose=0)
            took = time.perf_counter() - began
            epochs[name] = max(2, round(2 * SECONDS_PER_CALL / took))
        before, began = int(made[name].task.step), time.perf_counter()
        made[name].fit(**options, epochs=epochs[name], verbose=0)
        rate = (int(made[name].task.step) - before) / (time.perf_counter() - began)
        print(f"RATE {rate}", flush=True)


@final
class Contender:
    """A process with one source tree."""

    def __init__(self, source: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": f"{source}:{Path(__file__).parent.parent}"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.two_trees", "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**environment, "TF_CPP_MIN_LOG_LEVEL": "3"},
            text=True,
        )

    def rate(self, row: str) -> float:
        """Return the steps per second of one call of `fit`."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{row}\n")
        process.stdin.flush()
        for line in process.stdout:
            if line.startswith("RATE "):
                return float(line.split()[1])
        raise RuntimeError(f"the process ended with {process.wait()}")

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


def main() -> None:
    read = argparse.ArgumentParser(prog="python -m benchmarks.two_trees", description=__doc__)
    read.add_argument("trees", nargs="*", type=Path, help="the old and the new src directory")
    read.add_argument("--rounds", type=int, default=10)
    read.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = read.parse_args()
    if arguments.serve:
        serve()
        return
    old, new = arguments.trees
    print("| workload | old | new | new / old | old / old, spread |\n|---|---|---|---|---|")
    with contextlib.ExitStack() as stack:
        trees = {"old": old, "new": new, "again": old}
        contenders = {name: Contender(tree.resolve()) for name, tree in trees.items()}
        for contender in contenders.values():
            stack.callback(contender.close)
        for row in rows():
            found: dict[str, list[float]] = {name: [] for name in contenders}
            for number in range(arguments.rounds + 1):
                order = list(contenders)
                for name in order[number % 3 :] + order[: number % 3]:
                    rate = contenders[name].rate(row)
                    if number:  # the first round compiles
                        found[name].append(rate)
            ratios = [b / a for a, b in zip(found["old"], found["new"], strict=True)]
            same = [b / a for a, b in zip(found["old"], found["again"], strict=True)]
            medians = {name: statistics.median(rates) for name, rates in found.items()}
            spread = f"{statistics.median(same):.3f} ({min(same):.2f} to {max(same):.2f})"
            cells = [f"{medians['old']:,.0f}", f"{medians['new']:,.0f}"]
            print(f"| {row} | {' | '.join(cells)} | {statistics.median(ratios):.3f} | {spread} |")


if __name__ == "__main__":
    main()
