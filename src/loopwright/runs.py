"""What the files of a run directory say, read in one place and without TensorFlow.

    record = runs.open("runs/first")
    record.status, record.best, record.steps.failed_step

No run is changed; `write_fork` begins a new run. The files may come from an untrusted source: any
field may have any type.
"""

import contextlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, final

from loopwright import disk, untrusted
from loopwright.checkpoints import lock
from loopwright.checkpoints.manifest import Checkpoint, DamagedError, in_run, verified
from loopwright.checkpoints.retention import Best, KeepBest, best_of, recorded_rules
from loopwright.checkpoints.store import Store
from loopwright.config.file import saved_in
from loopwright.errors import CheckpointError, ConfigurationError, disk_explained, printable
from loopwright.exactness import Inexact, recorded_reasons
from loopwright.plans import record as plan_record
from loopwright.plans.record import PlanHistory

JOURNAL: Final = "metrics.jsonl"
KINDS: Final = ("started", "epoch_ended", "validated", "finished")
"""The events that reports and summaries use; lines of other events are not parsed."""
_ORIGIN: Final = "origin.json"

_MOST_LINES = 10_000
_PREFIX = b'{"event": "'
_LENGTH = len(_PREFIX) + min(map(len, KINDS))
_OF_STEPS = ("trained", "batch_skipped", *KINDS)


@final
@dataclass(frozen=True)
class Sample:
    """Events of one kind in order; the last event is always included."""

    events: list[dict[str, Any]]
    count: int
    """How many lines of this kind the journal has."""
    every: int
    """1: every line was read. 8: every eighth line."""


@final
@dataclass(frozen=True)
class RecordedSteps:
    """The steps of a run, as its journal and its checkpoints tell them."""

    starts: dict[int, int] = field(default_factory=dict[int, int])
    """The steps at which a process began to train, each with the first step of its leg."""
    numbers: dict[int, dict[str, float]] = field(default_factory=dict[int, dict[str, float]])
    """The numbers of the epoch after some steps, by step."""
    scores: dict[int, dict[str, float]] = field(default_factory=dict[int, dict[str, float]])
    """The scores of each validation, by step."""
    skipped: frozenset[int] = frozenset()
    """The steps whose batch was skipped after a rollback."""
    steps_per_second: float | None = None
    """Of the last start that ended by itself; None if none did."""
    last_step: int = 0
    """The last step that is known to have been run."""
    failed_step: int | None = None
    """The step that ended the run with an error or a loss of NaN."""

    def leg_start(self, step: int) -> int:
        """Return how many steps were run before the leg of a step began."""
        known = [start for start in self.starts if start < step]
        return self.starts[max(known)] if known else 0


