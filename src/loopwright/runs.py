"""A run directory: what is saved in it, and what is found in it when a run starts again."""

import contextlib
import datetime
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

from loopwright import run_lock, tensors
from loopwright.checkpoint import Store
from loopwright.data.source import Read
from loopwright.errors import ConfigurationError, LoopwrightWarning, message
from loopwright.legs import Reached
from loopwright.manifest import Checkpoint
from loopwright.plan_history import PlanHistory
from loopwright.retention import Entry, Rule
from loopwright.saving import Writer
from loopwright.schedule import Place, every


@dataclass(frozen=True)
class Snapshot:
    """A moment of a run: everything but its tensors."""

    leg: int
    until: str
    place: Place
    scores: Mapping[str, Any]
    first_step: int
    first_epoch: int
    read: Read
    """What the leg has read of its data."""
    data: Mapping[str, Any]
    tally: Mapping[str, Any]
    history: Mapping[str, Any]
    callbacks: Sequence[Mapping[str, Any]]
    plans: Mapping[str, Any]
    variables: Sequence[Mapping[str, Any]]
    environment: Mapping[str, Any]
    exact_until_step: int | None = None
    """Since when the bits may differ from those of a run that was never interrupted."""

    @property
    def step(self) -> int:
        """How many steps the whole run had done."""
        return self.first_step + self.place.step

    @property
    def reached(self) -> Reached:
        """How far the run had come."""
        return Reached(self.leg, self.place, every(self.until))


@final
class Run:
    """A run directory."""

    def __init__(self, directory: str | os.PathLike[str], rules: Sequence[Rule]) -> None:
        self.directory = Path(directory)
        self._rules = rules
        self._store = Store(self.directory / "checkpoints")
        self._writer = Writer()

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Holds the directory for one process; at the end everything is on disk."""
        self._make()
        with run_lock.held(self.directory / "lock"):
            self._store.clean()
            try:
                yield
            except BaseException:
                # What is already failing is more important than what else fails.
                with contextlib.suppress(Exception):
                    self._writer.wait()
                raise
            self._writer.wait()

    def move_aside(self) -> None:
        """Makes room for a run that starts over; nothing is deleted."""
        if self.directory.exists():
            now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
            aside = self.directory.with_name(f"{self.directory.name}.old-{now}")
            self.directory.rename(aside)
            warnings.warn(f"The run before lies in {aside}.", LoopwrightWarning, stacklevel=2)

    def newest(self) -> "tuple[Checkpoint, Snapshot] | None":
        """The newest checkpoint that is whole."""
        found = self._store.newest()
        return None if found is None else (found, parsed(found.content))

    def end_of(self, leg: int) -> tuple[Checkpoint, Snapshot]:
        """The checkpoint with which a leg ended."""
        for found in self._store.all():
            if found.content.get("leg") == leg and found.content["place"]["is_over"]:
                whole = self._store.at(found.step)
                return whole, parsed(whole.content)
        raise ConfigurationError(
            message(
                f"The end of leg {leg + 1} is missing from this run.",
                expected=f"a checkpoint at the end of each leg in {self.directory}",
                received="a later leg without it",
                do="restore the directory, or start over with fresh=True",
            )
        )

    def save(self, snapshot: Snapshot, held: Mapping[str, Any]) -> None:
        """Writes a checkpoint in the background; `held` are tensors that nobody changes."""

        def write() -> None:
            tensors.require_finite(held, snapshot.step)
            content = asdict(snapshot)
            self._store.write(
                snapshot.step, content, lambda into: tensors.write(into / "state", held)
            )
            whole = [entry(found) for found in self._store.all() if not found.damage]
            self._store.apply_retention(self._rules, whole)

        self._writer.start(write)

    def wait(self) -> None:
        """Until everything is on disk; raises what went wrong."""
        self._writer.wait()

    def write_plans(self, plans: PlanHistory) -> None:
        """Keeps `plan.json` up to date, on disk before the plan is used."""
        path = self.directory / "plan.json"
        temporary = path.with_suffix(".tmp")
        plans.save(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)

    def _make(self) -> None:
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(
                message(
                    "The run directory cannot be made.",
                    expected="a directory that can be written to",
                    received=f"run_dir={os.fspath(self.directory)!r}: {error.strerror}",
                    do="choose another run_dir, or mend its permissions",
                )
            ) from None


def parsed(content: Mapping[str, Any]) -> Snapshot:
    """A snapshot as it was written."""
    place, read = Place(**content["place"]), Read(**content["read"])
    return Snapshot(**{**content, "place": place, "read": read})


def entry(found: Checkpoint) -> Entry:
    """What decides whether a checkpoint is kept."""
    scores = {f"val_{name}": value for name, value in found.content["scores"].items()}
    place = found.content["place"]
    return Entry(found.step, found.content["leg"], place["is_over"], scores)
