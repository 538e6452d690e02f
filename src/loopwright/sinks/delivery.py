"""One run brought to one tracker: what it has is asked, what is missing is sent, in order."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, final

from loopwright.events import RunFacts
from loopwright.sinks.tracked_rows import Entry, Known, Row, Rows, journal_entries
from loopwright.sinks.tracked_run import Artifact, Facts, TrackedRun

Status = Literal["completed", "failed", "interrupted", "running"]
_ROWS_AT_ONCE = 100


class Service(Protocol):
    """A tracker as a place to bring points to; every method may raise, and is tried again."""

    tracker: str
    """The name in configs: mlflow, wandb."""
    address: Mapping[str, str]
    """Where it is: two sinks with the same address are the same place."""
    joins_rows: bool
    """Whether a later row of the same step adds to the first one."""

    def named(self, values: Mapping[str, float]) -> dict[str, float]:
        """Return values under the names that the tracker accepts."""
        ...

    def open(self, run: TrackedRun, *, is_training: bool) -> Known:
        """Find the tracked run by its key, or create it; return the points that it has."""
        ...

    def describe(self, facts: Facts) -> None:
        """Send parameters, tags and signatures, unless they are there."""
        ...

    def send(self, rows: Sequence[Row]) -> None:
        """Send rows; when this returns, the tracker has them, or will not lose them."""
        ...

    def upload(self, artifacts: Sequence[Artifact]) -> None:
        """Send files."""
        ...

    def close(self, status: Status) -> None:
        """Set the status of the tracked run, and wait until everything was received."""
        ...


@final
@dataclass(eq=False)
class Delivery:
    """What is on its way to a tracker, of one run.

    The training adds entries; only `deliver` talks to the tracker, in one thread.
    """

    run: TrackedRun
    artifacts: Sequence[str]
    running: bool
    entries: deque[Entry] = field(default_factory=deque[Entry])
    status: Status = "running"
    """`completed`, `failed` or `interrupted` after the last event of a start."""
    journal_bytes: int | None = 0
    """How much of the journal was written before this start; None: all of it is to be sent."""
    facts: RunFacts | None = None
    _rows: Rows = field(default_factory=Rows)
    _unsent: list[Row] = field(default_factory=list[Row])
    _known: Known | None = None
    _has_journal: bool = False
    sent_points: int = 0

    @property
    def missing_rows(self) -> int:
        """How many rows are known to be missing at the tracker."""
        return len(self._unsent) + sum(1 for entry in list(self.entries) if entry.values)

    def forget(self) -> None:
        """Ask the tracker again before anything is sent: it may have what seemed to fail."""
        self._known = None

    def deliver(self, service: Service) -> Status:
        """Send everything that is there, and return the status of the run that was sent.

        Raises what the tracker or the network raises: call `forget` before the next try.
        """
        if self._known is None:
            self.run.note_facts(self.facts)
            self.run.note_wanted(self.artifacts, running=self.running)
            self._known = service.open(self.run, is_training=self.status == "running")
            environment = None if self.facts is None else self.facts.environment
            service.describe(self.run.facts(environment))
        if not self._has_journal:
            self._unsent, self._has_journal = self._written_before(), True
        status = self.status  # before the entries: whatever came before it is taken
        while self.entries:
            self._unsent += self._rows.add(self.entries.popleft())
        if status == "completed" or (status != "running" and service.joins_rows):
            self._unsent += self._rows.rest()
        self._send(service, self._known)
        if status != "running":
            with self.run.artifacts(self.artifacts) as found:
                if found:
                    service.upload(found)
                    self.run.note_artifacts(found)
            service.describe(self.run.facts())  # the plan may have been chosen meanwhile
            service.close(status)
        return status

    def _written_before(self) -> list[Row]:
        rows, found, directory = Rows(), list[Row](), self.run.directory
        if directory is not None:
            for entry in journal_entries(directory, self.journal_bytes, running=self.running):
                found += rows.add(entry)
        self._rows = rows
        return found

    def _send(self, service: Service, known: Known) -> None:
        while self._unsent:
            rows = list[Row]()
            for row in self._unsent[:_ROWS_AT_ONCE]:
                named = Row(row.step, row.seconds, service.named(row.values))
                values = known.missing(named)
                known.add(row.step, values.keys())  # a row may come twice, after a rollback
                if values:
                    rows.append(Row(row.step, row.seconds, values))
            if rows:
                service.send(rows)
            self.sent_points += sum(len(row.values) for row in rows)
            del self._unsent[:_ROWS_AT_ONCE]


def in_words(service: Service) -> str:
    """Return a tracker and its address: `mlflow (tracking_uri=http://127.0.0.1:5000)`."""
    listed: list[Any] = [f"{name}={value}" for name, value in service.address.items()]
    return f"{service.tracker} ({', '.join(listed)})"
