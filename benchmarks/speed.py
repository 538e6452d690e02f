"""Measure steps per second of Loopwright and its peers on every workload."""

import dataclasses
import functools
import os
import tempfile
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from benchmarks import processes, reports
from benchmarks.data import DATA, HEAVY
from benchmarks.entrants import Entrant, command, entrants, environment, missing_peers
from benchmarks.measuring import say
from benchmarks.outcomes import LOOPWRIGHT_BEST, MATMUL, Measured, Outcome
from benchmarks.speed_report import rates, render
from benchmarks.turns import Process, Start, Turns, take_turns

KEYS = tuple(key for key in DATA if key != MATMUL)
_WITH_PROGRESS = ("mlp", "cnn")
_HEAVY_SETTLE = 3
"""How many times as long Loopwright has to choose where a step takes about a second."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--only", choices=KEYS, action="append", help="may be repeated")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--round-seconds", type=float, default=0.8, help="duration of a round of each contender"
    )
    parser.add_argument(
        "--settle-seconds",
        type=float,
        default=25.0,
        help=f"time for Loopwright to choose its plan; {_HEAVY_SETTLE} times that: {HEAVY}",
    )
    parser.add_argument(
        "--prepare-seconds", type=float, default=600.0, help="a process that takes longer is out"
    )
    parser.add_argument("--no-peers", action="store_true", help="leave PyTorch and JAX out")


def run(arguments: Namespace) -> str:
    """Measure the machine and each workload, and return the report."""
    keys = arguments.only or KEYS
    missing = ["PyTorch", "JAX"] if arguments.no_peers else missing_peers()
    flops = _counted(keys)
    machine, versions = _outcome(MATMUL, arguments, missing)
    size = len(DATA[MATMUL]().x[0])
    machine = dataclasses.replace(machine, step_flops=2.0 * size**3)
    outcomes: list[Outcome] = []
    for key in keys:
        outcome, found = _outcome(key, arguments, missing)
        versions |= found
        outcomes.append(_with_progress(dataclasses.replace(outcome, step_flops=flops.get(key))))
        say(rates(outcomes).splitlines()[-1])
    report = render(outcomes, machine, arguments.rounds, versions, missing)
    into = reports.directory(arguments)
    data = {
        "measured_on": reports.measured_on(versions),
        "rounds": arguments.rounds,
        "round_seconds": arguments.round_seconds,
        "settle_seconds": arguments.settle_seconds,
        "versions": versions,
        "missing_peers": missing,
        "machine": _as_json(machine),
        "workloads": [_as_json(outcome) for outcome in outcomes],
    }
    reports.save(into, "speed", report, data)
    if into is not None:
        from benchmarks.chart import draw

        draw(outcomes, into / "speed.png")
    return report


def progress(key: str, plan: str, epochs: int) -> float:
    """Return the share of a run's time that the progress bar takes."""
    from benchmarks.contenders import progress_share
    from benchmarks.workloads import WORKLOADS

    return progress_share(WORKLOADS[key](), plan, epochs)


def _outcome(key: str, arguments: Namespace, missing: list[str]) -> tuple[Outcome, dict[str, str]]:
    say(f"speed: {key}")
    settle_seconds = arguments.settle_seconds * (_HEAVY_SETTLE if key in HEAVY else 1)
    cores = os.cpu_count() or 1
    with tempfile.TemporaryDirectory() as scratch:
        starts = [
            Start(
                one.name,
                functools.partial(_process, one, key, settle_seconds, Path(scratch), place),
                one.shown,
                one.prepares_alone,
            )
            for place, one in enumerate(entrants(key, cores, missing))
        ]
        turns = take_turns(
            starts,
            rounds=arguments.rounds,
            round_seconds=arguments.round_seconds,
            cores=cores,
            prepare_seconds=arguments.prepare_seconds,
        )
    _say_failures(turns)
    name = DATA[key]().name
    outcome = Outcome(key, name, turns.measured, waiting_share=turns.waiting_share)
    return outcome, dict(turns.versions)


def _process(
    entrant: Entrant, key: str, settle_seconds: float, scratch: Path, place: int
) -> Process:
    cache = scratch / f"cache-{place}"
    cache.mkdir()
    log = scratch / f"{place}.log"
    return Process(command(entrant, key, settle_seconds), environment(entrant, cache), log)


def _say_failures(turns: Turns) -> None:
    for one in turns.measured:
        if one.failure is not None:
            say(f"{one.column} {one.setting}: {one.failure}")


def _counted(keys: tuple[str, ...]) -> dict[str, float]:
    try:
        return processes.call("benchmarks.flops:of_workloads", keys=list(keys))
    except RuntimeError as error:
        say(f"floating-point operations were not counted: {error}")
        return {}


def _with_progress(outcome: Outcome) -> Outcome:
    plain = [
        one
        for one in outcome.measured
        if one.column == LOOPWRIGHT_BEST and one.best and "oneDNN" not in one.setting
    ]
    if outcome.key not in _WITH_PROGRESS or not plain:
        return outcome
    best = max(plain, key=lambda one: one.best or 0)
    epochs = max(1, best.steps_per_round // DATA[outcome.key]().steps_per_epoch)
    arguments = {"key": outcome.key, "plan": best.setting, "epochs": epochs}
    try:
        share = processes.call("benchmarks.speed:progress", **arguments)
    except RuntimeError as error:
        say(f"the progress bar was not measured: {error}")
        return outcome
    return dataclasses.replace(outcome, progress_share=share)


def _as_json(outcome: Outcome) -> dict[str, Any]:
    """Return the outcome with the spread of each contender's rounds."""
    return dataclasses.asdict(outcome) | {"measured": [_with_spread(o) for o in outcome.measured]}


def _with_spread(one: Measured) -> dict[str, Any]:
    return dataclasses.asdict(one) | {"spread": one.spread}
