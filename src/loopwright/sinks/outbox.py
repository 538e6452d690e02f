"""A sink that brings the numbers of a run to a tracker, in a thread of its own.

The journal of the run directory is the outbox. At a start, and after an error, the tracker is asked
what it has, and gets the rest of the journal; then the thread sends what is added to it. What a
tracker misses at the end of `fit`, the next start sends.
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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Protocol, final

from loopwright import disk
from loopwright.config import file
from loopwright.errors import ConfigurationError, first_line
from loopwright.events import (
    BatchSkipped,
    EpochEnded,
    Event,
    Finished,
    RunFacts,
    Started,
    Trained,
    Validated,
)
from loopwright.plans import record as plan_record
from loopwright.runs import RunRecord, flatten, mapping
from loopwright.sinks.report import write_report
from loopwright.step_warnings import warn_at_call

Status = Literal["completed", "failed", "interrupted", "running"]
ARTIFACTS: Final = ("report", "figures", "checkpoints", "export")
_PREFIXES = {"trained": "batch_", "validated": "val_", "epoch_ended": ""}
_KINDS = {Trained: "trained", Validated: "validated", EpochEnded: "epoch_ended"}
_STATUS: dict[str, Status] = {"failed": "failed", "interrupted": "interrupted"}
_TAGS = ("git", "processor", "cores", "devices", "tensorflow", "keras", "python")
"""Of the environment; not the command, which may hold a password."""
_SECONDS_BETWEEN_READS, _SECONDS_BETWEEN_TRIES = 1.0, 5.0


@final
class Row(NamedTuple):
    """The numbers of one step, under the names of the history."""

    step: int
    seconds: float
    """When they were measured, since 1970."""
    values: Mapping[str, float]


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

    def open(self, run: "TrackedRun", *, is_training: bool) -> None:
        """Find or create the tracked run, and ask which points it has."""
        ...

    def describe(self, facts: Facts) -> None:
        """Send parameters, tags and signatures, unless they are there."""
        ...

    def send(self, rows: Sequence[Row]) -> None:
        """Send the points of these rows that are not there, one row per step."""
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
        self._memory, self._last_trained = list[dict[str, Any]](), 0.0
        """The journal of a run without a directory, and when steps were last added to it."""

    def note(self, **changes: Any) -> None:
        """Write what the next start has to know."""
        content = {**self.content, **changes}
        if content != self.content and self.directory is not None:
            disk.make_directory(self.directory, "trackers")
            text = json.dumps(content, indent=2) + "\n"
            disk.write_whole(self.directory, self._file, text.encode(), durable=True)
        self.content = content

    def note_start(self, facts: RunFacts | None) -> None:
        """Write what is only known while the run is trained."""
        self.note(status="running")
        if facts is not None:
            known = {name: facts.environment[name] for name in _TAGS if name in facts.environment}
            self.note(
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
            plans = plan_record.recorded(self.directory)
            if plans is not None and plans.in_force is not None:
                tags["plan"] = str(plans.in_force).strip("'")
        signatures = mapping(self.content.get("signatures"))
        return Facts(flatten(parameters), flatten({"loopwright": tags}), signatures)

    def remember(self, event: Event) -> None:
        """Keep an event, if the run has no directory with a journal."""
        kind, now = _KINDS.get(type(event)), time.time()
        if self.directory is not None or kind is None:
            return
        if kind == "trained":
            if now - self._last_trained < _SECONDS_BETWEEN_READS:
                return
            self._last_trained = now
        self._memory.append({"event": kind, "time": now, **vars(event)})

    def events(self, after: int) -> Iterable[tuple[int, Mapping[str, Any]]]:
        """Return the events of the journal after a place in it, each with the place behind it."""
        if self.directory is not None:
            return RunRecord(self.directory).events(after)
        return [*enumerate(self._memory[after:], after + 1)]

    @contextlib.contextmanager
    def copy_files(self, kinds: Sequence[str]) -> Iterator[dict[str, Path]]:
        """Copy files of the run to where a tracker may read them: it would follow symlinks."""
        directory, names = self.directory or Path(), list[str]()
        for kind in kinds if self.directory is not None else ():
            if kind == "report":  # that of a run which is about to end is not written yet
                names.append(write_report(directory).name)
            else:
                names += disk.files_below(directory, kind)
        with tempfile.TemporaryDirectory(prefix="loopwright-") as place:
            for name in names:
                disk.make_directory(Path(place), posixpath.dirname(name))
                disk.copy(directory, name, Path(place), name)
            yield {name: Path(place, name) for name in names}

    def _read(self) -> dict[str, Any]:
        if self.directory is None or disk.status(self.directory, self._file) is None:
            return {}
        content = RunRecord(self.directory).json(self._file)
        key, tracked_id = str(content.get("key")), str(content.get("run_id", ""))
        if re.fullmatch("[0-9a-f]{32}", key) and re.fullmatch(r"[\w-]{0,64}", tracked_id, re.ASCII):
            return content
        raise ConfigurationError(
            f"{self.directory / self._file} is damaged.",
            expected="the id of a tracked run, as Loopwright writes it",
            received=f"key {key!r:.40}, run_id {tracked_id!r:.40}",
            do="delete the file: a new tracked run gets every point of this run",
        )


@final
class Tracker:
    """Receives events, and brings their numbers to a service; made by `MLflow` and `WandB`."""

    def __init__(
        self, service: Service, *, artifacts: Sequence[str], running: bool, wait_seconds: float
    ) -> None:
        if isinstance(artifacts, str) or not set(artifacts) <= set(ARTIFACTS):
            raise ConfigurationError(
                "Unknown artifacts.",
                expected=f"a list of {', '.join(ARTIFACTS)}",
                received=repr(artifacts),
                do="leave the others out",
            )
        self.service, self.artifacts, self.running = service, list(artifacts), running
        self._wait_seconds = wait_seconds
        self.waits_for_files = False
        """Whether the caller writes more files after `fit`, and then calls `end`."""
        self._delivery: _Delivery | None = None
        self._has_warned = False

    def __call__(self, event: Event) -> None:
        """Note an event; nothing is sent in this thread."""
        # Where `fit` is skipped, the process before may have been killed after its last checkpoint.
        if isinstance(event, Started) or (
            isinstance(event, Finished) and event.reason == "skipped"
        ):
            self._begin(event)
        delivery = self._delivery
        if delivery is None:
            return
        delivery.run.remember(event)
        if isinstance(event, BatchSkipped):
            delivery.is_journal_cut = True
        if isinstance(event, Finished):
            status = _STATUS.get(event.reason, "completed")
            if status != "completed" or not self.waits_for_files:
                self.end(status)
        elif delivery.trouble and not self._has_warned:
            self._has_warned = True
            warn_at_call(
                f"{self} cannot be reached: {delivery.trouble}. Training continues; its points are "
                "kept, and sent when it is back."
            )

    def end(self, status: Status = "completed") -> None:
        """Wait until a run is sent; not longer than promised, and for one try if it is down."""
        delivery = self._delivery
        if delivery is not None and not delivery.end(status, self._wait_seconds):
            rest = "the next start of the run sends the rest"
            if delivery.run.directory is None:
                rest = "without a run directory, the rest is lost when this process ends"
            why = delivery.trouble or f"no answer within {self._wait_seconds:g} seconds"
            self._has_warned = True
            warn_at_call(f"{self} does not have everything of this run: {why}; {rest}.")

    def __str__(self) -> str:
        """Return the tracker and its address: `mlflow (tracking_uri=http://127.0.0.1:5000)`."""
        listed = [f"{name}={value}" for name, value in self.service.address.items()]
        return f"{self.service.tracker} ({', '.join(listed)})"

    def _begin(self, event: Started | Finished) -> None:
        before = self._delivery
        if before is not None and event.run_dir is before.run.directory is None and event.step:
            run = before.run  # without a run directory, a second call of `fit` continues it
        else:
            run = TrackedRun(event.run_dir, self.service)
        if isinstance(event, Started):
            run.note_start(event.facts)
        self._delivery = _Delivery(self, run, None if before is None else before.thread)


@final
class _Delivery:
    """Sends what one start adds to the journal of a run, from a thread."""

    def __init__(
        self, tracker: Tracker, run: TrackedRun, previous: threading.Thread | None
    ) -> None:
        """Start when the thread of the start before has ended: never two at a time."""
        self._tracker, self.run = tracker, run
        self._is_open = False
        """Whether the tracker was asked what it has, and no error came since."""
        self._place = 0
        """Up to where the journal was read."""
        self.is_journal_cut = False
        """Whether the run was rolled back since then."""
        self._rows = dict[int, Row]()
        """What was read and not sent, by step."""
        self._unfinished_step: int | None = None
        """The last step of the journal, if more numbers of it may come."""
        self._status: Status = "running"
        self._ends = threading.Event()
        self.trouble = ""
        """The last error, while the tracker cannot be reached."""
        self.thread: threading.Thread | None = None
        if run.content.get("status") != "completed":
            name = f"loopwright-{tracker.service.tracker}"
            self.thread = threading.Thread(None, self._send_all, name, [previous], daemon=True)
            self.thread.start()

    def end(self, status: Status, seconds: float) -> bool:
        """Wait until everything is sent, and return whether it is."""
        self._status = status
        self._ends.set()
        if self.thread is None:
            return True
        self.thread.join(seconds)
        return not self.thread.is_alive() and not self.trouble

    def _send_all(self, previous: threading.Thread | None) -> None:
        if previous is not None:
            previous.join()
        while True:
            status = self._status  # before the journal is read: it has everything by then
            try:
                self._deliver(status)
                self.trouble = ""
            except Exception as error:
                # It may have what seemed to fail: it is asked again before anything is sent.
                self.trouble, self._is_open = first_line(error), False
            if status != "running":
                return
            self._ends.wait(_SECONDS_BETWEEN_TRIES if self.trouble else _SECONDS_BETWEEN_READS)

    def _deliver(self, status: Status) -> None:
        """Send everything that is there; raise what the tracker or the network raises."""
        run, service = self.run, self._tracker.service
        if not self._is_open:
            service.open(run, is_training=status == "running")
            service.describe(run.facts())
            self._is_open, self._place = True, 0
            self._rows.clear()
        self._read_journal()
        # A row cannot be added to in W&B: a resumed run may end the epoch of the same step.
        is_over = status in ("completed", "failed")
        ready = [row for row in self._rows.values() if is_over or row.step != self._unfinished_step]
        service.send(ready)
        for row in ready:
            del self._rows[row.step]
        if status != "running":
            with run.copy_files(self._tracker.artifacts) as files:
                service.upload(files)
            service.describe(run.facts())  # the plan may have been chosen meanwhile
            service.close(status)
            run.note(status=status)

    def _read_journal(self) -> None:
        """Read the rows that were added to the journal; all of them after a rollback."""
        if self.is_journal_cut:
            self.is_journal_cut, self._place = False, 0
        for place, event in self.run.events(self._place):
            self._place, row = place, _make_row(event)
            if row is None:
                continue
            kind = event["event"]
            self._unfinished_step = None if kind == "epoch_ended" else row.step
            if row.values and (self._tracker.running or kind != "trained"):
                before = self._rows.get(row.step, row).values
                self._rows[row.step] = row._replace(values={**before, **row.values})


def _make_row(event: Mapping[str, Any]) -> Row | None:
    """Return the numbers of an event of a journal; None if it has none, or not as expected.

    >>> metrics = {"loss": "NaN", "table": [[1]]}
    >>> _make_row({"event": "validated", "step": 5, "time": 0.0, "metrics": metrics})
    Row(step=5, seconds=0.0, values={'val_loss': nan})
    """
    kind, step, seconds = (event.get(name) for name in ("event", "step", "time"))
    if kind not in _PREFIXES or not isinstance(step, int) or not isinstance(seconds, int | float):
        return None
    rates, values = mapping(event.get("learning_rates")), dict[str, float]()
    for name, value in {**mapping(event.get("metrics")), **rates}.items():
        if not getattr(value, "ndim", 0):
            with contextlib.suppress(TypeError, ValueError, OverflowError):
                values[f"{_PREFIXES[kind]}{name}"] = float(value)  # also of "NaN"
    return Row(step, seconds, values) if 0 <= step < 2**62 else None
