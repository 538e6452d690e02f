"""What a run directory tells: metrics.jsonl, TensorBoard, history.json, status.json, train.log."""

import functools
import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, final

import keras
from rich.console import Console

from loopwright import disk
from loopwright.compat import environment
from loopwright.events import EpochEnded, Event, Finished, Saved, Sink, Started, Trained
from loopwright.sinks.log import Lines
from loopwright.sinks.notify import attempted, tolerated
from loopwright.sinks.report import write_report
from loopwright.sinks.tensorboard import HOME, Pictures, TensorBoardFiles, event_files
from loopwright.step_warnings import warn_at_call
from loopwright.task import variables
from loopwright.task.optimizers import Plain, hyperparameters
from loopwright.task.task import Task


@dataclass(frozen=True)
class Facts:
    """Written down when a run begins."""

    environment: Mapping[str, Any]
    models: str
    hyperparameters: Mapping[str, Plain]
    graph: Any
    """The operations of the step, as a `GraphDef`."""


def facts(task: Task, asked: Mapping[str, Any], graph: Any, run_dir: Path) -> Facts:
    """The facts of a task whose models are built; `asked` is what `fit` was asked for."""
    about = environment.about(run_dir)
    return Facts(about, models(task), {**hyperparameters(task), **asked}, graph)


def models(task: Task) -> str:
    """Every model that a task names, as Keras sums it up."""
    lines = list[str]()
    for part in variables.parts(task):
        if isinstance(part.value, keras.Model) and not part.path.startswith("_"):
            # Keras cuts lines that are longer than a terminal of 80 columns.
            part.value.summary(line_length=78, print_fn=lambda text, **_: lines.append(text))
    return "\n".join(lines)


def cut(run_dir: Path, name: str, length: int) -> None:
    """Forgets what was written after the first `length` bytes; tells if there are fewer."""
    found = disk.cut(run_dir, name, length)
    if found < length:
        warn_at_call(
            f"{run_dir / name} has lost its end: {found:,} bytes, where the checkpoint has "
            f"seen {length:,}. The run goes on; the history in the checkpoint is whole."
        )


def cut_all(run_dir: Path, names: list[str], lengths: Mapping[str, int]) -> None:
    """Cuts files of a run; those that no checkpoint has seen are removed."""
    for name in names:
        length = lengths.get(name)
        if length is None:
            disk.delete(run_dir, name)
        else:
            cut(run_dir, name, length)


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
        cut(self._run_dir, self._name, after_bytes)
        self._file.seek(0, os.SEEK_END)

    def sync(self) -> None:
        """Until it is on disk."""
        disk.flush(self._run_dir, self._name)

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


LOG = "train.log"
_WRITTEN = ("environment.json", "model.txt", "history.json", "status.json", "report.html")
_STATUS = {"complete": "completed", "stopped": "completed", "left": "completed"}


class Files(Protocol):
    """What a run tells in files: a sink, which a run that goes on may cut."""

    def open(self, lengths: Mapping[str, int], *, is_new_leg: bool) -> None:
        """Goes on after what a checkpoint has seen."""

    def close(self) -> None:
        """Everything is in its file."""

    def __call__(self, event: Event) -> None:
        """Hears an event."""

    def lengths(self) -> dict[str, int]:
        """How long the files are that a run that goes on would cut."""
        ...

    def cut(self, lengths: Mapping[str, int]) -> None:
        """Forgets what is about to happen anew."""

    def sync(self) -> None:
        """Until what a checkpoint refers to is on disk."""


@final
class RunFiles:
    """Sinks that write into a run directory, and how long their files are."""

    def __init__(
        self,
        directory: Path,
        *,
        clock: Callable[[], float],
        learning_rates: Callable[[], Mapping[str, Any]],
        gradients: Callable[[], Mapping[str, Any]],
        history: Callable[[], Mapping[str, Any]],
        images: Callable[[], Mapping[str, Any]],
        facts: Callable[[], Facts],
        inexact: Callable[[], Sequence[str]],
    ) -> None:
        self._directory, self._clock = directory, clock
        self._history, self._images, self._facts = history, images, facts
        self._inexact = inexact
        self._learning_rates = functools.cache(learning_rates)  # of one event: two sinks ask
        self._journal = Journal(directory / JOURNAL, clock, self._learning_rates)
        self._board = TensorBoardFiles(directory / HOME, clock, self._learning_rates, gradients)
        self._log: Any = None
        self._sinks: list[Sink] = []

    def open(self, lengths: Mapping[str, int], *, is_new_leg: bool) -> None:
        """Goes on after what a checkpoint has seen; a new leg leaves how the last one ended."""
        # What fails later warns; a symlink is refused before the first step.
        disk.refuse_links(self._directory, JOURNAL, LOG, *_WRITTEN)
        known_events = event_files(self._directory)
        self._journal.open(lengths.get(JOURNAL, 0), is_new_leg=is_new_leg)
        cut_all(self._directory, known_events, lengths)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        handle = disk.opened(self._directory, LOG, flags)
        self._log = os.fdopen(handle, "a", encoding="utf-8")
        log = Lines(Console(file=self._log, width=200, force_terminal=False), self._clock)
        pictures = Pictures(self._images, self._board, self._clock)
        sinks = (self._journal, self._board, pictures, log.show, self._tell)
        self._sinks = [tolerated(sink) for sink in sinks]
        with attempted("What is known of the run"):
            known = self._facts()
            disk.write_whole(self._directory, "environment.json", _json(known.environment))
            disk.write_whole(self._directory, "model.txt", known.models.encode())
            if not lengths:
                self._board.begin(known.hyperparameters, known.graph)

    def close(self) -> None:
        """Everything is in its file, and the report tells of it."""
        self._journal.close()
        self._board.close()
        with attempted("The report"):
            write_report(self._directory)
        if self._log is not None:
            self._log.close()

    def __call__(self, event: Event) -> None:
        """Hears an event."""
        self._learning_rates.cache_clear()
        for sink in self._sinks:
            sink(event)

    def lengths(self) -> dict[str, int]:
        """How long the files are that a run that goes on would cut."""
        self._board.flush()
        files = [JOURNAL, *event_files(self._directory)]
        found = {name: disk.status(self._directory, name) for name in files}
        return {name: file.st_size for name, file in found.items() if file is not None}

    def cut(self, lengths: Mapping[str, int]) -> None:
        """Forgets what is about to happen anew."""
        self._board.close()
        self._journal.cut(lengths[JOURNAL])
        cut_all(self._directory, event_files(self._directory), lengths)

    def sync(self) -> None:
        """Until the journal is on disk."""
        self._journal.sync()

    def _tell(self, event: Event) -> None:
        """What others ask about a run: where it is, and its numbers."""
        if isinstance(event, Started | Saved | Finished):
            status = "running"
            if isinstance(event, Finished):
                status = _STATUS.get(event.reason, event.reason)
                disk.write_whole(self._directory, "history.json", _json(self._history()))
            known: dict[str, Any] = {
                "status": status,
                "step": event.step,
                "time": round(self._clock(), 3),
            }
            reasons = list(self._inexact())
            if reasons:
                known["not_exactly_resumable"] = reasons
            content = _json({**known, "process": os.getpid()})
            disk.write_whole(self._directory, "status.json", content)


def _json(value: Any) -> bytes:
    return json.dumps(plain(value), indent=2, allow_nan=False).encode() + b"\n"
