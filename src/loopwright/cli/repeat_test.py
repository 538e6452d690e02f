"""Train a program twice in child processes, and say what makes it differ from itself."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from loopwright import runs
from loopwright.cli.compare_command import compared_states
from loopwright.cli.kill_test import Command, finish, start
from loopwright.exactness import recorded_reasons
from loopwright.insight.comparison import (
    Differs,
    differences,
    equal_until,
)
from loopwright.runs import RunRecord


@final
@dataclass(frozen=True)
class Repeated:
    """Two trainings of one program, compared."""

    steps: int
    is_same: bool
    causes: Sequence[str] = ()
    notes: Sequence[str] = ()

    def __str__(self) -> str:
        if self.is_same:
            lines = [f"repeats itself: {self.steps:,} steps, trained twice: identical bits"]
            return "\n".join([*lines, *self.notes])
        head = f"DOES NOT REPEAT ITSELF: {self.steps:,} steps, trained twice: different bits"
        return "\n".join([head, *self.notes, *(f"cause: {cause}" for cause in self.causes)])


def repeated(
    title: str, command: Command, code: Sequence[str], *, say: Callable[[str], None]
) -> Repeated:
    """Train twice from the beginning, the second time by the plans of the first, and compare."""
    with tempfile.TemporaryDirectory(prefix="loopwright-repeat-") as directory:
        first, second = Path(directory) / "first", Path(directory) / "second"
        say(f"training {title}")
        finish(start(command, first, None), first)
        say("training it again, by the same plans")
        finish(start(command, second, str(first / "plan.json")), second)
        records = [runs.open(first), runs.open(second)]
        return _compared(records, list(code), say)


def _compared(
    records: Sequence[RunRecord], code: list[str], say: Callable[[str], None]
) -> Repeated:
    one, other = records
    last = min(max(one.checksums, default=0), max(other.checksums, default=0))
    equal, differing = equal_until(one, other)
    reasons = recorded_reasons(one.content)
    if equal == last and differing is None:
        notes = [f"it could not be resumed exactly: {reason}" for reason in reasons]
        return Repeated(last, is_same=True, notes=notes)
    notes = [] if equal is None else [f"equal until step {equal:,} at least"]
    causes = [*_of_the_record(records), *reasons]
    if causes:
        return Repeated(last, is_same=False, causes=causes, notes=notes)
    say("looking for the first step that differs")
    verdict = compared_states(records, [], code, find=True)
    return Repeated(last, is_same=not verdict.differs, notes=verdict.lines)


def _of_the_record(records: Sequence[RunRecord]) -> list[str]:
    """Return what the two trainings have recorded differently, in words."""
    found = differences(records)
    words = {
        "data": "the data differs each time it is made, so something in it draws without a seed",
        "program": "the program builds something else each time",
        "code": "the code differs each time",
    }
    texts = list[str]()
    for kind, text in words.items():
        own = [each for each in found if each.kind == kind]
        if own:
            texts.append(f"{text}: {_listed(own)}")
    return texts


def _listed(found: Sequence[Differs]) -> str:
    more = f", and {len(found) - 2} more" if len(found) > 2 else ""
    return "; ".join(map(str, found[:2])) + more
