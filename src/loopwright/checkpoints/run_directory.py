"""A run directory: what is saved in it, and what a resumed run finds in it."""

import contextlib
import os
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from loopwright import disk
from loopwright.checkpoints import retention, tensors
from loopwright.checkpoints.manifest import Checkpoint
from loopwright.checkpoints.retention import DEFAULT_KEEP, Entry, KeepBest, Rule, best_of
from loopwright.checkpoints.snapshot import Saved, Snapshot, parsed
from loopwright.checkpoints.store import Backend, LocalBackend, Store, Writer
from loopwright.data import readers
from loopwright.errors import ConfigurationError, disk_explained, message
from loopwright.plans import record as plan_record
from loopwright.plans.record import PlanHistory
from loopwright.step_warnings import warn_at_call

CONFIG = "config.yaml"
"""The config that the command line writes; a run that starts over keeps it."""
_EXPORT = "export"
_MOST_POSITION_BYTES = 64 * 2**20


@final
class Run:
    """A run directory; `fresh` moves its content aside when it is first opened.

    `backend` keeps the checkpoints; None: `checkpoints/` of the run directory.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        rules: Sequence[Rule],
        *,
        fresh: bool = False,
        backend: Backend | None = None,
    ) -> None:
        path = Path(directory)
        # The run directory may be a symlink: the run is kept at its target.
        self.directory = path.resolve() if path.is_symlink() else path
        self._fresh = fresh
        self.rules = rules
        self._backend = backend or LocalBackend(self.directory / "checkpoints")
        self._store = Store(self._backend)
        self._writer = Writer()
        self.written_leg: int | None = None
        """The leg of the last checkpoint that this process has written."""
        self._has_warned_of_position = False

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Hold the directory for this process."""
        self._make()
        with self._backend.lock():
            if self._fresh and (moved := self.move_aside()) is not None:
                warn_at_call(f"Previous run moved to {moved}.")
            self._fresh = False
            self._backend.clean()
            yield

    @contextlib.contextmanager
    def written(self) -> Iterator[None]:
        """Wait at the end until everything that was saved is on disk."""
        try:
            yield
        except BaseException:
            # The first error matters more than one of the writer.
            with contextlib.suppress(Exception):
                self._writer.wait()
            raise
        self._writer.wait()

    def move_aside(self) -> Path | None:
        """Move the run aside and hold an empty one in its place; return where; None if empty.

        Only while the directory is opened: no other process uses it then. Nothing is deleted.
        """
        with disk_explained(self.directory, "The run directory cannot be moved aside"):
            return self._backend.move_run_aside()

    def export_directory(self) -> Path:
        """Return the directory for exports; make it if it is missing."""
        self._make()
        with disk_explained(self.directory):
            disk.make_directory(self.directory, _EXPORT)
        return self.directory / _EXPORT

    def fix_export_permissions(self) -> None:
        """Give exports, which other libraries wrote, the modes of the run directory."""
        disk.give_modes(self.directory, _EXPORT)

    def start_over(self, leg: int) -> Path:
        """Set a leg and the later ones aside, with leg 0 the whole run; return where they are.

        Only while the directory is opened. The config is the one of this start, and stays.
        """
        if leg:
            self._store.set_aside_after(self.end_of(leg - 1)[0].step)
            return self._store.directory
        has_config = disk.status(self.directory, CONFIG) is not None
        config = disk.read(self.directory, CONFIG) if has_config else None
        moved = self.move_aside()
        if config is not None:
            self.write(CONFIG, config)
        return self.directory if moved is None else moved

    @property
    def has_checkpoints(self) -> bool:
        """Whether the run has checkpoints, valid or damaged."""
        return bool(self._backend.steps())

    def newest(self) -> Saved | None:
        """Return the newest valid checkpoint; None if there is none."""
        checkpoint = self._store.newest()
        return None if checkpoint is None else (checkpoint, parsed(checkpoint))

    @property
    def asked_rules(self) -> list[KeepBest]:
        """The `KeepBest` rules that the user passed; none if the trainer has its default rules."""
        return [] if self.rules is DEFAULT_KEEP else retention.best_rules(self.rules)

    def entries(self) -> list[Entry]:
        """Return what retention knows of the valid checkpoints, the oldest first."""
        return list(map(retention.entry_of, self.checkpoints()))

    def chosen(self, which: "str | int", metric: str | None = None) -> Saved:
        """Return the checkpoint of a step, the "last" one, or the "best" by a rule of the run."""
        if metric is not None and which != "best":
            raise ConfigurationError(
                "A metric chooses among the best checkpoints only.",
                expected=f'restore("best", metric={metric!r})',
                received=f"restore({which!r}, metric={metric!r})",
                do="leave metric out, or restore the best",
            )
        if isinstance(which, int) and not isinstance(which, bool):
            return self._at(which)
        if which == "best":
            checkpoints, rule = self.checkpoints(), self.best_rule(metric)
            best = best_of(checkpoints, rule)
            if best is None:
                raise ConfigurationError(
                    f"This run has no checkpoint with a score {rule.metric!r}.",
                    expected="a checkpoint that was saved right after a validation",
                    received=f"none in {self.directory}",
                    do='pass validation_data to fit, name another metric with KeepBest("..."),'
                    ' or restore "last"',
                )
            _warn_of_missed(best.step, rule, checkpoints)
            return self._at(best.step)
        if which != "last":
            raise ConfigurationError(
                "Unknown checkpoint.",
                expected='"best", "last" or a step',
                received=repr(which),
                do='pass "best"; to use the weights that the task holds, leave it out',
            )
        newest = self.newest()
        if newest is None:
            raise ConfigurationError(
                "This run has no checkpoint yet.",
                expected=f"at least one in {self.directory}",
                received="none",
                do="train first, or check run_dir",
            )
        return newest

    def best_rule(self, metric: str | None = None) -> KeepBest:
        """Return the rule that decides what is "best": the first `KeepBest`, or that of a metric.

        A trainer with its default rules uses the rules that the run was trained with.
        """
        recorded = retention.recorded_rules(self.checkpoints())
        rules = self.asked_rules or recorded or retention.best_rules(self.rules) or [KeepBest()]
        chosen = [rule for rule in rules if metric in (None, rule.metric)]
        if not chosen:
            raise ConfigurationError(
                f"This run does not keep the best checkpoint by {metric!r}.",
                expected=f"one of {', '.join(rule.metric for rule in rules)}",
                received=f'restore("best", metric={metric!r})',
                do=f"train with keep=[..., KeepBest({metric!r})]",
            )
        return chosen[0]

    def best(self, rule: KeepBest) -> tuple[float, int] | None:
        """Return the best saved score, and its step."""
        best = best_of(self.checkpoints(), rule)
        return None if best is None else (best.score, best.step)

    def checkpoints(self) -> list[Checkpoint]:
        """Return the checkpoints whose manifests and sizes are valid, the oldest first."""
        return [checkpoint for checkpoint in self._store.all() if checkpoint.is_usable]

    def _at(self, step: int) -> Saved:
        checkpoint = self._store.at(step)
        return checkpoint, parsed(checkpoint)

    def end_of(self, leg: int) -> Saved:
        """Return the checkpoint at the end of a leg; the last one, if its epochs were raised."""
        for checkpoint in reversed(self.checkpoints()):
            if checkpoint.content["leg"] == leg and checkpoint.ends_leg:
                return self._at(checkpoint.step)
        raise ConfigurationError(
            f"The end of leg {leg + 1} is missing from this run.",
            expected=f"a checkpoint at the end of each leg in {self.directory}",
            received="checkpoints of a later leg only",
            do='to evaluate or export the trained weights, call restore("last"); to continue '
            f"from them, start a new run with init_from={os.fspath(self.directory)!r}; to "
            "train again from the beginning, choose another run_dir",
        )

    def set_aside_after(self, checkpoint: Checkpoint) -> None:
        """Set later checkpoints aside: the next start must not find abandoned ones."""
        self._store.set_aside_after(checkpoint.step)

    def set_failures_aside(self) -> None:
        """Set checkpoints aside that had already prefetched the bad data.

        They would fail again after the data was fixed.
        """
        self._writer.wait()

        def is_good(checkpoint: Checkpoint) -> bool:
            state = checkpoint.path / "state"
            return checkpoint.ends_leg or not readers.holds_failure(tensors.read(state))

        last_good = next((c.step for c in reversed(self.checkpoints()) if is_good(c)), -1)
        if self._store.set_aside_after(last_good):
            where = "the beginning" if last_good < 0 else f"step {last_good:,}"
            warn_at_call(
                "Checkpoints that had prefetched the bad data were set aside: started again, this "
                f"run resumes from {where}."
            )

    def plans(self, snapshot: Snapshot) -> PlanHistory:
        """Return the plans of the run from `plan.json`, or those of the snapshot."""
        saved, recorded = plan_record.parsed(snapshot.plans), self.recorded_plans()
        if recorded is not None and recorded.until(snapshot.step).changes == saved.changes:
            return recorded
        return saved

    def recorded_plans(self) -> PlanHistory | None:
        """Return the content of `plan.json`; None if it cannot be read."""
        known = plan_record.recorded(self.directory)
        return known if known is not None and known.changes else None

    def save(
        self,
        snapshot: Snapshot,
        required: Mapping[str, Any],
        sync: Callable[[], None],
        best_steps: Container[int] | None = None,
        end: Mapping[str, Any] | None = None,
    ) -> None:
        """Write a checkpoint in the background; its tensors do not change any more.

        Those `required` to be finite are checked first; `sync` flushes the files that the
        checkpoint refers to. With `best_steps` the checkpoint is written only because it is one of
        these: it may wait for the current write, until a newer best replaces it. `end` are the
        tensors that callbacks changed at the end of a leg.
        """
        held = snapshot.tensors

        def fill(into: Path) -> None:
            tensors.write(into / "state", held)
            if end:
                tensors.write(into / "end", end)

        def write() -> None:
            tensors.require_finite(required, snapshot.step)
            content = snapshot.content()
            sync()
            path = self._store.write(snapshot.step, content, fill)
            self.written_leg = snapshot.leg
            names = {row["name"] for row in snapshot.variables} & held.keys()
            self._report_position(path, [*(held[n] for n in names), *(end or {}).values()])
            self._store.apply_retention(self.rules, self.entries())

        if best_steps is None:
            self._writer.start(write)
        else:
            self._writer.queue(snapshot.step, write, best_steps)

    def _report_position(self, path: Path, variables: Sequence[Any]) -> None:
        """Warn once if the position in the data makes checkpoints large."""
        known = sum(value.dtype.size * value.shape.num_elements() for value in variables)
        taken_bytes = disk.bytes_in(path) - known
        if taken_bytes > _MOST_POSITION_BYTES and not self._has_warned_of_position:
            self._has_warned_of_position = True
            warn_at_call(
                message(
                    f"The position in the data takes {taken_bytes >> 20:,} MB of each checkpoint.",
                    do="shuffle file names or indices instead of examples, use a smaller shuffle "
                    "buffer, or save the number of batches only: lw.Stream(dataset, replay=True)",
                )
            )

    def wait(self) -> None:
        """Wait until everything is on disk; raise the error of a failed write."""
        self._writer.wait()

    def write_plans(self, plans: PlanHistory) -> None:
        """Write `plan.json` durably, before the plan that it ends with is used."""
        self.write("plan.json", plans.text().encode())

    def _make(self) -> None:
        with disk_explained(self.directory, "The run directory cannot be made"):
            disk.make_run_directory(self.directory)

    def write(self, name: str, content: bytes) -> None:
        """Write a file durably, while the directory is opened."""
        with disk_explained(self.directory):
            disk.write_whole(self.directory, name, content, durable=True)


def _warn_of_missed(step: int, rule: KeepBest, checkpoints: Sequence[Checkpoint]) -> None:
    """Warn if better validations may not have been saved, because no rule required it."""
    wanted = rule.metric, rule.larger_is_better
    for checkpoint in checkpoints:
        rules = retention.recorded_in(checkpoint.content)
        if rules is not None and wanted not in [(r.metric, r.larger_is_better) for r in rules]:
            warn_at_call(
                message(
                    f"Step {step:,} is the best saved checkpoint by {rule.metric!r}, but a better "
                    "validation may not have been saved.",
                    expected=f"a run trained with KeepBest({rule.metric!r})",
                    received=f"step {checkpoint.step:,} was saved without this rule",
                    do=f"pass keep=[KeepLatest(3), KeepBest({rule.metric!r})] when training starts",
                )
            )
            return
