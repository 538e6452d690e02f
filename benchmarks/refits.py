"""Measure 200 times (build a model, fit it) in one process, as cross-validation does."""

import time
from argparse import ArgumentParser, Namespace
from typing import Any

from benchmarks import processes, reports
from benchmarks.measuring import say
from benchmarks.memory import resident_megabytes

_CONTENDERS = {
    "Loopwright": {"is_ours": True},
    'Loopwright, plan="fused" (XLA)': {"is_ours": True, "plan": "fused"},
    'Loopwright, plan="xla"': {"is_ours": True, "plan": "xla"},
    "Loopwright, without set_random_seed()": {"is_ours": True, "seeds": False},
    "Keras": {},
    "Keras, clear_session() after each": {"clears": True},
}
_FOLDS = 5
_PART = 20  # fits at the beginning and at the end that are compared


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--fits", type=int, default=200, help="fits in one process")
    parser.add_argument(
        "--only", choices=_CONTENDERS, action="append", help="may be repeated; default: all"
    )


def run(arguments: Namespace) -> str:
    """Measure each contender in its own process and return the report."""
    measured: dict[str, dict[str, list[float]]] = {}
    for name in arguments.only or _CONTENDERS:
        say(f"refits: {name}")
        how = _CONTENDERS[name]
        measured[name] = processes.call("benchmarks.refits:fit_often", fits=arguments.fits, **how)
    report = render(measured)
    data = {"measured_on": reports.measured_on(), "refits": measured}
    reports.save(reports.directory(arguments), "refits", report, data)
    return report


def fit_often(
    fits: int,
    is_ours: bool = False,
    plan: str | None = None,
    clears: bool = False,
    seeds: bool = True,
) -> dict[str, list[float]]:
    """Return the seconds of each fit, and the resident megabytes after it."""
    import keras
    import numpy as np

    from benchmarks.workloads import mlp

    work = mlp(rows=800)
    fold = np.arange(len(work.x)) % _FOLDS
    seconds, megabytes = list[float](), list[float]()
    for number in range(fits):
        held = fold == number % _FOLDS
        data = (work.x[~held], work.y[~held], (work.x[held], work.y[held]))
        began = time.perf_counter()
        if seeds:
            keras.utils.set_random_seed(number)
        _fit(work, data, is_ours=is_ours, plan=plan)
        if clears:
            keras.backend.clear_session()
        seconds.append(time.perf_counter() - began)
        megabytes.append(resident_megabytes())
    return {"seconds": seconds, "megabytes": megabytes}


def _fit(work: Any, data: tuple[Any, Any, Any], *, is_ours: bool, plan: str | None) -> None:
    x, y, validation = data
    arguments = {"validation_data": validation, "epochs": 2, "batch_size": 32, "verbose": 0}
    if is_ours:
        from benchmarks.contenders import trainer_of

        trainer_of(work, plan).fit(x, y, **arguments)
    else:
        work.keras_model().fit(x, y, **arguments)


def render(measured: dict[str, dict[str, list[float]]]) -> str:
    """Return the report: a row per contender with the beginning and the end."""
    header = ["", "fits", f"MB after {_PART}", "MB at the end", "MB per fit"]
    header += [f"s per fit, first {_PART}", f"last {_PART}", "ratio"]
    rows = [_row(name, found["seconds"], found["megabytes"]) for name, found in measured.items()]
    heading = (
        "The mlp 20-64-64-1 built and fitted on 640 rows for 2 epochs with validation, again and "
        "again in one process, with keras.utils.set_random_seed() before each fit. "
        f"{reports.measured_on()}"
    )
    return f"{heading}\n\n{reports.table(header, rows)}\n"


def _row(name: str, seconds: list[float], megabytes: list[float]) -> list[str]:
    part = min(_PART, len(seconds))
    first, last = (sum(each) / part for each in (seconds[:part], seconds[-part:]))
    before, after = megabytes[part - 1], megabytes[-1]
    growth = (after - before) / max(1, len(seconds) - part)
    memory = [f"{before:,.0f}", f"{after:,.0f}", f"{growth:+.2f}"]
    return [name, str(len(seconds)), *memory, f"{first:.3f}", f"{last:.3f}", f"{last / first:.2f}x"]
