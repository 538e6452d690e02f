"""The run directory of several workers: the chief holds it, finds and moves for all."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from loopwright.checkpoints import tensors
from loopwright.checkpoints.manifest import Checkpoint
from loopwright.checkpoints.run_directory import Run
from loopwright.checkpoints.snapshot import Snapshot
from loopwright.distribute.team import Team
from loopwright.step_warnings import warn_at_call

Found = tuple[Checkpoint, Snapshot]


@contextlib.contextmanager
def held(run: Run, team: Team) -> Iterator[Found | None]:
    """Hold the run directory, by the chief; yield the newest checkpoint, the same for all."""
    with contextlib.ExitStack() as opened:
        yield newest(run, team, lambda: opened.enter_context(run.opened()))


def newest(run: Run, team: Team, before: Callable[[], object]) -> Found | None:
    """Return the newest checkpoint, found by the chief for all workers after `before()`."""
    own: list[Found] = []

    def find() -> int:
        before()
        found = run.newest()
        own.extend([] if found is None else [found])
        return -1 if found is None else found[0].step

    step = team.from_chief(find)
    if step >= 0 and not own:
        own.append(run.chosen(step))
    return own[0] if own else None


def start_over(run: Run, team: Team, leg: int, why: str) -> Found | None:
    """Move a leg and the later ones aside; return the end of the previous leg."""

    def move() -> int:
        aside = run.start_over(leg)
        differs = why.partition("\n  do: ")[0]
        text = f"{differs}\nStarting over; the previous run was moved to {aside}."
        warn_at_call(text)
        return 0

    team.from_chief(move)
    return run.end_of(leg - 1) if leg else None


def require_same_state(team: Team, named: Mapping[str, Any]) -> None:
    """Raise if a variable that all workers share differs between them."""
    if not team.is_alone:
        shared = {name: v for name, v in named.items() if name not in team.differing(named)}
        team.require_same("state", tensors.digest(tensors.snapshot(shared)))
