"""What a worker that is not the chief tells of a run: one log of its own."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final

from rich.console import Console

from loopwright import disk
from loopwright.events import Event, Sink
from loopwright.sinks.log import Lines
from loopwright.sinks.notify import tolerated


@final
class WorkerLog:
    """Lines like those of `train.log`, in `worker-1.log`; nothing of it is ever cut."""

    def __init__(self, directory: Path, worker: int, clock: Callable[[], float]) -> None:
        self._directory, self._name, self._clock = directory, f"worker-{worker}.log", clock
        self._log: Any = None
        self._show: Sink = lambda event: None

    def open(self, lengths: Mapping[str, int], *, is_new_leg: bool) -> None:
        """Goes on at the end of the file."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        handle = disk.opened(self._directory, self._name, flags)
        self._log = os.fdopen(handle, "a", encoding="utf-8")
        output = Console(file=self._log, width=200, force_terminal=False)
        self._show = tolerated(Lines(output, self._clock).show)

    def close(self) -> None:
        """Everything is in the file."""
        if self._log is not None:
            self._log.close()

    def __call__(self, event: Event) -> None:
        """Hears an event."""
        self._show(event)

    def lengths(self) -> dict[str, int]:
        """None: the run's own files are the chief's."""
        return {}

    def cut(self, lengths: Mapping[str, int]) -> None:
        """Nothing is forgotten."""

    def sync(self) -> None:
        """No checkpoint refers to it."""
