"""A run directory: what is saved in it, and what is found in it when a run starts again."""

import contextlib
import datetime
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

from loopwright import plan_history, readers, run_lock, tensors
from loopwright.checkpoint import Store
from loopwright.data.source import Read
from loopwright.disk import write_whole
from loopwright.errors import ConfigurationError, LoopwrightWarning, message
from loopwright.legs import Reached
from loopwright.manifest import Checkpoint
from loopwright.plan_history import PlanHistory
from loopwright.retention import Entry, KeepBest, Rule, best
from loopwright.saving import Writer
from loopwright.schedule import Place, every

_MOST_POSITION_BYTES = 64 * 2**20
_BITS = {"bool": 8} | {
    f"{kind}{bits}": bits for kind in ("float", "int", "uint", "bfloat") for bits in (8, 16, 32, 64)
}


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
    batch: Any
    """What batches are like; None without data, or if that cannot be written down."""
    has_data: bool
    lengths: Mapping[str, int]
    """How many bytes the files had that grow with the run, like `metrics.jsonl`."""
    passed_over: Sequence[int]
    """Steps whose batch was left out."""
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
        self._told_of_position = False

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Holds the directory for one process."""
        self._make()
        with run_lock.held(self.directory / "lock"):
            self._store.clean()
            yield

    @contextlib.contextmanager
    def written(self) -> Iterator[None]:
        """At the end everything that was saved in it is on disk."""
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

    def chosen(self, which: "str | int") -> tuple[Checkpoint, Snapshot]:
        """The checkpoint of a step, the "last" one, or the "best" by the first `KeepBest`."""
        if which == "last":
            found = self.newest()
            if found is not None:
                return found
        elif which == "best":
            rule = next((r for r in self._rules if isinstance(r, KeepBest)), KeepBest())
            ranked = best([entry(c) for c in self._store.all() if not c.damage], rule)
            if ranked:
                return self._at(ranked[0])
            raise ConfigurationError(
                message(
                    "No checkpoint of this run is the best one.",
                    expected=f"checkpoints with a score {rule.metric!r}",
                    received=f"none in {self.directory}",
                    do='validate where the run is saved, name another metric with KeepBest("..."),'
                    ' or restore "last"',
                )
            )
        elif isinstance(which, int) and not isinstance(which, bool):
            return self._at(which)
        else:
            raise ConfigurationError(
                message(
                    "This does not name a checkpoint.",
                    expected='"best", "last" or a step',
                    received=repr(which),
                    do='call restore("best")',
                )
            )
        raise ConfigurationError(
            message(
                "This run has no checkpoint yet.",
                expected=f"at least one in {self.directory}",
                received="none",
                do="train first, or check run_dir",
            )
        )

    def _at(self, step: int) -> tuple[Checkpoint, Snapshot]:
        found = self._store.at(step)
        return found, parsed(found.content)

    def end_of(self, leg: int) -> tuple[Checkpoint, Snapshot]:
        """The checkpoint with which a leg ended."""
        for found in self._store.all():
            if found.content.get("leg") == leg and found.content["place"]["is_over"]:
                return self._at(found.step)
        raise ConfigurationError(
            message(
                f"The end of leg {leg + 1} is missing from this run.",
                expected=f"a checkpoint at the end of each leg in {self.directory}",
                received="checkpoints of a later leg only",
                do='to score or export what is trained, call restore("last"); to train on from '
                f"it, start a new run with init_from={os.fspath(self.directory)!r}; to train "
                "again from the beginning, pass fresh=True",
            )
        )

    def go_on_from(self, checkpoint: Checkpoint) -> None:
        """Sets later checkpoints aside: the next start must not find what is abandoned now."""
        self._store.set_aside_after(checkpoint.step)

    def set_failures_aside(self) -> None:
        """Sets checkpoints aside that were written when the data had already failed further on.

        They would fail again after it was mended.
        """
        self._writer.wait()
        last_good = None
        for found in reversed([each for each in self._store.all() if not each.damage]):
            is_over = found.content["place"]["is_over"]
            if is_over or not readers.holds_failure(tensors.read(found.path / "state")):
                last_good = found.step
                break
        if self._store.set_aside_after(-1 if last_good is None else last_good):
            again = "from its beginning" if last_good is None else f"from step {last_good:,}"
            warnings.warn(
                "Later checkpoints had read the data ahead that has failed, and are set aside: "
                f"started again, this run goes on {again}.",
                LoopwrightWarning,
                stacklevel=2,
            )

    def plans(self, snapshot: Snapshot) -> PlanHistory:
        """The plans of the run: as far as `plan.json` tells, or else until the snapshot."""
        saved, recorded = plan_history.parsed(snapshot.plans), self.recorded_plans()
        if recorded is not None and recorded.until(snapshot.step).changes == saved.changes:
            return recorded
        return saved

    def recorded_plans(self) -> PlanHistory | None:
        """What `plan.json` tells; None if it cannot be read."""
        with contextlib.suppress(ConfigurationError):
            return plan_history.load(self.directory / "plan.json")
        return None

    def save(
        self,
        snapshot: Snapshot,
        held: Mapping[str, Any],
        required: Mapping[str, Any],
        sync: Callable[[], None],
    ) -> None:
        """Writes a checkpoint in the background; `held` are tensors that nobody changes.

        Those `required` to be finite are looked at first; `sync` brings to disk what the
        checkpoint refers to.
        """

        def write() -> None:
            tensors.require_finite(required, snapshot.step)
            content = asdict(snapshot)
            sync()
            path = self._store.write(
                snapshot.step, content, lambda into: tensors.write(into / "state", held)
            )
            self._report_position(path, snapshot)
            whole = [entry(found) for found in self._store.all() if not found.damage]
            self._store.apply_retention(self._rules, whole)

        self._writer.start(write)

    def _report_position(self, path: Path, snapshot: Snapshot) -> None:
        """Tells once of a place in the data that makes checkpoints large."""
        taken_bytes = position_bytes(path, snapshot.variables)
        if taken_bytes > _MOST_POSITION_BYTES and not self._told_of_position:
            self._told_of_position = True
            warnings.warn(
                message(
                    f"The place in the data takes {taken_bytes >> 20:,} MB of each checkpoint.",
                    do="shuffle file names or indices instead of examples, use a smaller shuffle "
                    "buffer, or save the number of batches only: lw.Stream(dataset, replay=True)",
                ),
                LoopwrightWarning,
                stacklevel=2,
            )

    def wait(self) -> None:
        """Until everything is on disk; raises what went wrong."""
        self._writer.wait()

    def write_plans(self, plans: PlanHistory) -> None:
        """Keeps `plan.json` up to date, on disk before the plan is used."""
        write_whole(self.directory / "plan.json", plans.text().encode(), durable=True)

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


def position_bytes(checkpoint: Path, variables: Sequence[Mapping[str, Any]]) -> int:
    """How much of a checkpoint is not variables: the place in the data, and what callbacks hold."""
    known = sum(
        math.prod(row["shape"]) * _BITS.get(row["dtype"], 0) // 8
        for row in variables
        if row["shape"] is not None
    )
    files = sum(path.stat().st_size for path in checkpoint.glob("state.data-*"))
    return max(files - known, 0)


def parsed(content: Mapping[str, Any]) -> Snapshot:
    """A snapshot as it was written."""
    place, read = Place(**content["place"]), Read(**content["read"])
    return Snapshot(**{**content, "place": place, "read": read})


def entry(found: Checkpoint) -> Entry:
    """What decides whether a checkpoint is kept."""
    scores = {f"val_{name}": value for name, value in found.content["scores"].items()}
    place = found.content["place"]
    return Entry(found.step, found.content["leg"], place["is_over"], scores)
