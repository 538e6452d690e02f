"""Rounds of equal length in which all contenders take turns; no TensorFlow."""

import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.outcomes import Measured

_MOST_GROWTH = 16

Train = Callable[[int], object]
"""Trains that many epochs."""


@dataclass(frozen=True)
class Ready:
    """A contender that is about to train."""

    train: Train
    found: Callable[[], dict[str, Any]] = dict
    """What it chose by itself, once it has trained: fields of `Measured`."""


@dataclass(frozen=True)
class Contender:
    """One way to train a workload; of those that share a column the best is shown."""

    column: str
    prepare: Callable[[], Ready]
    setting: str = ""


def take_turns(
    chosen: Sequence[Contender], *, steps_per_epoch: int, rounds: int, round_seconds: float
) -> list[Measured]:
    """Steps per second of each contender, all of them taking turns in this process.

    A contender that fails is out; why is kept.
    """
    measured: list[Measured] = []
    trainings: list[tuple[Ready, int]] = []
    for contender in chosen:
        say(f"preparing {contender.column} {contender.setting}")
        one = Measured(contender.column, contender.setting)
        ready, epochs = Ready(_out), 0
        try:
            ready = contender.prepare()
            ready.train(1)  # traces, builds, fills caches
            epochs = calibrated_epochs(ready.train, round_seconds)
        except Exception as error:
            one = replace(one, failure=in_words(error))
        measured.append(replace(one, steps_per_round=epochs * steps_per_epoch))
        trainings.append((ready, epochs))
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}")
        measured = [
            one if one.failure is not None else _with_round(one, ready, epochs)
            for one, (ready, epochs) in zip(measured, trainings, strict=True)
        ]
    return measured


def calibrated_epochs(
    train: Train, round_seconds: float, clock: Callable[[], float] = time.perf_counter
) -> int:
    """How many epochs last about `round_seconds`, found by training ever more of them."""
    epochs = 1
    while True:
        began = clock()
        train(epochs)
        seconds = clock() - began
        fitting = fitting_count(epochs, seconds, round_seconds)
        if seconds >= round_seconds / 2:
            return fitting
        # A call has a fixed cost, so that a short one says little about longer ones.
        epochs = min(_MOST_GROWTH * epochs, fitting)


def fitting_count(count: int, seconds: float, wanted_seconds: float) -> int:
    """How many last at least `wanted_seconds`, if `count` of them took `seconds`."""
    return max(1, math.ceil(count * wanted_seconds / max(seconds, 1e-9)))


def in_words(error: Exception) -> str:
    """The first line of what went wrong."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:300]}"


def say(text: str) -> None:
    """Shows where a long measurement is, apart from its results."""
    print(f"{time.strftime('%H:%M:%S')} {text.strip()}", file=sys.stderr, flush=True)


def _with_round(one: Measured, ready: Ready, epochs: int) -> Measured:
    try:
        began = time.perf_counter()
        ready.train(epochs)
        rate = one.steps_per_round / (time.perf_counter() - began)
        return replace(one, rates=(*one.rates, rate), **ready.found())
    except Exception as error:
        return replace(one, failure=in_words(error))


def _out(epochs: int) -> None:
    """Stands in for the training of a contender that could not be prepared."""