@final
@dataclass(frozen=True)
class RunRecord:
    """A run as read from its files; what is missing is empty."""

    directory: Path

    @cached_property
    def journal(self) -> Mapping[str, Sample]:
        """Return the events by kind; a sample if the journal is long."""
        return read_sample(self.directory)

    @cached_property
    def status(self) -> dict[str, Any]:
        """Return `status`, `step` and `time` of the run."""
        return self.json("status.json")

    @cached_property
    def inexact(self) -> str:
        """Return why the run cannot be resumed exactly, in a sentence; empty if it can."""
        reasons = self.status.get("not_exactly_resumable")
        listed = reasons if isinstance(reasons, list) else []
        texts = [text for text in listed if isinstance(text, str)]
        return str(Inexact(tuple(texts))) if texts else ""

    @cached_property
    def finished(self) -> dict[str, Any]:
        """Return the event that ended the last leg."""
        return self._last("finished")

    @cached_property
    def last_epoch(self) -> dict[str, Any]:
        """Return the numbers of the last epoch, under the names that Keras gives them."""
        ended = self._last("epoch_ended")
        scores = {f"val_{name}": value for name, value in mapping(ended.get("validation")).items()}
        return {**mapping(ended.get("metrics")), **scores}

    @cached_property
    def epoch_losses(self) -> dict[int, Any]:
        """Return the training metrics at the end of each epoch, by step."""
        events = self.journal["epoch_ended"].events if "epoch_ended" in self.journal else []
        steps = [(number(event.get("step")), event.get("metrics")) for event in events]
        return {int(step): metrics for step, metrics in steps if step is not None}

    @property
    def seconds_per_step(self) -> float:
        """How long a step took, everything included; 0 if unknown."""
        seconds, steps = number(self.finished.get("seconds")), self.finished.get("step")
        return seconds / steps if seconds and isinstance(steps, int) and steps > 0 else 0.0

    @cached_property
    def saved(self) -> list[Checkpoint]:
        """Return all checkpoints, the damaged ones included, the oldest first."""
        try:
            return Store(self.directory / "checkpoints").all()
        except disk.UnsafeFileError:
            raise
        except CheckpointError:
            return []

    @cached_property
    def checkpoints(self) -> list[Checkpoint]:
        """Return the valid checkpoints, the oldest first."""
        return [c for c in self.saved if c.is_usable]

    @cached_property
    def content(self) -> Mapping[str, Any]:
        """Return the content of the newest checkpoint."""
        return self.checkpoints[-1].content if self.checkpoints else {}

    @cached_property
    def checksums(self) -> dict[int, dict[str, Any]]:
        """Return the checksums of the state in each checkpoint, by step."""
        return {
            checkpoint.step: {n: f for n, f in checkpoint.files.items() if n.startswith("state.")}
            for checkpoint in self.checkpoints
        }

    @cached_property
    def best(self) -> Best | None:
        """Return the checkpoint of `restore("best")`."""
        return best_of(self.checkpoints, rules_of(self.directory, self.checkpoints)[0])

    @cached_property
    def plans(self) -> PlanHistory:
        """Return the plans that it ran by."""
        return plan_record.recorded(self.directory) or PlanHistory()

    @cached_property
    def origin(self) -> str:
        """Return where it was forked from, with the changes; empty if it was not."""
        return origin_of(self.directory, changes=True)

    @cached_property
    def shares(self) -> list[tuple[str, float]]:
        """Return the shares of the last leg's time, the largest first."""
        spent = {n: number(v) or 0.0 for n, v in mapping(self.finished.get("spent")).items()}
        spent = {name: seconds for name, seconds in spent.items() if seconds > 0}
        total = sum(spent.values())
        shares = [(name, seconds / total) for name, seconds in spent.items()]
        return sorted(shares, key=lambda share: -share[1])

    @cached_property
    def steps(self) -> RecordedSteps:
        """Return what was recorded of each step: every event is read."""
        starts, numbers, scores = dict[int, int](), dict[int, Any](), dict[int, Any]()
        skipped, steps, failed = set[int](), [0], None
        began, rate = 0, None
        for _, event in self.events():
            kind, step = event.get("event"), event.get("step")
            if kind not in _OF_STEPS or not isinstance(step, int):
                continue
            steps.append(step)
            if kind == "started":
                starts[step] = step - int(number(event.get("resumed_steps")) or 0)
                failed, began = None, step
            elif kind == "batch_skipped" and event.get("went_back_to_step") is not None:
                skipped.add(step)
            elif kind == "validated":
                scores[step] = _numbers(event)
            elif kind in ("trained", "epoch_ended"):
                numbers[step] = _numbers(event)
            elif kind == "finished":
                failed = event["failed_step"] if isinstance(event.get("failed_step"), int) else None
                spent = mapping(event.get("spent"))
                seconds = sum(number(spent.get(part)) or 0.0 for part in ("step", "data wait"))
                ran = (failed or step) - began
                rate = ran / seconds if ran > 0 and seconds else rate
        last = max([*steps, *(found.step for found in self.checkpoints), failed or 0])
        return RecordedSteps(starts, numbers, scores, frozenset(skipped), rate, last, failed)

    def events(self, after: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the events of the journal after its first bytes, each with where it ends.

        A line that is still being written is left out: ask again from the last end. A resumed run
        truncates its journal: a journal shorter than `after` is read from its beginning.
        """
        status = disk.status(self.directory, JOURNAL)
        if status is None:
            return
        end = after if after <= status.st_size else 0
        for line in untrusted.lines(self.directory, JOURNAL, after=end):
            if line.endswith(b"\n"):
                end += len(line)
                yield end, untrusted.event(line)

    def json(self, name: str) -> dict[str, Any]:
        """Return the content of a file; empty if it is missing or truncated."""
        return mapping(untrusted.json_or_none(self.directory, name))

    def text(self, name: str) -> str:
        """Return the text of a file; empty if it is missing."""
        try:
            return disk.read(self.directory, name).decode(errors="replace")
        except OSError:
            return ""

    def _last(self, event: str) -> dict[str, Any]:
        sample = self.journal.get(event)
        return sample.events[-1] if sample else {}


def open(directory: "str | os.PathLike[str]") -> RunRecord:
    """Return the record of a run; raise if there is none."""
    record = RunRecord(Path(directory))
    if not record.journal:
        raise ConfigurationError(
            "No run found: nothing to report on.",
            expected=f"a run directory with a {JOURNAL}",
            received=str(directory),
            do="check the path, or train first",
        )
    return record


def rules_of(directory: Path, checkpoints: Sequence[Checkpoint]) -> list[KeepBest]:
    """Return the rules for the best checkpoint: recorded, from the config, or the default."""
    rules = recorded_rules(checkpoints)
    if rules is None:
        try:
            config = saved_in(directory)
        except disk.UnsafeFileError:
            raise
        except ConfigurationError:
            config = None
        rules = [KeepBest(k.best, k.count, k.mode) for k in config.keep if k.best] if config else []
    return rules or [KeepBest()]


def origin_of(directory: Path, *, changes: bool = False) -> str:
    """Return the run and the step that a run was forked from, in words; empty if it was not.

    `changes`: with the config values that were changed.
    """
    origin = RunRecord(directory).json(_ORIGIN)
    step, listed = number(origin.get("step")), origin.get("changes")
    if step is None:
        return ""
    words = [str(each) for each in listed] if isinstance(listed, list) and changes else []
    return printable("; ".join([f"{origin.get('run')}, step {step:,.0f}", *words]))


def is_fork(target: Path, origin: Mapping[str, Any]) -> bool:
    """Return whether a run was forked from this origin; it is resumed instead of made again."""
    return origin.items() <= RunRecord(target).json(_ORIGIN).items()


def write_fork(
    checkpoint: Checkpoint, target: Path, files: Mapping[str, bytes], origin: Mapping[str, Any]
) -> None:
    """Write a run that begins with a checkpoint: state, data position, plans, journal, `files`."""
    plans = plan_record.parsed(checkpoint.content["plans"])
    plan_file = {"plan.json": plans.text().encode()} if plans.changes else {}
    length = int(checkpoint.content.get("lengths", {}).get(JOURNAL, 0))
    # TensorBoard files and the log begin with the fork.
    content = {**checkpoint.content, "lengths": {JOURNAL: length} if length else {}}
    run, name = in_run(checkpoint.path)

    def copy(into: Path) -> None:
        for file in checkpoint.files:
            disk.copy(run, f"{name}/{file}", into, file)

    with disk_explained(target):
        disk.make_run_directory(target)
        with lock.held(target / lock.NAME):
            if length:
                disk.copy(run, JOURNAL, target, JOURNAL)
                disk.cut(target, JOURNAL, length)
                disk.flush(target, JOURNAL)
            for file, written in {**plan_file, **files}.items():
                disk.write_whole(target, file, written, durable=True)
            store = Store(target / "checkpoints")
            store.write(checkpoint.step, content, copy)
            if store.at(checkpoint.step).files != checkpoint.files:
                raise CheckpointError(
                    f"The checkpoint of step {checkpoint.step} changed while it was copied.",
                    expected=f"the files of {checkpoint.path} as they were written",
                    received="other checksums",
                    do=f"delete {target} and fork again",
                )
            # Last: a copy that was interrupted is not taken for a fork.
            disk.write_whole(target, _ORIGIN, json.dumps(origin, indent=2).encode(), durable=True)


def inspected(run_dir: Path) -> dict[str, Any]:
    """Return a description of the checkpoints of a run; verify every byte."""
    found = Store(run_dir / "checkpoints").all()
    newest = next((saved.content for saved in reversed(found) if not saved.damage), {})
    return {
        "run": str(run_dir),
        "checkpoints": [_described(checkpoint) for checkpoint in found],
        "variables": [_variable(row) for row in newest.get("variables", [])],
        "environment": dict(newest.get("environment", {})),
        "not_exactly_resumable": recorded_reasons(newest),
    }


def _described(checkpoint: Checkpoint) -> dict[str, Any]:
    damage, content = checkpoint.damage, checkpoint.content
    try:
        files = {} if damage else dict(verified(checkpoint.path).files)
    except DamagedError as error:
        files, damage = {}, str(error)
    return {
        "step": checkpoint.step,
        "leg": content.get("leg"),
        "epoch": content.get("place", {}).get("epoch"),
        "scores": dict(content.get("scores", {})),
        "bytes": sum(file["bytes"] for file in files.values()),
        "files": files,
        "damage": damage,
    }


def _variable(row: Mapping[str, Any]) -> dict[str, Any]:
    shape, dtype = row["shape"], row["dtype"]
    bits = 8 if dtype == "bool" else int(re.sub(r"\D", "", dtype) or 0)
    known = math.prod(shape) * bits // 8 if bits and shape is not None else None
    return {**row, "bytes": known}


@final
class _Lines:
    """Keeps every n-th line of one kind; n doubles whenever there are too many."""

    def __init__(self) -> None:
        self.kept, self.last = list[bytes](), b""
        self.count, self.every, self.kept_bytes = 0, 1, 0

    def add(self, line: bytes) -> None:
        if not self.count % self.every:
            self.kept.append(line)
            self.kept_bytes += len(line)
            if len(self.kept) > _MOST_LINES or self.kept_bytes > disk.MOST_BYTES:
                self.kept, self.every = self.kept[::2], self.every * 2
                self.kept_bytes = sum(map(len, self.kept))
        self.last = line
        self.count += 1

    def sample(self, kind: str) -> Sample:
        is_last_kept = (self.count - 1) % self.every == 0
        lines = self.kept if is_last_kept else [*self.kept, self.last]
        events = [event for event in map(untrusted.event, lines) if event.get("event") == kind]
        return Sample(events, self.count, self.every)


def read_sample(run_dir: Path) -> dict[str, Sample]:
    """Return the events of a journal by kind; empty if there is no journal.

    Lines that are not JSON are skipped: the last line may be incomplete.
    """
    found = {kind: _Lines() for kind in KINDS}
    # Comparing only the first letters takes half a second for a million lines.
    beginnings = {(_PREFIX + kind.encode())[:_LENGTH]: lines for kind, lines in found.items()}
    with contextlib.suppress(OSError):
        for line in untrusted.lines(run_dir, JOURNAL):
            lines = beginnings.get(line[:_LENGTH])
            if lines is None and not line.startswith(_PREFIX):  # written by another program
                lines = found.get(str(untrusted.event(line).get("event")))
            if lines is not None and (line.endswith(b"\n") or untrusted.event(line)):
                lines.add(line)
    samples = {kind: lines.sample(kind) for kind, lines in found.items()}
    return {kind: sample for kind, sample in samples.items() if sample.events}


def _numbers(event: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics of an event that are numbers; JSON has NaN and infinity as words."""
    words = ("NaN", "Infinity", "-Infinity")
    values = {
        name: float(value) if isinstance(value, str) and value in words else number(value)
        for name, value in mapping(event.get("metrics")).items()
    }
    return {name: value for name, value in values.items() if value is not None}


def mapping(value: Any) -> dict[str, Any]:
    """Return the value if it is a dict, or else an empty dict."""
    return value if isinstance(value, dict) else {}


def number(value: Any) -> float | None:
    """Return the value if it is a finite number, or else None.

    >>> number(3), number("3"), number(True), number(10**400)
    (3.0, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # a large int
        return None


def flatten(content: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return nested values by their path.

    >>> flatten({"fit": {"epochs": 3}, "keep": [{"latest": 2}], "callbacks": []})
    {'fit.epochs': '3', 'keep.0.latest': '2', 'callbacks': '[]'}
    """
    values = dict[str, str]()
    for key, value in content.items():
        inner = value
        if isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
            inner = {str(index): item for index, item in enumerate(value)}
        if isinstance(inner, Mapping) and inner:
            values |= flatten(inner, f"{prefix}{key}.")
        else:
            values[f"{prefix}{key}"] = str(value)
    return values
