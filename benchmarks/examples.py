"""Compare examples with the same models in hand-written loops."""

import dataclasses
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import Any

from benchmarks import processes, reports
from benchmarks.measuring import Contender, Ready, say, take_turns
from benchmarks.outcomes import HAND, LOOPWRIGHT, Outcome, outcome_from, ratio

KEYS = ("gan", "unet", "seq2seq")
_LEGEND = (
    "By hand: `for batch in dataset: loss = train_step(*batch)`, with the step a `tf.function` and "
    "the dataset shuffled, batched and prefetched; `unet` reads the example's own pipeline both "
    "times. Loopwright chooses its plan automatically."
)


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--only", choices=KEYS, action="append", help="may be repeated")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument(
        "--round-seconds", type=float, default=10.0, help="duration of a round of each contender"
    )
    parser.add_argument(
        "--settle-seconds", type=float, default=60.0, help="time for Loopwright to choose its plan"
    )


def run(arguments: Namespace) -> str:
    """Measure each example in its own process and return the report."""
    settings = {
        "rounds": arguments.rounds,
        "round_seconds": arguments.round_seconds,
        "settle_seconds": arguments.settle_seconds,
    }
    outcomes = [_outcome(key, settings) for key in arguments.only or KEYS]
    report = render(outcomes, arguments.rounds)
    data: dict[str, Any] = {"measured_on": reports.measured_on(), **settings}
    data["examples"] = [dataclasses.asdict(outcome) for outcome in outcomes]
    reports.save(reports.directory(arguments), "examples", report, data)
    return report


def measure(key: str, rounds: int, round_seconds: float, settle_seconds: float) -> dict[str, Any]:
    """Return the outcome of one example as JSON values."""
    import importlib

    example = importlib.import_module(key)
    fit = {name: example.experiment().fit.get(name) for name in ("x", "y", "batch_size")}
    measured = take_turns(
        [
            Contender(HAND, lambda: _hand(key, fit)),
            Contender(LOOPWRIGHT, lambda: _loopwright(example, fit, settle_seconds)),
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
    table = reports.table(["example", HAND, LOOPWRIGHT, "ratio"], rows)
    return "\n\n".join([heading, table, _LEGEND]) + "\n"


def _outcome(key: str, settings: dict[str, Any]) -> Outcome:
    say(f"examples: {key}")
    try:
        return outcome_from(processes.call("benchmarks.examples:measure", key=key, **settings))
    except RuntimeError as error:
        return Outcome(key, key, failure=str(error))


def _dataset(fit: dict[str, Any]) -> Any:
    """Return the data in a typical `tf.data` pipeline, or in that of the example."""
    import tensorflow as tf

    if isinstance(fit["x"], tf.data.Dataset):
        return fit["x"]
    arrays = (fit["x"],) if fit["y"] is None else (fit["x"], fit["y"])
    dataset = tf.data.Dataset.from_tensor_slices(arrays).shuffle(8192, seed=0)
    return dataset.batch(fit["batch_size"]).prefetch(tf.data.AUTOTUNE)


def _hand(key: str, fit: dict[str, Any]) -> Ready:
    import tensorflow as tf

    from benchmarks.hand_loops import STEPS

    dataset = _dataset(fit)
    train_step = tf.function(STEPS[key](), reduce_retracing=True)

    def train(epochs: int) -> None:
        for _ in range(epochs):
            total = 0.0
            for batch in dataset:
                total += float(train_step(*batch))

    return Ready(train)


def _loopwright(example: Any, fit: dict[str, Any], settle_seconds: float) -> Ready:
    import loopwright as lw
    from benchmarks.contenders import short_word

    trainer = lw.Trainer(example.make_task)
    trainer.fit(**fit, until=f"{settle_seconds:.3f} seconds", verbose=0)
    return Ready(
        lambda epochs: trainer.fit(**fit, epochs=epochs, verbose=0),
        lambda: {"setting": short_word(trainer.plan), "notes": trainer.plan_history.notes},
    )
