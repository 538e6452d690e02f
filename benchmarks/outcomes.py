"""Measurements and their ratios: plain values, no TensorFlow."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

KERAS = "Keras fit"
KERAS_BEST = "Keras fit, best settings"
HAND = "hand loop"
PYTORCH = "PyTorch"
KERAS_JAX = "Keras on JAX"
JAX_SCAN = "JAX scan"
LOOPWRIGHT = "Loopwright"
LOOPWRIGHT_BEST = "Loopwright, best fixed choice"
COLUMNS = (KERAS, KERAS_BEST, HAND, PYTORCH, KERAS_JAX, JAX_SCAN, LOOPWRIGHT, LOOPWRIGHT_BEST)
PEERS = (KERAS, KERAS_BEST, HAND, PYTORCH, KERAS_JAX)
"""What trains a model as its user wrote it; the scan is another program, compared apart."""
MATMUL = "matmul"
"""Not a training: one large product of matrices a step, as a measure of the machine."""


@dataclass(frozen=True)
class Measured:
    """One contender on one workload; several of them may share a column."""

    column: str
    setting: str = ""
    rates: tuple[float, ...] = ()
    """Steps per second of each round."""
    steps_per_round: int = 0
    notes: tuple[str, ...] = ()
    """The settings that the contender chose."""
    failure: str | None = None

    @property
    def best(self) -> float | None:
        """Steps per second of the best round; noise only ever slows a round down."""
        return None if self.failure is not None else max(self.rates, default=None)

    @property
    def spread(self) -> tuple[float, float] | None:
        """Steps per second of the slowest and of the fastest round."""
        return (min(self.rates), max(self.rates)) if self.rates else None


@dataclass(frozen=True)
class Outcome:
    """All contenders on one workload."""

    key: str
    name: str
    measured: tuple[Measured, ...] = ()
    progress_share: float | None = None
    """The share of a run's time that the progress bar takes."""
    step_flops: float | None = None
    """Floating-point operations of a step's products and convolutions."""
    waiting_share: float | None = None
    """Seconds of a processor that waiting processes used, per second of the others' turns."""
    failure: str | None = None

    def best(self, *columns: str) -> Measured | None:
        """Return the fastest contender of these columns; None if none could run."""
        return best_of(one for one in self.measured if one.column in columns)

    def rate(self, *columns: str) -> float | None:
        """Return the steps per second of the fastest contender of these columns."""
        best = self.best(*columns)
        return None if best is None else best.best


def best_of(measured: Iterable[Measured]) -> Measured | None:
    """Return the contender with the highest rate."""
    return max((one for one in measured if one.best), key=lambda one: one.best or 0, default=None)


def ratio(value: float | None, base: float | None) -> float | None:
    """Return the ratio of a value to `base` if both are known."""
    return value / base if value and base else None


def outcome_from(data: dict[str, Any]) -> Outcome:
    """Return the outcome that `dataclasses.asdict` and JSON have serialized."""
    measured = tuple(_measured_from(one) for one in data["measured"])
    return Outcome(**{**data, "measured": measured})


def _measured_from(data: dict[str, Any]) -> Measured:
    own: dict[str, Any] = {name: value for name, value in data.items() if name != "spread"}
    own |= {name: tuple(own[name]) for name in ("rates", "notes")}
    return Measured(**own)
