"""Warnings about a step, each with an id by which a person can silence it."""

import contextlib
from collections.abc import Collection, Iterator
from typing import Literal, get_args

from loopwright.errors import ConfigurationError, StepWarning, message
from loopwright.warning_places import warn_at_call

WarningId = Literal[
    "baked-in-array",
    "broadcast",
    "constant-inputs",
    "constant-labels",
    "constant-loss",
    "constant-output",
    "exploding-loss",
    "idle-metric",
    "inference-mode",
    "large-batch",
    "logits",
    "no-gradient",
    "no-update",
    "python-side-effect",
    "shared-rows",
    "shared-variables",
    "sorted-labels",
    "swapped-arguments",
    "unreduced-loss",
    "unrolled-loop",
    "unsavable-layer",
    "unscaled-images",
    "unused-losses",
    "wrong-metric",
    "zero-gradients",
    "zero-learning-rate",
]
"""What each warns of is told in `docs/debugging.md`."""

_silenced: list[frozenset[str]] = []


def warn(id: WarningId, text: str) -> None:
    """Warn about something that is probably a mistake, unless its id is silenced."""
    if not any(id in ids for ids in _silenced):
        text += f'\n  silence: Trainer(..., silence=["{id}"]), if it is meant'
        warn_at_call(StepWarning(text, id=id))


@contextlib.contextmanager
def silenced(ids: Collection[str]) -> Iterator[None]:
    """Silence these ids in the whole process: replicas are traced in threads of their own."""
    _silenced.append(frozenset(ids))
    try:
        yield
    finally:
        _silenced.pop()


def require_known(ids: Collection[str]) -> frozenset[str]:
    """Return the ids; raise if one of them is unknown.

    >>> sorted(require_known(["broadcast"]))
    ['broadcast']
    """
    known = get_args(WarningId)
    given = [ids] if isinstance(ids, str) else list(ids)
    unknown = [id for id in given if id not in known]
    if unknown or isinstance(ids, str):
        raise ConfigurationError(
            message(
                f"Unknown warning {unknown[0]!r} in silence."
                if unknown
                else "silence is a list of ids.",
                expected=f"a list of: {', '.join(known)}",
                received=f"silence={ids!r}",
                do="take the id from the last line of the warning",
            )
        )
    return frozenset(given)
