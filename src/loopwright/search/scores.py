"""The scores of a trial, read from the journal of its run while it is written."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, final

from loopwright import disk, untrusted
from loopwright.search.asked import is_better
from loopwright.sinks.record import mapping, number

_JOURNAL = "metrics.jsonl"
_VALIDATION = "val_"


@final
class Journal:
    """Reads the lines that a journal has got since the last call."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._read = 0

    def new_events(self) -> list[dict[str, Any]]:
        """Return the events since the last call; none while the last line is incomplete."""
        status = disk.status(self._run_dir, _JOURNAL)
        if status is None:
            return []
        if status.st_size < self._read:
            self._read = 0  # a resumed run cuts its journal, and writes the same lines again
        found = list[dict[str, Any]]()
        for line in untrusted.lines(self._run_dir, _JOURNAL, after=self._read):
            if line.endswith(b"\n"):
                self._read += len(line)
                found.append(untrusted.event(line))
        return found


@final
class Scores:
    """The scores of a trial by one name, in the order of its steps."""

    def __init__(self, objective: str) -> None:
        self._objective = objective
        self.by_step: dict[int, float] = {}
        self.known: list[str] = []
        """The names that the run reports, once it has reported any."""

    def add(self, events: Iterable[Mapping[str, Any]]) -> None:
        """Take the scores of events; what is not a finite number is left out."""
        for event in events:
            step = number(event.get("step"))
            named = _named(event)
            if step is None or not named:
                continue
            self.known += [name for name in named if name not in self.known]
            score = number(named.get(self._objective))
            if score is not None:
                self.by_step[int(step)] = score

    @property
    def in_order(self) -> list[float]:
        """All scores, the first first."""
        return [self.by_step[step] for step in sorted(self.by_step)]

    @property
    def is_unknown(self) -> bool:
        """Whether the run has reported its scores, and none by this name."""
        kind = self._objective.startswith(_VALIDATION)
        same = [name for name in self.known if name.startswith(_VALIDATION) == kind]
        return bool(same) and self._objective not in same


def final_score(scores: list[float], take: str, mode: str) -> float | None:
    """Return the score of a trial; None if there is none.

    >>> final_score([0.3, 0.1, 0.2], "best", "min"), final_score([0.3, 0.1, 0.2], "last", "min")
    (0.1, 0.2)
    """
    if not scores or take == "last":
        return scores[-1] if scores else None
    best = scores[0]
    for score in scores[1:]:
        best = score if is_better(score, best, mode) else best
    return best


def _named(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scores of an event under the names of the history."""
    found = mapping(event.get("metrics"))
    if event.get("event") == "validated":
        return {f"{_VALIDATION}{name}": value for name, value in found.items()}
    return found if event.get("event") == "epoch_ended" else {}
