"""What a run has recorded about its steps: legs, losses, skipped batches, where it ended."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from loopwright import untrusted
from loopwright.checkpoints.run_directory import Run
from loopwright.sinks.record import mapping, number
from loopwright.sinks.run_files import JOURNAL

_KINDS = ("started", "trained", "validated", "epoch_ended", "batch_skipped", "finished")


@final
@dataclass(frozen=True)
class RunRecord:
    """The steps of a run, as its journal and its checkpoints tell them."""

    starts: Mapping[int, int]
    """The steps at which a process began to train, each with the first step of its leg."""
    numbers: Mapping[int, Mapping[str, float]]
    """The numbers of the epoch after some steps, by step."""
    scores: Mapping[int, Mapping[str, float]]
    """The scores of each validation, by step."""
    skipped: frozenset[int]
    """The steps whose batch was skipped after a rollback."""
    steps_per_second: float | None
    """Of the last start that ended by itself; None if none did."""
    last_step: int
    """The last step that is known to have been run."""
    failed_step: int | None
    """The step that ended the run with an error or a loss of NaN."""

    def leg_start(self, step: int) -> int:
        """Return how many steps were run before the leg of a step began."""
        known = [start for start in self.starts if start < step]
        return self.starts[max(known)] if known else 0


def read_run(run: Run) -> RunRecord:
    """Return what a run has recorded; it is read only."""
    starts, numbers, scores = dict[int, int](), dict[int, Any](), dict[int, Any]()
    skipped, steps, failed = set[int](), [0], None
    began, rate = 0, None
    for event in _events(run.directory):
        kind, step = event["event"], event.get("step")
        if not isinstance(step, int):
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
            rate = _steps_per_second(event, (failed or step) - began) or rate
    steps += [entry.step for entry in run.entries()]
    return RunRecord(
        starts=starts,
        numbers=numbers,
        scores=scores,
        skipped=frozenset(skipped),
        steps_per_second=rate,
        last_step=max([*steps, failed or 0]),
        failed_step=failed,
    )


def _events(run_dir: Path) -> Iterator[dict[str, Any]]:
    with contextlib.suppress(FileNotFoundError):
        for line in untrusted.lines(run_dir, JOURNAL):
            event = untrusted.event(line)
            if event.get("event") in _KINDS:
                yield event


def _steps_per_second(finished: Mapping[str, Any], steps: int) -> float | None:
    spent = mapping(finished.get("spent"))
    seconds = sum(number(spent.get(part)) or 0.0 for part in ("step", "data wait"))
    return steps / seconds if steps > 0 and seconds else None


def _numbers(event: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics of an event that are numbers; JSON has NaN and infinity as words."""
    found = mapping(event.get("metrics"))
    words = ("NaN", "Infinity", "-Infinity")
    values = {name: float(v) if v in words else number(v) for name, v in found.items() if _plain(v)}
    return {name: value for name, value in values.items() if value is not None}


def _plain(value: Any) -> bool:
    return isinstance(value, int | float | str)
