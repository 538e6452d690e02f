"""Measure contenders in rounds of equal length, in turns; no TensorFlow."""

import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.outcomes import Measured

_MOST_GROWTH = 16

Train = Callable[[int], object]
"""Train that many epochs."""


@dataclass(frozen=True)
class Ready:
    """A contender that is about to train."""

    train: Train
    found: Callable[[], dict[str, Any]] = dict
    """Settings that the contender chose itself, after training: fields of `Measured`."""


@dataclass(frozen=True)
class Contender:
    """One way to train a workload; a column shows its best contender."""

    column: str
    prepare: Callable[[], Ready]
    setting: str = ""


def take_turns(
    chosen: Sequence[Contender], *, steps_per_epoch: int, rounds: int, round_seconds: float
) -> list[Measured]:
    """Return the steps per second of each contender; all take turns in this process.

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
    """Return how many epochs take about `round_seconds`, by training more and more of them."""
    return fitting_count(*a_round(train, 1, round_seconds, clock), round_seconds)


def a_round(
    train: Train,
    epochs: int,
    round_seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[int, float]:
    """Train until one call took half of `round_seconds`; return its epochs and its seconds."""
    while True:
        began = clock()
        train(epochs)
        seconds = clock() - began
        if seconds >= round_seconds / 2:
            return epochs, seconds
        # A call has a fixed cost, so that a short one says little about longer ones.
        epochs = min(_MOST_GROWTH * epochs, fitting_count(epochs, seconds, round_seconds))


def fitting_count(count: int, seconds: float, wanted_seconds: float) -> int:
    """Return how many take at least `wanted_seconds`, if `count` of them took `seconds`."""
    return max(1, math.ceil(count * wanted_seconds / max(seconds, 1e-9)))


def in_words(error: Exception) -> str:
    """Return the first line of an error."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:300]}"


def say(text: str) -> None:
    """Print progress to stderr, apart from the results."""
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
    """Replace the training of a contender that could not be prepared."""
