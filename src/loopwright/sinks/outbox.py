"""A sink that brings the numbers of a run to a tracker, in a thread of its own.

The journal of the run directory is the outbox. At a start the tracker is asked which points it has;
it gets the rest of the journal, and then what is trained. A point is known by its name and step:
steps that are trained again give the same numbers, and are not sent again. A tracker that is down
is tried again; what it misses at the end of `fit`, the next start sends.
"""

import contextlib
import hashlib
import json
import posixpath
import re
import secrets
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Protocol, final

from loopwright import disk, untrusted
from loopwright.config import file
from loopwright.errors import ConfigurationError, first_line, message
from loopwright.events import EpochEnded, Event, Finished, RunFacts, Started, Trained, Validated
from loopwright.plans import plan_history
from loopwright.runs import RunRecord, flatten, mapping
from loopwright.sinks.report import render
from loopwright.step_warnings import warn_at_call

Status = Literal["completed", "failed", "interrupted", "running"]
Points = set[tuple[str, int]]
ARTIFACTS: Final = ("report", "figures", "checkpoints", "export")
_JOURNAL: Final = "metrics.jsonl"
_RUNNING: Final = "batch_"
_PREFIXES = {"trained": _RUNNING, "validated": "val_", "epoch_ended": ""}
_KINDS = {Trained: "trained", Validated: "validated", EpochEnded: "epoch_ended"}
_OPENINGS = tuple(f'{{"event": "{kind}"'.encode() for kind in _PREFIXES)
_STATUS: dict[str, Status] = {"failed": "failed", "interrupted": "interrupted"}
_TAGS = ("git", "processor", "cores", "devices", "tensorflow", "keras", "python")
"""Of the environment; not the command, which may hold a password."""
_ROWS_AT_ONCE = 100
_SECONDS_BETWEEN_RUNNING, _SECONDS_BETWEEN_TRIES = 1.0, 5.0


@final
class Row(NamedTuple):
    """Numbers of one step, under the names of the history."""

    step: int
    seconds: float
    """When they were measured, since 1970."""
    values: Mapping[str, float]
    is_last: bool = False
    """Whether nothing more can be added at this step."""


@final
class Facts(NamedTuple):
    """What is known about a run: parameters, tags, signatures of its models."""

    parameters: Mapping[str, str]
    tags: Mapping[str, str]
    signatures: Mapping[str, Any]


class Service(Protocol):
    """A tracker as a place to bring points to; every method may raise, and is tried again."""

    tracker: str
    """The name in configs: mlflow, wandb."""
    address: Mapping[str, str]
    """Where it is: two sinks with the same address are the same place."""
    joins_rows: bool
    """Whether a later row of the same step adds to the first one."""

    def adapt_names(self, values: Mapping[str, float]) -> Mapping[str, float]:
        """Return values under the names that the tracker accepts."""
        ...

    def open(self, run: "TrackedRun", *, is_training: bool) -> Points:
        """Find or create the tracked run; return the names and steps that it has."""
        ...

    def describe(self, facts: Facts) -> None:
        """Send parameters, tags and signatures, unless they are there."""
        ...

    def send(self, rows: Sequence[Row]) -> None:
        """Send rows, one per step."""
        ...

    def upload(self, files: Mapping[str, Path]) -> None:
        """Send files, under their paths in the run directory."""
        ...

    def close(self, status: Status) -> None:
        """Set the status of the tracked run, and wait until everything was received."""
        ...


