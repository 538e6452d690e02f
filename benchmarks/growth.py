"""Measure speed as data, model and run grow: Keras `fit` and Loopwright, the mlp."""

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks import processes, reports
from benchmarks.measuring import say, take_turns
from benchmarks.outcomes import KERAS, LOOPWRIGHT, Outcome, ratio

ROWS = (1_024, 10_240, 102_400, 1_024_000)
WIDTHS = (16, 64, 256, 1024)
STEPS = (100, 1_000, 10_000, 100_000)
_STEPS_PER_EPOCH = 100
_MOST_STEPS_PER_EPOCH = 640
_LONG_SECONDS = 5.0  # a run that long needs no repetition


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--round-seconds", type=float, default=1.0)
    parser.add_argument(
        "--settle-seconds", type=float, default=15.0, help="time for Loopwright to choose its plan"
    )
    parser.add_argument(
        "--most-seconds", type=float, default=60.0, help="skip runs that would take longer"
    )


def run(arguments: Namespace) -> str:
    """Measure each kind of growth in its own process and return the report."""
    common = {"rounds": arguments.rounds, "settle_seconds": arguments.settle_seconds}
    turns = {**common, "round_seconds": arguments.round_seconds}
    rows = processes.call("benchmarks.growth:by_rows", **turns)
    widths = processes.call("benchmarks.growth:by_width", **turns)
    steps = processes.call(
        "benchmarks.growth:by_steps", **common, most_seconds=arguments.most_seconds
    )
    data = {"rows": rows, "width": widths, "steps per fit": steps}
    report = render(data, arguments.most_seconds)
    reports.save(
        reports.directory(arguments),
        "growth",
        report,
        {"measured_on": reports.measured_on(), "steps_per_second": data},
    )
    return report


def by_rows(rounds: int, round_seconds: float, settle_seconds: float) -> list[dict[str, Any]]:
    """Return steps per second as the data grows. Short epochs keep the rounds short."""
    from benchmarks.workloads import mlp

    return [
        {"size": rows}
        | _rates(
            mlp(rows=rows, epoch_steps=min(rows // 32, _MOST_STEPS_PER_EPOCH)),
            rounds,
            round_seconds,
            settle_seconds,
        )
        for rows in ROWS
    ]


def by_width(rounds: int, round_seconds: float, settle_seconds: float) -> list[dict[str, Any]]:
    """Return steps per second as the layers grow."""
    from benchmarks.workloads import mlp

    return [
        {"size": width} | _rates(mlp(width=width), rounds, round_seconds, settle_seconds)
        for width in WIDTHS
    ]


def by_steps(rounds: int, settle_seconds: float, most_seconds: float) -> list[dict[str, Any]]:
    """Return steps per second of one `fit` as it gets longer, including start and end."""
    from benchmarks.contenders import keras_default, loopwright_default
    from benchmarks.workloads import mlp

    work = mlp(rows=32 * _STEPS_PER_EPOCH)
    chosen = (keras_default(work), loopwright_default(work, settle_seconds))
    trainings = {contender.column: contender.prepare() for contender in chosen}
    for ready in trainings.values():
        ready.train(1)
    points: list[dict[str, Any]] = []
    for steps in STEPS:
        say(f"growth: {steps} steps per fit")
        point: dict[str, Any] = {"size": steps}
        for column, ready in trainings.items():
            known = points[-1][column] if points else None
            if points and (known is None or steps / known > most_seconds):
                point[column] = None
                continue
            is_long = known is not None and steps / known > _LONG_SECONDS
            repetitions = 1 if is_long else rounds
            point[column] = max(_rate(ready.train, steps) for _ in range(repetitions))
        points.append(point | {"plan": trainings[LOOPWRIGHT].found()["setting"]})
    return points


def render(data: dict[str, list[dict[str, Any]]], most_seconds: float) -> str:
    """Return the report: three tables; for growing runs, the time of a step."""
    heading = f"Steps per second of the mlp 20-64-64-1, batch 32. {reports.measured_on()}"
    parts = [heading]
    for kind in ("rows", "width"):
        header = [kind, KERAS, LOOPWRIGHT, "ratio"]
        parts.append(reports.table(header, [_row(point, reports.count) for point in data[kind]]))
    words = "Microseconds per step of one `fit`, by its length"
    parts.append(f"{words} (not run: more than {most_seconds:.0f} s):")
    header = ["steps per fit", KERAS, LOOPWRIGHT, "ratio of speeds"]
    rows = [_row(point, _microseconds) for point in data["steps per fit"]]
    parts.append(reports.table(header, rows))
    return "\n\n".join(parts) + "\n"


def _row(point: dict[str, Any], shown: Callable[[float | None], str]) -> Sequence[str]:
    keras, ours = point[KERAS], point[LOOPWRIGHT]
    cells = [shown(keras), f"{shown(ours)} {point['plan']}", reports.times(ratio(ours, keras))]
    return [f"{point['size']:,}", *cells]


def _microseconds(rate: float | None) -> str:
    return reports.count(None if rate is None else 1e6 / rate)


def _rates(work: Any, rounds: int, round_seconds: float, settle_seconds: float) -> dict[str, Any]:
    from benchmarks.contenders import keras_default, loopwright_default

    say(f"growth: {work.name}, {len(work.x):,} rows")
    measured = take_turns(
        [keras_default(work), loopwright_default(work, settle_seconds)],
        steps_per_epoch=work.steps_per_epoch,
        rounds=rounds,
        round_seconds=round_seconds,
    )
    outcome = Outcome(work.key, work.name, tuple(measured))
    ours = outcome.best(LOOPWRIGHT)
    rates = {column: outcome.rate(column) for column in (KERAS, LOOPWRIGHT)}
    return rates | {"plan": ours.setting if ours else ""}


def _rate(train: Callable[[int], object], steps: int) -> float:
    began = time.perf_counter()
    train(steps // _STEPS_PER_EPOCH)
    return steps / (time.perf_counter() - began)
