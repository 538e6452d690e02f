"""The journal of a run: `metrics.jsonl`, one line for each event, in the order they happened.

    {"event": "epoch_ended", "time": 1763000000.0, "epoch": 0, "step": 18, ..., "metrics": {...}}

A run that goes on cuts it to what a checkpoint has seen, so that it tells of one continuous run.
"""

import contextlib
import json
import math
import os
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, final

from loopwright.errors import LoopwrightWarning
from loopwright.events import Event, Saved, Trained

_SECONDS_BETWEEN_TRAINED = 1.0


@final
class Journal:
    """A sink that writes lines; of many `Trained` in a second it writes one."""

    def __init__(self, file: Any, clock: Callable[[], float]) -> None:
        self._file, self._clock = file, clock
        self._last_trained = -math.inf

    def __call__(self, event: Event) -> None:
        """Hears an event."""
        if isinstance(event, Saved):
            return  # it comes after the checkpoint, which could not have seen it
        now = self._clock()
        if isinstance(event, Trained):
            if now - self._last_trained < _SECONDS_BETWEEN_TRAINED:
                return
            self._last_trained = now
        line = {"event": _snake(type(event).__name__), "time": round(now, 3), **asdict(event)}
        self._file.write(json.dumps(_plain(line), allow_nan=False).encode() + b"\n")

    def bytes(self) -> int:
        """How long the file is, with every line that was heard."""
        return self._file.tell()

    def cut(self, after_bytes: int) -> None:
        """Forgets the lines after the first `after_bytes` bytes: they are about to happen anew."""
        self._file.truncate(after_bytes)
        self._file.seek(0, os.SEEK_END)

    def sync(self) -> None:
        """Until it is on disk."""
        if not self._file.closed:
            os.fsync(self._file.fileno())


@contextlib.contextmanager
def opened(
    path: Path, after_bytes: int, clock: Callable[[], float], *, is_new_leg: bool = False
) -> Iterator[Journal]:
    """The journal of a run that goes on after the first `after_bytes` bytes of it.

    The line that says how a leg ended comes after its last checkpoint; a new leg leaves it there.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    with open(handle, "r+b", buffering=0) as file:
        if is_new_leg:
            file.seek(after_bytes)
            last = file.readline()
            after_bytes += len(last) if last.startswith(b'{"event": "finished"') else 0
        length = file.seek(0, os.SEEK_END)
        if length < after_bytes:
            warnings.warn(
                f"{path} has lost its end: {length:,} bytes, where the checkpoint has seen "
                f"{after_bytes:,}. The run goes on; the history in the checkpoint is whole.",
                LoopwrightWarning,
                stacklevel=2,
            )
        else:
            file.truncate(after_bytes)
        file.seek(0, os.SEEK_END)
        yield Journal(file, clock)


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _plain(value: Any) -> Any:
    """A value as JSON knows it; numbers that it does not know become words."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
