"""Speed of recipes, compared with hand-written loops for the same models."""

import dataclasses
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import Any

from benchmarks import processes, reports
from benchmarks.measuring import Contender, say, take_turns
from benchmarks.outcomes import HAND, LOOPWRIGHT, Outcome, outcome_from, ratio

KEYS = ("gan", "unet", "seq2seq")
_LEGEND = (
    "The hand loop is `for batch in dataset: loss = train_step(*batch)`, with the step a "
    "`tf.function` and the dataset shuffled, batched and prefetched; `unet` uses the recipe's "
    "pipeline in both cases. Loopwright chooses its plan itself."
)


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--only", choices=KEYS, action="append", help="repeatable")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--round-seconds", type=float, default=10.0, help="seconds per contender")
    parser.add_argument(
        "--settle-seconds", type=float, default=60.0, help="time for Loopwright to choose its plan"
    )


def run(arguments: Namespace) -> str:
    """Measure each recipe in its own process and return the report."""
    settings = {
        "rounds": arguments.rounds,
        "round_seconds": arguments.round_seconds,
        "settle_seconds": arguments.settle_seconds,
    }
    outcomes = [_outcome(key, settings) for key in arguments.only or KEYS]
    report = render(outcomes, arguments.rounds)
    data: dict[str, Any] = {"measured_on": reports.measured_on(), **settings}
    data["recipes"] = [dataclasses.asdict(outcome) for outcome in outcomes]
    reports.save(reports.directory(arguments), "recipes", report, data)
    return report


def measure(key: str, rounds: int, round_seconds: float, settle_seconds: float) -> dict[str, Any]:
    """Measure one recipe and return its outcome as JSON values."""
    import importlib

    import loopwright as lw
    from benchmarks.contenders import hand_loop, tuned_loopwright
    from benchmarks.hand_loops import STEPS

    recipe = importlib.import_module(f"loopwright.recipes.{key}")
    fit = {name: recipe.experiment().fit.get(name) for name in ("x", "y", "batch_size")}
    measured = take_turns(
        [
            Contender(HAND, lambda: hand_loop(_dataset(fit), STEPS[key]())),
            Contender(
                LOOPWRIGHT,
                lambda: tuned_loopwright(lw.Trainer(recipe.make_task), fit, settle_seconds),
            ),
        ],
        steps_per_epoch=sum(1 for _ in _dataset(fit)),
        rounds=rounds,
        round_seconds=round_seconds,
    )
    return dataclasses.asdict(Outcome(key, key, tuple(measured)))


def render(outcomes: Sequence[Outcome], rounds: int) -> str:
    """Return the report: steps per second of both, and their ratio."""
    heading = f"Steps per second, best of {rounds} interleaved rounds. {reports.measured_on()}"
    rows: list[list[str]] = []
    for outcome in outcomes:
        ours, by_hand = outcome.best(LOOPWRIGHT), outcome.rate(HAND)
        rate = None if ours is None else ours.best
        plan = "" if ours is None else ours.setting
        cells = [reports.count(by_hand), f"{reports.count(rate)} {plan}".strip()]
        rows.append([outcome.name, *cells, reports.times(ratio(rate, by_hand))])
    table = reports.table(["recipe", HAND, LOOPWRIGHT, "ratio"], rows)
    return "\n\n".join([heading, table, _LEGEND]) + "\n"


def _outcome(key: str, settings: dict[str, Any]) -> Outcome:
    say(f"recipes: {key}")
    try:
        return outcome_from(processes.call("benchmarks.recipes:measure", key=key, **settings))
    except RuntimeError as error:
        return Outcome(key, key, failure=str(error))


def _dataset(fit: dict[str, Any]) -> Any:
    """Return the recipe's own pipeline, or a usual one for its arrays."""
    import tensorflow as tf

    from benchmarks.workloads import pipeline_of

    return fit["x"] if isinstance(fit["x"], tf.data.Dataset) else pipeline_of(**fit)
