"""Compare automatic plan selection with fixed plans."""

import tempfile
import time
from argparse import ArgumentParser, Namespace
from typing import Any

from benchmarks import processes, reports
from benchmarks.measuring import say, take_turns

KEYS = ("mlp", "lstm", "cnn", "unet", "transformer", "dropout")
SHORT_SECONDS = 3.0


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--only", choices=KEYS, action="append", help="may be repeated")
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="duration of a run with the best fixed plan"
    )
    parser.add_argument("--runs", type=int, default=3, help="short runs of each kind; 0: none")


def run(arguments: Namespace) -> str:
    """Measure each run in its own process and return the report."""
    found: list[dict[str, Any]] = []
    for key in arguments.only or KEYS:
        try:
            found.append(_measure(key, arguments.seconds, arguments.runs))
        except RuntimeError as error:
            found.append({"workload": key, "failure": str(error)})
    report = render(found, arguments.seconds, arguments.runs)
    data = {"measured_on": reports.measured_on(), "workloads": found}
    reports.save(reports.directory(arguments), "tuning", report, data)
    return report


def plan_rates(key: str, seconds: float) -> dict[str, float]:
    """Return the steps per second of each fixed plan that works, after compiling."""
    from benchmarks.contenders import loopwright_plans
    from benchmarks.workloads import WORKLOADS

    work = WORKLOADS[key]()
    measured = take_turns(
        loopwright_plans(work),
        steps_per_epoch=work.steps_per_epoch,
        rounds=2,
        round_seconds=seconds,
    )
    return {one.setting: one.best for one in measured if one.best is not None}


def fit_once(key: str, steps: int, plan: str | None) -> dict[str, Any]:
    """Return the seconds of one `fit`, including tracing and compiling, in a new process."""
    from benchmarks.contenders import short_word, trainer_of
    from benchmarks.workloads import WORKLOADS

    work = WORKLOADS[key]()
    given = work.given()
    trainer = trainer_of(work, plan)
    began = time.perf_counter()
    trainer.fit(**given, until=f"{steps} steps", verbose=0)
    seconds = time.perf_counter() - began
    plans = [f"{short_word(c.plan)} after {c.step}" for c in trainer.plan_history.changes]
    return {"seconds": seconds, "plans": plans, "notes": trainer.plan_history.notes}


def render(found: list[dict[str, Any]], seconds: float, runs: int) -> str:
    """Return the report: long runs with and without a known plan, then short runs."""
    heading = f"Seconds of one `fit` of as many steps as the best fixed plan does in {seconds:.0f}"
    heading += f" s, including compilation. {reports.measured_on()}"
    header = ["workload", "steps", "best fixed plan", "default, first run"]
    header += ["fixed, best of 2", "default, best of 2 later runs"]
    long_rows: list[list[str]] = []
    short_rows: list[list[str]] = []
    for one in found:
        if "failure" in one:
            long_rows.append([one["workload"], "-", "-", "-", "-", "-"])
            short_rows.append([one["workload"], "-", "-", "-"])
            continue
        long, short = one["long"], one["short"]
        fixed = long["fixed"][0]["seconds"]
        cells = [f"{fixed:.1f} {one['best_plan']}", _against(long["first"]["seconds"], fixed)]
        fixed, second = (min(r["seconds"] for r in long[kind]) for kind in ("fixed", "second"))
        cells += [f"{fixed:.1f}", _against(second, fixed)]
        long_rows.append([one["workload"], f"{long['steps']:,}", *cells])
        if not runs:
            continue
        graph, first = (min(r["seconds"] for r in short[kind]) for kind in ("graph", "first"))
        cells = [f"{graph:.1f}", _against(first, graph)]
        short_rows.append([one["workload"], f"{short['steps']:,}", *cells])
    words = f"The same for the steps of plan `graph` in {SHORT_SECONDS:.0f} s, best of {runs}:"
    short_header = ["workload", "steps", "graph", "default, first run"]
    tables = [reports.table(header, long_rows)]
    tables += [words, reports.table(short_header, short_rows)] if runs else []
    return "\n\n".join([heading, *tables]) + "\n"


def _against(seconds: float, base_seconds: float) -> str:
    return f"{seconds:.1f} ({reports.times(seconds / base_seconds)})"


def _measure(key: str, seconds: float, runs: int) -> dict[str, Any]:
    say(f"tuning: {key}, the fixed plans")
    rates = processes.call("benchmarks.tuning:plan_rates", key=key, seconds=min(2.0, seconds))
    best = max(rates, key=lambda plan: rates[plan])
    steps = max(1, round(rates[best] * seconds))
    long: dict[str, Any] = {"steps": steps, "fixed": [], "second": []}
    # In turns, since machines are noisy.
    with tempfile.TemporaryDirectory() as cache:
        for number in range(2):
            long["fixed"].append(_once(key, steps, best))
            if not number:
                long["first"] = _once(key, steps, cache=cache)
            long["second"].append(_once(key, steps, cache=cache))
    short_steps = max(1, round(rates["graph"] * SHORT_SECONDS))
    short: dict[str, Any] = {"steps": short_steps, "graph": [], "first": []}
    for _ in range(runs):
        short["graph"].append(_once(key, short_steps, "graph"))
        short["first"].append(_once(key, short_steps))
    return {"workload": key, "plan_rates": rates, "best_plan": best, "long": long, "short": short}


def _once(
    key: str, steps: int, plan: str | None = None, cache: str | None = None
) -> dict[str, Any]:
    say(f"tuning: {key}, {steps:,} steps, plan {plan or 'default'}")
    return processes.call(
        "benchmarks.tuning:fit_once", cache_directory=cache, key=key, steps=steps, plan=plan
    )
