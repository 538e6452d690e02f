"""A guard: a function that looks at one value and yields the mistakes it finds there."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, final

from loopwright.errors import LoopwrightError, StepError
from loopwright.step_warnings import WarningId, warn

T = TypeVar("T")


@final
@dataclass(frozen=True)
class Finding:
    """A mistake: the text of a warning or of an error."""

    text: str
    id: WarningId | None = None
    """The id of the warning; None for an error."""


@final
@dataclass(frozen=True)
class Guard(Generic[T]):
    """A function that looks at a value, and what it may find; it changes nothing."""

    look: Callable[[T], Iterable[Finding]]
    warns: tuple[WarningId, ...] = ()
    """The ids of its warnings; `step_warnings.declare` has their rows of `docs/debugging.md`."""
    refuses: tuple[str, ...] = ()
    """Words of its errors, as `docs/debugging.md` quotes them."""


def listed(texts: Sequence[str], most: int) -> str:
    """Return the first texts, and how many more there are.

    >>> listed(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    more = len(texts) - most
    return ", ".join(texts[:most]) + (f" and {more} more" if more > 0 else "")


def examine(
    guards: Iterable[Guard[Any]], seen: Any, *, error: type[LoopwrightError] = StepError
) -> None:
    """Let each guard look at a value: warn of what it finds, or raise `error`."""
    for guard in guards:
        for finding in guard.look(seen):
            if finding.id is None:
                raise error(finding.text) from None
            warn(finding.id, finding.text)
