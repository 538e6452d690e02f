"""Measure steps per second of Loopwright and its peers on every workload."""

import dataclasses
import functools
import json
import os
import tempfile
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from benchmarks import processes, reports
from benchmarks.data import DATA, HEAVY
from benchmarks.entrants import Entrant, command, entrants, environment, missing_peers
from benchmarks.measuring import say
from benchmarks.outcomes import LOOPWRIGHT_BEST, MATMUL, Measured, Outcome, outcome_from
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
    parser.add_argument(
        "--keep-others",
        action="store_true",
        help="with --only: replace these rows of the results of today, and keep the others",
    )
    parser.add_argument("--no-peers", action="store_true", help="leave PyTorch and JAX out")


def run(arguments: Namespace) -> str:
    """Measure the machine and each workload, and return the report."""
    keys = arguments.only or KEYS
    missing = ["PyTorch", "JAX"] if arguments.no_peers else missing_peers()
    into = reports.directory(arguments)
    outcomes, versions = dict[str, Outcome](), dict[str, str]()
    if arguments.keep_others:
        into = into or reports.RESULTS
        outcomes, versions = kept(into)
    flops = _counted(keys)
    machine, found = _outcome(MATMUL, arguments, missing)
    versions = _joined(versions, found)
    size = len(DATA[MATMUL]().x[0])
    machine = dataclasses.replace(machine, step_flops=2.0 * size**3)
    for key in keys:
        outcome, found = _outcome(key, arguments, missing)
        versions = _joined(versions, found)
        outcomes[key] = _with_progress(dataclasses.replace(outcome, step_flops=flops.get(key)))
        say(rates([outcomes[key]]).splitlines()[-1])
    rows = [outcomes[key] for key in KEYS if key in outcomes]
    report = render(rows, machine, arguments.rounds, versions, missing)
    data = {
        "measured_on": reports.measured_on(versions),
        "day_and_machine": reports.day_and_machine(),
        "rounds": arguments.rounds,
        "round_seconds": arguments.round_seconds,
        "settle_seconds": arguments.settle_seconds,
        "versions": versions,
        "missing_peers": missing,
        "machine": _as_json(machine),
        "workloads": [_as_json(outcome) for outcome in rows],
    }
    reports.save(into, "speed", report, data)
    if into is not None:
        from benchmarks.chart import draw

        draw(rows, into / "speed.png")
    return report


def kept(results: Path) -> tuple[dict[str, Outcome], dict[str, str]]:
    """Return the rows that were measured on this day and machine, and the versions then."""
    data = json.loads((results / "speed.json").read_text())
    if data.get("day_and_machine") != reports.day_and_machine():
        raise RuntimeError(
            f"only rows of today and this machine can be kept, not those of {data['measured_on']}"
        )
    found = [outcome_from(row) for row in data["workloads"]]
    return {outcome.key: outcome for outcome in found}, data["versions"]


def _joined(versions: dict[str, str], found: dict[str, str]) -> dict[str, str]:
    for name, number in found.items():
        if versions.get(name, number) != number:
            raise RuntimeError(f"rows of {name} {versions[name]} and {number} cannot be compared")
    return {**versions, **found}


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
        if one.column == LOOPWRIGHT_BEST and one.best and "," not in one.setting
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