@final
class TrackedRun:
    """A run as one tracker knows it; without a directory its key is lost with the process.

    `trackers/mlflow-1a2b3c4d.json` holds a random key. It is on disk before the tracker hears of
    the run: a process that is killed while it creates the tracked run finds it again by this key.
    """

    def __init__(self, directory: Path | None, service: Service) -> None:
        self.directory, tracker, address = directory, service.tracker, dict(service.address)
        self.name = "run" if directory is None else directory.resolve().name
        text = json.dumps([tracker, address], sort_keys=True)
        self._file = f"trackers/{tracker}-{hashlib.sha256(text.encode()).hexdigest()[:8]}.json"
        self.content = self._read()
        """`key`, `run_id` of the tracker, `status`: completed if it has everything of the run."""
        if not self.content:
            self.note(key=secrets.token_hex(16), tracker=tracker, address=address)
        self.key: str = self.content["key"]

    def note(self, **changes: Any) -> None:
        """Write what the next start has to know."""
        content = {**self.content, **changes}
        if content != self.content and self.directory is not None:
            disk.make_directory(self.directory, "trackers")
            text = json.dumps(content, indent=2) + "\n"
            disk.write_whole(self.directory, self._file, text.encode(), durable=True)
        self.content = content

    def note_start(self, facts: RunFacts) -> None:
        """Write what is only known while the run is trained."""
        known = {name: facts.environment[name] for name in _TAGS if name in facts.environment}
        self.note(
            status="running",
            hyperparameters=flatten(facts.hyperparameters),
            signatures=dict(facts.signatures),
            tags=flatten(known),
        )

    def facts(self) -> Facts:
        """Return what is known: the flattened config, or else the hyperparameters."""
        parameters = mapping(self.content.get("hyperparameters"))
        tags = {"run_id": self.key, "run": self.name, **mapping(self.content.get("tags"))}
        if self.directory is not None:
            config = file.saved_in(self.directory)
            if config is not None:
                parameters = file.to_dict(config)
                parameters.pop("sinks", None)  # addresses may hold passwords
            plans = plan_history.recorded(self.directory)
            if plans is not None and plans.in_force is not None:
                tags["plan"] = str(plans.in_force).strip("'")
        signatures = mapping(self.content.get("signatures"))
        return Facts(flatten(parameters), flatten({"loopwright": tags}), signatures)

    @contextlib.contextmanager
    def copy_files(self, kinds: Sequence[str]) -> Iterator[dict[str, Path]]:
        """Copy files of the run to where a tracker may read them: it would follow symlinks."""
        directory, names = self.directory or Path(), list[str]()
        with tempfile.TemporaryDirectory(prefix="loopwright-") as place:
            for kind in kinds if self.directory is not None else ():
                if kind == "report":  # that of a run which is about to end is not written yet
                    content = render(directory).encode(errors="replace")
                    disk.write_whole(Path(place), "report.html", content)
                    names.append("report.html")
                    continue
                for name in disk.files_below(directory, kind):
                    disk.make_directory(Path(place), posixpath.dirname(name))
                    disk.copy(directory, name, Path(place), name)
                    names.append(name)
            yield {name: Path(place, name) for name in names}

    def _read(self) -> dict[str, Any]:
        if self.directory is None or disk.status(self.directory, self._file) is None:
            return {}
        content = RunRecord(self.directory).json(self._file)
        key, tracked_id = str(content.get("key")), str(content.get("run_id", ""))
        if re.fullmatch("[0-9a-f]{32}", key) and re.fullmatch(r"[\w-]{0,64}", tracked_id, re.ASCII):
            return content
        raise ConfigurationError(
            message(
                f"{self.directory / self._file} is damaged.",
                expected="the id of a tracked run, as Loopwright writes it",
                received=f"key {key!r:.40}, run_id {tracked_id!r:.40}",
                do="delete the file: a new tracked run gets every point of this run",
            )
        )


