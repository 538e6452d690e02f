"""The files of every run directory: metrics.jsonl, status, history, environment, models."""

import contextlib
import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from loopwright import disk
from loopwright.dispatch import RunFile, attempted, cut, lengths_of, tolerated
from loopwright.errors import disk_explained
from loopwright.events import (
    Event,
    Finished,
    GradientsWatched,
    ImagesDrawn,
    Saved,
    Sink,
    Started,
    Trained,
)
from loopwright.runs import JOURNAL, RunRecord

_SECONDS_BETWEEN_TRAINED = 1.0
_END = b'{"event": "finished"'
_NOT_WRITTEN = {"facts", "inexact", "history", "run_dir"}
"""Fields that other files hold, and where the journal itself is."""
_WRITTEN = (
    JOURNAL,
    "train.log",
    "environment.json",
    "model.txt",
    "history.json",
    "status.json",
    "report.html",
)
_STATUS = {"complete": "completed", "stopped": "completed", "left": "completed"}


@final
class Journal(RunFile):
    """Writes a line of JSON per event; of `Trained`, one line per second."""

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        self._run_dir, self._name, self._clock = path.parent, path.name, clock
        self._file: Any = None
        self._last_trained = -math.inf
        self.has_end = False
        """Whether the file had the line that ends a leg when it was opened for a new one."""

    def open(self, lengths: Mapping[str, int], *, is_new_leg: bool = False) -> None:
        """Truncate the file and append to it.

        The line that says how a leg ended comes after its last checkpoint; a new leg keeps it.
        """
        handle = disk.opened(self._run_dir, self._name, os.O_RDWR | os.O_CREAT)
        self._file = os.fdopen(handle, "r+b", buffering=0)  # closed by close
        disk.sync(self._run_dir)  # checkpoints refer to it
        length = lengths.get(self._name, 0)
        if is_new_leg:
            self._file.seek(length)
            last = self._file.readline()
            self.has_end = last.startswith(_END)
            length += len(last) if self.has_end else 0
        self.cut({self._name: length})

    def __call__(self, event: Event) -> None:
        """Write the line of an event."""
        # Saved follows its checkpoint, which has the length of the journal before it.
        if isinstance(event, Saved | GradientsWatched | ImagesDrawn):
            return
        now = self._clock()
        if isinstance(event, Trained):
            if now - self._last_trained < _SECONDS_BETWEEN_TRAINED:
                return
            self._last_trained = now
        fields = {name: v for name, v in vars(event).items() if name not in _NOT_WRITTEN}
        line = {"event": _snake(type(event).__name__), "time": round(now, 3), **fields}
        self._file.write(json.dumps(plain(line), allow_nan=False).encode() + b"\n")

    def lengths(self) -> Mapping[str, int]:
        """Return the length of the file."""
        return lengths_of(self._run_dir, [self._name])

    def cut(self, lengths: Mapping[str, int]) -> None:
        """Truncate the file: what its last lines describe will happen again."""
        cut(self._run_dir, [self._name], lengths)
        self._file.seek(0, os.SEEK_END)

    def sync(self) -> None:
        """Wait until every line is on disk."""
        disk.flush(self._run_dir, self._name)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def plain(value: Any) -> Any:
    """Return a value that JSON can hold; NaN and infinity become strings."""
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


@final
class RunFiles(RunFile):
    """The journal and the small files about a whole run, together with the files of sinks."""

    def __init__(
        self, directory: Path, clock: Callable[[], float], others: Sequence[RunFile]
    ) -> None:
        self._directory, self._clock = directory, clock
        self._journal = Journal(directory / JOURNAL, clock)
        self._files: Sequence[RunFile] = [self._journal, *others]
        self._inexact: list[str] = []
        self._sinks: list[Sink] = []

    def open(self, lengths: Mapping[str, int], *, is_new_leg: bool) -> None:
        """Open the files and truncate them; a new leg keeps the line that ended the last one."""
        # What fails later warns; a symlink is refused before a file is changed.
        disk.refuse_links(self._directory, *_WRITTEN)
        self.lengths()
        with disk_explained(self._directory), contextlib.ExitStack() as undo:
            undo.callback(self._journal.close)
            for file in self._files:
                file.open(lengths, is_new_leg=is_new_leg)
            undo.pop_all()
        self._sinks = [tolerated(sink) for sink in (*self._files, self._summarize)]

    def __call__(self, event: Event) -> None:
        """Give an event to every sink."""
        for sink in self._sinks:
            sink(event)

    def lengths(self) -> Mapping[str, int]:
        """Return the lengths of the files that a resumed run truncates."""
        return {name: size for file in self._files for name, size in file.lengths().items()}

    def cut(self, lengths: Mapping[str, int]) -> None:
        """Truncate the files after a rollback."""
        for file in self._files:
            file.cut(lengths)

    def sync(self) -> None:
        """Wait until the files that a checkpoint refers to are on disk."""
        for file in self._files:
            file.sync()

    def close(self) -> None:
        """Close the files; the report is written now."""
        for file in self._files:
            file.close()

    def finish(self, lengths: Mapping[str, int], event: Finished, inexact: Sequence[str]) -> None:
        """Write the end of a run, if it was killed when its last checkpoint was on disk."""
        status, report = RunRecord(self._directory).status, "report.html"
        if status.get("status") == "completed" and disk.status(self._directory, report) is not None:
            return
        with contextlib.closing(self):
            self.open(lengths, is_new_leg=True)
            self._inexact = [*inexact]
            (self._summarize if self._journal.has_end else self)(event)

    def _summarize(self, event: Event) -> None:
        """Write the small files about the whole run: status, history, environment, models."""
        if isinstance(event, Started):
            self._inexact = [*event.inexact]
            with attempted("environment.json and model.txt"):
                if event.facts is not None:
                    self._write("environment.json", _json(event.facts.environment))
                    self._write("model.txt", event.facts.models.encode())
        if isinstance(event, Finished):
            self._write("history.json", _json(event.history))
        if isinstance(event, Started | Saved | Finished):
            status = "running"
            if isinstance(event, Finished):
                status = _STATUS.get(event.reason, event.reason)
            known = {"status": status, "step": event.step, "time": round(self._clock(), 3)}
            reasons = {"not_exactly_resumable": self._inexact} if self._inexact else {}
            self._write("status.json", _json({**known, **reasons, "process": os.getpid()}))

    def _write(self, name: str, content: bytes) -> None:
        disk.write_whole(self._directory, name, content)


def _json(value: Any) -> bytes:
    return json.dumps(plain(value), indent=2, allow_nan=False).encode() + b"\n"


def run_files(directory: Path, worker: int, clock: Callable[[], float]) -> RunFile:
    """Return the files that a worker writes in a run directory; number 0 is the chief."""
    from loopwright.sinks import defaults

    if worker:
        return defaults.worker_log(directory, worker, clock)
    return RunFiles(directory, clock, defaults.run_files(directory, clock))
