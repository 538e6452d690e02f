"""Sinks of others: one that fails must not cost a training."""

import warnings

from loopwright.errors import LoopwrightWarning
from loopwright.events import Event, Sink


def tolerated(sink: Sink) -> Sink:
    """A sink that fails warns once and never stops training."""
    failed = False

    def hear(event: Event) -> None:
        nonlocal failed
        if failed:
            return
        try:
            sink(event)
        except Exception as error:
            failed = True
            warnings.warn(
                f"The sink {sink!r} failed and hears nothing more: {error!r}",
                LoopwrightWarning,
                stacklevel=2,
            )

    return hear