@final
class Tracker:
    """Receives events, and brings their numbers to a service; made by `MLflow` and `WandB`."""

    def __init__(
        self, service: Service, *, artifacts: Sequence[str], running: bool, wait_seconds: float
    ) -> None:
        if isinstance(artifacts, str) or not set(artifacts) <= set(ARTIFACTS):
            raise ConfigurationError(
                message(
                    "Unknown artifacts.",
                    expected=f"a list of {', '.join(ARTIFACTS)}",
                    received=repr(artifacts),
                    do="leave the others out",
                )
            )
        self._service, self._artifacts, self._running = service, list(artifacts), running
        self._wait_seconds = wait_seconds
        self.waits_for_files = False
        """Whether the caller writes more files after `fit`, and then calls `end`."""
        self._outbox: _Outbox | None = None
        self._has_warned = False
        self._last_running = -_SECONDS_BETWEEN_RUNNING

    def __call__(self, event: Event) -> None:
        """Note an event; nothing is sent in this thread."""
        is_end = isinstance(event, Finished)
        # Where `fit` is skipped, the process before may have been killed after its last checkpoint.
        if isinstance(event, Started) or (is_end and event.reason == "skipped"):
            self._begin(event)
        outbox, kind = self._outbox, _KINDS.get(type(event))
        if outbox is None:
            return
        if kind is not None:
            is_read = kind != "trained" or self._takes_running()
            fields = vars(event) if is_read else {"step": vars(event)["step"]}
            row = _make_row(kind, fields, time.time())
            if row is not None:
                outbox.add(row)
        if is_end:
            status = _STATUS.get(event.reason, "completed")
            if status != "completed" or not self.waits_for_files:
                self.end(status)
        elif outbox.trouble and not self._has_warned:
            self._has_warned = True
            warn_at_call(
                f"{self} cannot be reached: {outbox.trouble}. Training continues; its points are "
                "kept, and sent when it is back."
            )

    def end(self, status: Status = "completed") -> None:
        """Wait until a run is sent; not longer than promised, and for one try if it is down."""
        outbox = self._outbox
        if outbox is not None and not outbox.end(status, self._wait_seconds):
            rest = "the next start of the run sends the rest"
            if outbox.run.directory is None:
                rest = "without a run directory, the rest is lost when this process ends"
            why = outbox.trouble or f"no answer within {self._wait_seconds:g} seconds"
            self._has_warned = True
            warn_at_call(f"{self} does not have everything of this run: {why}; {rest}.")

    def __str__(self) -> str:
        """Return the tracker and its address: `mlflow (tracking_uri=http://127.0.0.1:5000)`."""
        listed = [f"{name}={value}" for name, value in self._service.address.items()]
        return f"{self._service.tracker} ({', '.join(listed)})"

    def _begin(self, event: Started | Finished) -> None:
        before = outbox = self._outbox
        # Without a run directory, a second call of `fit` continues the tracked run.
        if outbox is None or event.run_dir or outbox.run.directory or not event.step:
            run = TrackedRun(event.run_dir, self._service)
            outbox = _Outbox(self._service, run, event, self._artifacts, self._running)
        self._outbox = outbox
        outbox.start(None if before is None else before.thread)

    def _takes_running(self) -> bool:
        now = time.monotonic()
        takes = self._running and now - self._last_running >= _SECONDS_BETWEEN_RUNNING
        self._last_running = now if takes else self._last_running
        return takes


