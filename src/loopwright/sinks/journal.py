"""The journal of a run: `metrics.jsonl`, one line for each event, in the order they happened.

    {"event": "epoch_ended", "time": 1763000000.0, "epoch": 0, "step": 18, ..., "metrics": {...}}

A run that goes on cuts it to what a checkpoint has seen, so that it tells of one continuous run.
"""

import json
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, final

from loopwright import disk
from loopwright.events import EpochEnded, Event, Saved, Trained
from loopwright.sinks import growing

JOURNAL = "metrics.jsonl"
_SECONDS_BETWEEN_TRAINED = 1.0
_END = b'{"event": "finished"'


@final
class Journal:
    """A sink that writes lines; of many `Trained` in a second it writes one."""

    def __init__(
        self,
        path: Path,
        clock: Callable[[], float],
        learning_rates: Callable[[], Mapping[str, Any]],
    ) -> None:
        self._run_dir, self._name = path.parent, path.name
        self._clock, self._learning_rates = clock, learning_rates
        self._file: Any = None
        self._last_trained = -math.inf

    def open(self, after_bytes: int, *, is_new_leg: bool = False) -> None:
        """Goes on after the first `after_bytes` bytes.

        The line that says how a leg ended comes after its last checkpoint; a new leg leaves it.
        """
        handle = disk.opened(self._run_dir, self._name, os.O_RDWR | os.O_CREAT)
        self._file = os.fdopen(handle, "r+b", buffering=0)  # closed by close
        disk.sync(self._run_dir)  # checkpoints refer to it
        if is_new_leg:
            self._file.seek(after_bytes)
            last = self._file.readline()
            after_bytes += len(last) if last.startswith(_END) else 0
        self.cut(after_bytes)

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
        if isinstance(event, EpochEnded):
            line["learning_rates"] = dict(self._learning_rates())
        self._file.write(json.dumps(plain(line), allow_nan=False).encode() + b"\n")

    def cut(self, after_bytes: int) -> None:
        """Forgets the lines after the first `after_bytes` bytes: they are about to happen anew."""
        growing.cut(self._run_dir, self._name, after_bytes)
        self._file.seek(0, os.SEEK_END)

    def sync(self) -> None:
        """Until it is on disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Ends it."""
        if self._file is not None:
            self._file.close()


def plain(value: Any) -> Any:
    """A value as JSON knows it; numbers that it does not know become words."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
