"""A sink that brings the numbers of a run to a tracker, in a thread of its own.

The journal of the run directory is the outbox: it holds every point before the tracker does. A
tracker that is down is tried again; what it still misses at the end, the next start of the run or
`loopwright sync RUN` sends.
"""

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import final

from loopwright import disk
from loopwright.errors import ConfigurationError, first_line, message
from loopwright.events import Event, Finished, Started, Trained
from loopwright.sinks.delivery import Delivery, Service, Status, in_words
from loopwright.sinks.tracked_rows import JOURNAL, entry_of
from loopwright.sinks.tracked_run import ARTIFACTS, TrackedRun
from loopwright.step_warnings import warn_at_call

_SECONDS_BETWEEN_RUNNING = 1.0
_LONGEST_PAUSE_SECONDS = 60.0
_STATUS: dict[str, Status] = {
    "complete": "completed",
    "stopped": "completed",
    "left": "completed",
    "skipped": "completed",
    "failed": "failed",
    "interrupted": "interrupted",
}


@final
class Tracker:
    """Receives events, and brings their numbers to a service; made by `MLflow` and `WandB`."""

    def __init__(
        self, service: Service, *, artifacts: Sequence[str], running: bool, wait_seconds: float
    ) -> None:
        unknown = [kind for kind in artifacts if kind not in ARTIFACTS]
        if isinstance(artifacts, str) or unknown:
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
        self._deliveries: list[Delivery] = []
        """The runs that are not completely sent yet, the current one last."""
        self._current: Delivery | None = None
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._trouble: str | None = None
        """The last error, while the tracker cannot be reached."""
        self._failures, self._hurries = 0, False
        self._is_row_open = False
        self._has_warned = False
        self._last_running = -_SECONDS_BETWEEN_RUNNING

    def __call__(self, event: Event) -> None:
        """Note an event; nothing is sent in this thread."""
        if isinstance(event, Started):
            self._start(event)
        elif isinstance(event, Finished) and event.reason == "skipped":
            # A process that was killed between its last checkpoint and the last point.
            self._begin(event.run_dir, None, None)
        current = self._current
        if current is None:
            return
        entry = entry_of(event, time.time(), running=self._takes_running(event))
        # Most of `Trained` only says that a step is over: of interest if a row waits for that.
        if entry is not None and (entry.values or self._is_row_open):
            self._is_row_open = bool(entry.values) and not entry.ends_row
            with self._changed:
                current.entries.append(entry)
                self._changed.notify_all()
        if isinstance(event, Finished):
            self._end(current, _STATUS[event.reason])
        self._warn_of_trouble()

    def send_artifacts(self) -> None:
        """Send files that were written after the training: figures, exports, the last report."""
        if self._artifacts and self._current and self._current.run.directory is not None:
            status = self._current.status
            self._begin(self._current.run.directory, None, None)
            self._end(self._current, "completed" if status == "running" else status)

    def _start(self, event: Started) -> None:
        current = self._current
        # Without a run directory, a second call of `fit` continues the tracked run.
        if event.run_dir is None and event.step and current and current.run.directory is None:
            with self._changed:
                current.status = "running"
                if current not in self._deliveries:
                    current.forget()
                    self._deliveries.append(current)
            self._work()
            return
        written = 0
        if event.run_dir is not None:
            found = disk.status(event.run_dir, JOURNAL)
            written = 0 if found is None else found.st_size
        self._begin(event.run_dir, written, event)

    def _begin(
        self, run_dir: Path | None, journal_bytes: int | None, event: Started | None
    ) -> None:
        run = TrackedRun(run_dir, self._service.tracker, self._service.address)
        self._current = Delivery(
            run,
            self._artifacts,
            self._running,
            journal_bytes=journal_bytes,
            facts=None if event is None else event.facts,
        )
        with self._changed:
            self._deliveries.append(self._current)
        self._work()

    def _takes_running(self, event: Event) -> bool:
        if not self._running or not isinstance(event, Trained):
            return False
        now = time.monotonic()
        if now - self._last_running < _SECONDS_BETWEEN_RUNNING:
            return False
        self._last_running = now
        return True

    def _work(self) -> None:
        """Start the thread, unless it runs."""
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name=f"loopwright-{self._service.tracker}", daemon=True
                )
                self._thread.start()

    def _run(self) -> None:
        pause_seconds = 1.0
        while True:
            with self._changed:
                if not self._deliveries:
                    self._thread = None
                    self._changed.notify_all()
                    return
                delivery = self._deliveries[0]
            try:
                status = delivery.deliver(self._service)
            except Exception as error:
                delivery.forget()
                with self._changed:
                    self._trouble, self._hurries = first_line(error), False
                    self._failures += 1
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: self._hurries, pause_seconds)
                pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)
                continue
            pause_seconds = 1.0
            with self._changed:
                self._trouble = None
                if delivery.entries or delivery.status != status:
                    continue
                if status != "running" or self._deliveries[-1:] != [delivery]:
                    self._deliveries = [each for each in self._deliveries if each is not delivery]
                    self._changed.notify_all()
                else:
                    self._changed.wait()

    def _end(self, delivery: Delivery, status: Status) -> None:
        """Wait until a run is sent; not longer than promised, and for one try if it is down."""
        with self._changed:
            delivery.status, self._hurries = status, True
            failures = self._failures
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: delivery not in self._deliveries or self._failures > failures,
                self._wait_seconds,
            )
            is_sent = delivery not in self._deliveries
        if is_sent:
            return
        where, rows = delivery.run.directory, delivery.missing_rows
        self._has_warned = True
        warn_at_call(
            message(
                f"{in_words(self._service)} does not have everything of this run: {rows:,} rows "
                "are missing or not confirmed.",
                received=self._trouble or f"no answer within {self._wait_seconds:g} seconds",
                do="keep this process running: without a run directory the rows are only in it"
                if where is None
                else f"run when it is back: loopwright sync {where}",
            )
        )

    def _warn_of_trouble(self) -> None:
        """Warn once, in the thread that trains."""
        trouble = self._trouble
        if trouble is not None and not self._has_warned:
            self._has_warned = True
            warn_at_call(
                f"{in_words(self._service)} cannot be reached: {trouble}. Training continues; its "
                "points are kept, and sent when it is back."
            )