@final
class _Outbox:
    """What one start sends, from a thread: rows of the journal, then those that are added."""

    def __init__(
        self,
        service: Service,
        run: TrackedRun,
        event: Started | Finished,
        artifacts: Sequence[str],
        running: bool,
    ) -> None:
        self.run, self._service, self._event = run, service, event
        self._artifacts, self._running = artifacts, running
        journal = None if run.directory is None else disk.status(run.directory, _JOURNAL)
        self._journal_bytes = 0 if journal is None else journal.st_size
        """What was written before this start: the rest is added as it is trained."""
        self._rows = list[Row]()
        self._known: Points | None = None
        self._sent = 0
        """How many of the rows were sent since the tracker was asked what it has."""
        self._step, self._is_step_open = event.step, True
        self._last_running = -1
        self._changed = threading.Condition()
        self.thread: threading.Thread | None = None
        self._status: Status = "running"
        self.trouble = ""
        """The last error, while the tracker cannot be reached."""

    def start(self, previous: threading.Thread | None) -> None:
        """Start sending when the thread of the start before has ended: never two at a time."""
        if isinstance(self._event, Finished) and self.run.content.get("status") == "completed":
            return
        self._status = "running"
        name = f"loopwright-{self._service.tracker}"
        self.thread = threading.Thread(
            target=self._send_all, args=[previous], name=name, daemon=True
        )
        self.thread.start()

    def add(self, row: Row) -> None:
        """Add numbers; without any, a row says that its step was reached."""
        with self._changed:
            self._step = row.step
            if row.values:
                self._rows.append(row)
            if row.values or self._is_step_open:
                self._changed.notify_all()
            self._is_step_open = bool(row.values) and not row.is_last

    def end(self, status: Status, seconds: float) -> bool:
        """Wait until everything is sent, and return whether it is."""
        with self._changed:
            self._status = status
            self._changed.notify_all()
        if self.thread is None:
            return True
        self.thread.join(seconds)
        return not self.thread.is_alive() and not self.trouble

    def _send_all(self, previous: threading.Thread | None) -> None:
        if previous is not None:
            previous.join()
        self._known = None
        while True:
            status = self._status  # before the rows: whatever was added before it is sent
            try:
                self._deliver(status)
                self.trouble = ""
            except Exception as error:
                # It may have what seemed to fail: it is asked again before anything is sent.
                self.trouble, self._known = first_line(error), None
            if status != "running":
                return
            with self._changed:
                self._changed.wait_for(
                    lambda: self._status != "running" or (not self.trouble and self._ready()),
                    _SECONDS_BETWEEN_TRIES if self.trouble else None,
                )

    def _deliver(self, status: Status) -> None:
        """Send everything that is there; raise what the tracker or the network raises."""
        run, service = self.run, self._service
        if self._journal_bytes and run.directory is not None:
            rows = [*_read_journal(run.directory, self._journal_bytes, running=self._running)]
            with self._changed:
                self._rows[:0], self._journal_bytes = rows, 0
        if self._known is None:
            if isinstance(self._event, Started) and self._event.facts is not None:
                run.note_start(self._event.facts)
            self._known = service.open(run, is_training=status == "running")
            running = (step for name, step in self._known if name.startswith(_RUNNING))
            self._sent, self._last_running = 0, max(running, default=-1)
            service.describe(run.facts())
        with self._changed:
            is_over = status == "completed" or (status != "running" and service.joins_rows)
            ready = self._rows[self._sent :] if is_over else self._ready()
        missing = self._select_missing(ready, self._known)
        for at in range(0, len(missing), _ROWS_AT_ONCE):
            service.send(missing[at : at + _ROWS_AT_ONCE])
        self._sent += len(ready)
        if status != "running":
            with run.copy_files(self._artifacts) as files:
                service.upload(files)
            service.describe(run.facts())  # the plan may have been chosen meanwhile
            service.close(status)
            run.note(status=status)

    def _ready(self) -> list[Row]:
        """Return the unsent rows without those of the step that is still being measured."""
        rows = self._rows[self._sent :]
        while rows and rows[-1].step == self._step and not rows[-1].is_last:
            rows.pop()
        return rows

    def _select_missing(self, rows: Sequence[Row], known: Points) -> list[Row]:
        """Return one row per step with the numbers that the tracker does not have."""
        joined = dict[int, Row]()
        for row in rows:
            values = {
                name: value
                for name, value in self._service.adapt_names(row.values).items()
                if (name, row.step) not in known
                # Steps that are trained again stop elsewhere: their running values are known.
                and not (name.startswith(_RUNNING) and row.step <= self._last_running)
            }
            known.update((name, row.step) for name in values)
            if any(name.startswith(_RUNNING) for name in values):
                self._last_running = row.step
            if values:
                before = joined[row.step].values if row.step in joined else {}
                joined[row.step] = Row(row.step, row.seconds, {**before, **values})
        return [*joined.values()]


def _read_journal(run_dir: Path, length: int, *, running: bool) -> Iterator[Row]:
    """Yield the rows in the first `length` bytes of a journal; skip what is not as expected."""
    read = 0
    for line in untrusted.lines(run_dir, _JOURNAL):
        read += len(line)
        if read > length:
            return
        if line.startswith(_OPENINGS) and line.endswith(b"\n"):
            event = untrusted.event(line)
            kind = str(event.get("event"))
            row = _make_row(kind, event, event.get("time"))
            if row is not None and row.values and (running or kind != "trained"):
                yield row


def _make_row(kind: str, fields: Mapping[str, Any], seconds: Any) -> Row | None:
    """Return the numbers of an event, from its fields or from its line in the journal.

    >>> _make_row("validated", {"step": 5, "metrics": {"loss": "NaN", "table": [[1]]}}, 0.0)
    Row(step=5, seconds=0.0, values={'val_loss': nan}, is_last=False)
    """
    step, is_last, values = fields.get("step"), kind == "epoch_ended", dict[str, float]()
    if not isinstance(step, int) or not 0 <= step < 2**62 or not isinstance(seconds, int | float):
        return None
    rates = mapping(fields.get("learning_rates")) if is_last else {}
    for name, value in {**mapping(fields.get("metrics")), **rates}.items():
        if not getattr(value, "ndim", 0):
            with contextlib.suppress(TypeError, ValueError, OverflowError):
                values[f"{_PREFIXES[kind]}{name}"] = float(value)  # also of "NaN" and "-Infinity"
    return Row(step, seconds, values, is_last)
