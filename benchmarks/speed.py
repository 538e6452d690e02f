"""Measure steps per second of every contender on every workload."""

import dataclasses
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import Any

from benchmarks import lightning_mlp, processes, reports
from benchmarks.measuring import say, take_turns
from benchmarks.outcomes import (
    COLUMNS,
    KERAS,
    KERAS_BEST,
    LIGHTNING,
    LOOPWRIGHT,
    LOOPWRIGHT_BEST,
    Measured,
    Outcome,
    outcome_from,
    present,
    ratio,
)

KEYS = ("cnn", "unet", "lstm", "transformer", "mlp", "dropout", "pipeline", "gan")
_WITH_PROGRESS = ("mlp", "cnn")
_LEGEND = (
    "Best settings of Keras: `steps_per_execution` 1 or 32, as graph or with `jit_compile=True` "
    "(xla). Loopwright chooses its plan automatically; the last column is the best fixed plan."
)


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--only", choices=KEYS, action="append", help="may be repeated")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--round-seconds", type=float, default=0.8, help="duration of a round of each contender"
    )
    parser.add_argument(
        "--settle-seconds", type=float, default=25.0, help="time for Loopwright to choose its plan"
    )


def run(arguments: Namespace) -> str:
    """Measure each workload in its own process and return the report."""
    outcomes = [_outcome(key, arguments) for key in arguments.only or KEYS]
    report = render(outcomes, arguments.rounds)
    into = reports.directory(arguments)
    settings = {"rounds": arguments.rounds, "round_seconds": arguments.round_seconds}
    settings["settle_seconds"] = arguments.settle_seconds
    data = {"measured_on": reports.measured_on(), **settings}
    data["workloads"] = [dataclasses.asdict(outcome) for outcome in outcomes]
    reports.save(into, "speed", report, data)
    if into is not None:
        from benchmarks.chart import draw

        draw(outcomes, into / "speed.png")
    return report


def measure(key: str, rounds: int, round_seconds: float, settle_seconds: float) -> dict[str, Any]:
    """Return the outcome of one workload as JSON values."""
    from benchmarks.contenders import contenders, progress_share
    from benchmarks.workloads import WORKLOADS

    work = WORKLOADS[key]()
    measured = take_turns(
        contenders(work, settle_seconds),
        steps_per_epoch=work.steps_per_epoch,
        rounds=rounds,
        round_seconds=round_seconds,
    )
    outcome = Outcome(key, work.name, tuple(measured))
    best = outcome.best(LOOPWRIGHT_BEST)
    if key in _WITH_PROGRESS and best is not None:
        epochs = best.steps_per_round // work.steps_per_epoch
        share = progress_share(work, best.setting, epochs)
        outcome = dataclasses.replace(outcome, progress_share=share)
    return dataclasses.asdict(outcome)


def render(outcomes: Sequence[Outcome], rounds: int) -> str:
    """Return the report: rates, ratios, the share of the progress bar."""
    heading = f"Steps per second, best of {rounds} interleaved rounds; in brackets: ratio to "
    parts = [f"{heading}Keras fit. {reports.measured_on()}", rates(outcomes), _LEGEND]
    if LIGHTNING in present(outcomes):
        parts.append(f"{LIGHTNING} ran in its own process, not in turns with the others.")
    parts.append(comparison(outcomes))
    shares = [(outcome.key, outcome.progress_share) for outcome in outcomes]
    said = [f"{share:.1%} ({key})" for key, share in shares if share is not None]
    if said:
        parts.append(f"The progress bar takes {reports.listed(said)} of a run's time.")
    return "\n\n".join(parts) + "\n"


def rates(outcomes: Sequence[Outcome]) -> str:
    """Return a table of steps per second with ratios to Keras `fit`."""
    columns = present(outcomes) or list(COLUMNS)
    rows = [[outcome.name, *(_cell(outcome, column) for column in columns)] for outcome in outcomes]
    return reports.table(["workload", *columns], rows)


def comparison(outcomes: Sequence[Outcome]) -> str:
    """Return a table of Loopwright's speed relative to the others."""
    bases = {
        "Keras fit": KERAS,
        "Keras fit, best settings": KERAS_BEST,
        "its own best fixed plan": LOOPWRIGHT_BEST,
    }
    rows = [
        [
            outcome.name,
            *(
                reports.times(ratio(outcome.rate(LOOPWRIGHT), outcome.rate(column)))
                for column in bases.values()
            ),
        ]
        for outcome in outcomes
    ]
    return reports.table(["Loopwright compared with", *bases], rows)


def _cell(outcome: Outcome, column: str) -> str:
    best = outcome.best(column)
    if best is None:
        return "-"
    times = reports.times(ratio(best.best, outcome.rate(KERAS)))
    return f"{reports.count(best.best)} ({times}) {best.setting}".strip()


def _outcome(key: str, arguments: Namespace) -> Outcome:
    say(f"speed: {key}")
    turns = {"rounds": arguments.rounds, "round_seconds": arguments.round_seconds}
    try:
        data = processes.call(
            "benchmarks.speed:measure",
            key=key,
            **turns,
            settle_seconds=arguments.settle_seconds,
        )
    except RuntimeError as error:
        return Outcome(key, key, failure=str(error))
    if key == "mlp" and lightning_mlp.is_installed():
        data["measured"] += _lightning(**turns)
    return outcome_from(data)


def _lightning(**turns: Any) -> list[dict[str, Any]]:
    try:
        return processes.call("benchmarks.lightning_mlp:measure", **turns)
    except RuntimeError as error:
        return [dataclasses.asdict(Measured(LIGHTNING, failure=str(error)))]
