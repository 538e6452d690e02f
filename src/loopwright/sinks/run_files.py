"""The sinks of a run directory: metrics.jsonl, TensorBoard, history, status, log, report."""

import contextlib
import json
import math
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO, final

from loopwright import disk
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
from loopwright.sinks.notify import attempted, tolerated
from loopwright.sinks.report import write_report
from loopwright.sinks.tensorboard import HOME, TensorBoardFiles, event_files
from loopwright.sinks.terminal import opened_log
from loopwright.step_warnings import warn_at_call


def cut(run_dir: Path, name: str, length: int) -> None:
    """Truncate a file to `length` bytes; warn if it is shorter."""
    found = disk.cut(run_dir, name, length)
    if found < length:
        warn_at_call(
            f"{run_dir / name} is truncated: it has {found:,} bytes, and had {length:,} when the "
            "checkpoint was saved. Training continues; the checkpoint has the complete history."
        )


def cut_all(run_dir: Path, names: list[str], lengths: Mapping[str, int]) -> None:
    """Truncate files of a run to these lengths; delete those that have no length."""
    for name in names:
        length = lengths.get(name)
        if length is None:
            disk.delete(run_dir, name)
        else:
            cut(run_dir, name, length)


_SECONDS_BETWEEN_TRAINED = 1.0
_END = b'{"event": "finished"'
_NOT_WRITTEN = {"facts", "inexact", "history", "run_dir"}
"""Fields that other files hold, and where the journal itself is."""


@final
class Journal:
    """A sink that writes a line of JSON per event; of `Trained`, one line per second."""

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        self._run_dir, self._name, self._clock = path.parent, path.name, clock
        self._file: Any = None
        self._last_trained = -math.inf
        self.has_end = False
        """Whether the file had the line that ends a leg when it was opened for a new one."""

    def open(self, after_bytes: int, *, is_new_leg: bool = False) -> None:
        """Truncate the file to `after_bytes` bytes and append to it.

        The line that says how a leg ended comes after its last checkpoint; a new leg keeps it.
        """
        handle = disk.opened(self._run_dir, self._name, os.O_RDWR | os.O_CREAT)
        self._file = os.fdopen(handle, "r+b", buffering=0)  # closed by close
        disk.sync(self._run_dir)  # checkpoints refer to it
        if is_new_leg:
            self._file.seek(after_bytes)
            last = self._file.readline()
            self.has_end = last.startswith(_END)
            after_bytes += len(last) if self.has_end else 0
        self.cut(after_bytes)

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

    def cut(self, after_bytes: int) -> None:
        """Truncate the file to `after_bytes` bytes: what they describe will happen again."""
        cut(self._run_dir, self._name, after_bytes)
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


LOG = "train.log"
_WRITTEN = ("environment.json", "model.txt", "history.json", "status.json", "report.html")
_STATUS = {"complete": "completed", "stopped": "completed", "left": "completed"}


class Files(ABC):
    """The files that sinks write in a run directory; a resumed run truncates some of them."""

    @abstractmethod
    def open(self, lengths: Mapping[str, int], *, is_new_leg: bool) -> None:
        """Open the files and truncate them to their lengths in a checkpoint."""

    @abstractmethod
    def close(self) -> None:
        """Write what is left, and close the files."""

    @abstractmethod
    def __call__(self, event: Event) -> None:
        """Write an event."""

    def lengths(self) -> dict[str, int]:
        """Return the lengths of the files that a resumed run truncates."""
        return {}

    def cut(self, lengths: Mapping[str, int]) -> None:  # noqa: B027
        """Truncate the files after a rollback."""

    def sync(self) -> None:  # noqa: B027
        """Wait until the files that a checkpoint refers to are on disk."""


@final
class WorkerLog(Files):
    """Writes lines like those of `train.log` to `worker-1.log`, which keeps every line."""

    def __init__(self, directory: Path, worker: int, clock: Callable[[], float]) -> None:
        self._directory, self._name, self._clock = directory, f"worker-{worker}.log", clock
        self._log: TextIO | None = None
        self._show: Sink = lambda event: None

    def open(self, lengths: Mapping[str, int], *, is_new_leg: bool) -> None:
        """Open the file to append to it."""
        with disk_explained(self._directory):
            self._log, lines = opened_log(self._directory, self._name, self._clock)
        self._show = tolerated(lines.show)

    def close(self) -> None:
        """Close the file."""
        if self._log is not None:
            with attempted("The last lines of the log"):
                self._log.close()

    def __call__(self, event: Event) -> None:
        """Print the lines of an event."""
        self._show(event)


@final
class RunFiles(Files):
    """The sinks that write into a run directory."""

    def __init__(self, directory: Path, clock: Callable[[], float]) -> None:
        self._directory, self._clock = directory, clock
        self._journal = Journal(directory / JOURNAL, clock)
        self._board = TensorBoardFiles(directory / HOME, clock)
        self._inexact: list[str] = []
        self._log: TextIO | None = None
        self._sinks: list[Sink] = []

    def open(self, lengths: Mapping[str, int], *, is_new_leg: bool) -> None:
        """Open the files and truncate them; a new leg keeps the line that ended the last one."""
        # What fails later warns; a symlink is refused before the first step.
        disk.refuse_links(self._directory, JOURNAL, LOG, *_WRITTEN)
        known_events = event_files(self._directory)
        with disk_explained(self._directory), contextlib.ExitStack() as undo:
            undo.callback(self._journal.close)
            self._journal.open(lengths.get(JOURNAL, 0), is_new_leg=is_new_leg)
            cut_all(self._directory, known_events, lengths)
            self._log, lines = opened_log(self._directory, LOG, self._clock)
            undo.pop_all()
        sinks = (self._journal, self._board, self._board.draw, lines.show, self._summarize)
        self._sinks = [tolerated(sink) for sink in sinks]

    def close(self) -> None:
        """Write the report, and close the files."""
        self._journal.close()
        self._board.close()
        with attempted("The report"):
            write_report(self._directory)
        if self._log is not None:
            with attempted("The last lines of the log"):
                self._log.close()

    def finish(self, lengths: Mapping[str, int], event: Finished, inexact: Sequence[str]) -> None:
        """Write the end of a run, if it was killed when its last checkpoint was on disk."""
        status, report = RunRecord(self._directory).status, "report.html"
        if status.get("status") == "completed" and disk.status(self._directory, report) is not None:
            return
        with contextlib.closing(self):
            self.open(lengths, is_new_leg=True)
            self._inexact = [*inexact]
            (self._summarize if self._journal.has_end else self)(event)

    def __call__(self, event: Event) -> None:
        """Give an event to every sink."""
        for sink in self._sinks:
            sink(event)

    def lengths(self) -> dict[str, int]:
        """Return the lengths of the files that a resumed run truncates."""
        self._board.flush()
        files = [JOURNAL, *event_files(self._directory)]
        found = {name: disk.status(self._directory, name) for name in files}
        return {name: file.st_size for name, file in found.items() if file is not None}

    def cut(self, lengths: Mapping[str, int]) -> None:
        """Truncate the files after a rollback."""
        self._board.close()
        self._journal.cut(lengths[JOURNAL])
        cut_all(self._directory, event_files(self._directory), lengths)
        self._board.begin()

    def sync(self) -> None:
        """Wait until the journal is on disk."""
        self._journal.sync()

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
