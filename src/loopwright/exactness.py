"""Exact resume: the argument `exact`, and the reasons why a run cannot resume exactly."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from loopwright.errors import ConfigurationError

Exact = Literal["warn", "require", "best_effort"]

BEST_EFFORT = 'pass exact="best_effort" to Trainer'
"""The remedy in every error about training that cannot be resumed exactly."""


@dataclass(frozen=True)
class Inexact:
    """The reasons why a run cannot be resumed exactly; none if it can.

    >>> print(Inexact(("shuffle() has no seed",)))
    not exactly resumable: shuffle() has no seed
    """

    reasons: tuple[str, ...] = ()
    loses_position: bool = False
    """Whether the position in the data cannot be saved, so that a resume restarts the epoch."""

    def __str__(self) -> str:
        return f"not exactly resumable: {'; '.join(self.reasons)}"

    def __bool__(self) -> bool:
        return bool(self.reasons)

    def with_reasons(self, more: Sequence[str]) -> "Inexact":
        """Return a copy with more reasons, without duplicates."""
        reasons = tuple(dict.fromkeys([*self.reasons, *more]))
        return Inexact(reasons, self.loses_position)


EXACT = Inexact()


def recorded_reasons(content: Mapping[str, Any]) -> list[str]:
    """Return the reasons in a checkpoint's content; none in checkpoints of earlier versions.

    >>> recorded_reasons({"inexact": {"reasons": ["shuffle() has no seed"]}})
    ['shuffle() has no seed']
    """
    return list(content.get("inexact", {}).get("reasons", ()))


def require_exact(given: Any) -> None:
    """Raise if `exact` is not one of the allowed values."""
    words = get_args(Exact)
    if given not in words:
        raise ConfigurationError(
            "Unknown value for exact.",
            expected=", ".join(f'"{word}"' for word in words),
            received=f"exact={given!r}",
            do='leave it out: "warn"; or pass "best_effort" for training that cannot be '
            "resumed exactly",
        )


def require_replayable(inexact: Inexact, on_nan: str) -> None:
    """Raise if `on_nan="rollback"` would have to repeat steps that are not repeatable."""
    if inexact and on_nan == "rollback":
        raise ConfigurationError(
            'on_nan="rollback" needs training that can be resumed exactly.',
            expected="steps that give the same numbers when they run again",
            received=str(inexact),
            do='pass on_nan="skip" or "raise", or remove the cause',
        )
