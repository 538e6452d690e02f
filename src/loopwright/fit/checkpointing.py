"""Where a session saves and what it goes back to: nowhere, memory, or a run directory."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, final

from loopwright.checkpoints import retention, tensors
from loopwright.checkpoints.manifest import out_of_memory_explained
from loopwright.checkpoints.retention import Entry, best_steps, prefixed, require_measured
from loopwright.checkpoints.run_directory import Run
from loopwright.checkpoints.snapshot import Saved, Snapshot, load
from loopwright.dispatch import RunFile
from loopwright.distribute.team import Team
from loopwright.errors import ConfigurationError, DataError, NotFiniteError
from loopwright.events import Metrics
from loopwright.exactness import Exact
from loopwright.fit.attempt import LastAttempt, differ
from loopwright.fit.event_stream import LoopLeft
from loopwright.fit.request import accepted_data
from loopwright.fit.snapshots import environment_changes, recorded
from loopwright.loop.schedule import Position, moved
from loopwright.step_warnings import warn_at_call
from loopwright.task import variables

if TYPE_CHECKING:
    from loopwright.fit.session import Session


class Checkpoints(ABC):
    """Where a session saves, and what it goes back to."""

    @abstractmethod
    def save(
        self, session: "Session", position: Position, scores: Metrics, *, is_due: bool = True
    ) -> None:
        """Save a checkpoint; not `is_due`: only because its scores are among the best."""

    def select(self, session: "Session") -> dict[str, Any]:
        """Return the variables whose values are saved, by name."""
        return session.named

    def fields(self, session: "Session", position: Position) -> dict[str, Any]:
        """Return what only the place of the checkpoints knows of a snapshot."""
        inexact = recorded(session, position, session.exactness)
        return {"lengths": {}, "inexact": inexact, "measured": {}, "keep": []}

    def is_best(self, session: "Session", step: int, scores: Metrics) -> bool:
        """Return whether the scores after a step are worth a checkpoint."""
        return False

    def save_end(self, session: "Session") -> None:  # noqa: B027
        """Save what callbacks changed when they ended a session that is over."""

    def leave(self, session: "Session", error: BaseException) -> None:  # noqa: B027
        """Save before an error, or the caller, ends the session."""

    def last_good(self, session: "Session") -> Snapshot | None:
        """Return the state to go back to when a step was not finite; None if there is none."""
        return None

    def go_back(self, session: "Session", snapshot: Snapshot) -> None:  # noqa: B027
        """Forget what came after a snapshot that was applied."""

    def is_spoiled(self, session: "Session") -> bool:
        """Return whether a variable that has to be finite is not."""
        return False


@final
class NoCheckpoints(Checkpoints):
    """Nothing is saved."""

    def save(
        self, session: "Session", position: Position, scores: Metrics, *, is_due: bool = True
    ) -> None:
        """Do nothing."""


@final
class MemoryCheckpoints(Checkpoints):
    """Holds the moment at which a session is interrupted, except for what the task itself holds."""

    def __init__(self) -> None:
        self.snapshot: Snapshot | None = None

    def select(self, session: "Session") -> dict[str, Any]:
        """Return the variables that change when a model is only looked at: metrics, seeds."""
        if session.parts.strategy.num_replicas_in_sync > 1:
            return {}
        untrained = {id(v) for v in variables.untrained_variables(session.parts.task)}
        return {name: v for name, v in session.named.items() if id(v) in untrained}

    def fields(self, session: "Session", position: Position) -> dict[str, Any]:
        """Return whether the position in the data is lost."""
        accepted = accepted_data(session.request, "best_effort")
        return {"lengths": {}, "inexact": recorded(session, position, accepted)}

    def save(
        self, session: "Session", position: Position, scores: Metrics, *, is_due: bool = True
    ) -> None:
        """Hold this moment."""
        if position.step:
            self.snapshot = session.capture(position, scores)


def newest(run: Run, team: Team, before: Callable[[], object]) -> Saved | None:
    """Return the newest checkpoint, found by the chief for all workers after `before()`."""
    own: list[Saved] = []

    def find() -> int:
        before()
        found = run.newest()
        own.extend([] if found is None else [found])
        return -1 if found is None else found[0].step

    step = team.from_chief(find)
    if step >= 0 and not own:
        own.append(run.chosen(step))
    return own[0] if own else None


@final
class DiskCheckpoints(Checkpoints):
    """The checkpoints of one call of `fit` in a run directory."""

    def __init__(self, run: Run, team: Team, files: RunFile, attempt: LastAttempt) -> None:
        self._run, self._team, self._files, self._attempt = run, team, files, attempt
        self._exact_until: int | None = None
        self._measured: tuple[int, Metrics] = (-1, {})
        """The last validation: its step and its scores."""
        self._has_validated = False
        self._required: list[str] = []
        """The names of the variables that must be finite."""
        self._trained: Snapshot | None = None
        """The end of the training, while the end of its callbacks is not saved."""
        self._beginning: Snapshot | None = None
        """Where a later leg is rolled back to before its first checkpoint, if needed."""
        # The chief alone sees the disk, and decides for all.
        self._validations = run.entries() if team.is_chief else []

    def begin(self, session: "Session", saved: Saved | None, exact: Exact) -> None:
        """Bring a session to where it was saved, or to its beginning."""
        parts, named, team = session.parts, session.named, self._team
        if saved is not None:
            snapshot = load(saved)
            self._exact_until = still_exact(session, snapshot, exact)
            session.apply(snapshot)
            self._forget_after(session, snapshot)
        else:
            parts.state.start_from_given_weights()
            self._attempt.begins(named)
        parts.state.is_set_by_leg()
        # A task may keep infinity in a variable on purpose, as the best score so far.
        metrics = {id(variable) for variable in variables.metric_variables(parts.task)}
        self._required = [name for name, v in named.items() if id(v) not in metrics]
        infinite = self._not_finite(session)
        self._required = [name for name in self._required if name not in infinite]
        if team.is_chief:
            parts.engine.plans.log.write_to(self._run.write_plans)
        if not team.is_alone:
            differing = team.differing(named)
            shared = {name: v for name, v in named.items() if name not in differing}
            team.require_same("state", tensors.digest(tensors.snapshot(shared)))

    @contextlib.contextmanager
    def writing(
        self, session: "Session", lengths: Mapping[str, int], *, is_new: bool
    ) -> Iterator[None]:
        """Write the files of the run while it is trained, up to the last checkpoint."""
        self._attempt.starts()
        self._files.open(lengths, is_new_leg=is_new)
        # A checkpoint under way still brings these files to disk: it ends before they close.
        with contextlib.closing(self._files), self._run.written():
            if session.parts.engine.on_nan == "rollback" and session.position.step == 0:
                if session.number == 0:
                    self.save(session, session.position, {})
                else:
                    self._beginning = session.capture(session.position, {})
            try:
                yield
            finally:
                self._attempt.ends(session.named, is_over=session.is_over)
        self._team.barrier()  # no worker leaves before the chief has written everything

    def fields(self, session: "Session", position: Position) -> dict[str, Any]:
        """Return what only the run directory knows of a snapshot."""
        measured_step, measured = self._measured
        step = session.first_step + position.step
        return {
            "inexact": recorded(session, position, session.exactness),
            "lengths": self._files.lengths(),
            "exact_until_step": self._exact_until,
            "measured": dict(measured) if measured_step == step else {},
            "keep": retention.recorded(self._run.rules),
        }

    def is_best(self, session: "Session", step: int, scores: Metrics) -> bool:
        """Return whether a validation is a checkpoint; raise for rules whose metric is missing."""
        if not self._has_validated:
            require_measured(self._run.asked_rules, scores)
        self._has_validated, self._measured = True, (step, scores)
        self._validations.append(Entry(step, ends_leg=False, scores=prefixed(scores)))
        return self._team.is_chief and step in self._best_steps()

    def save(
        self, session: "Session", position: Position, scores: Metrics, *, is_due: bool = True
    ) -> None:
        """Save a checkpoint; not `is_due`: only because its validation is among the best so far."""
        if position.step == 0 and session.number > 0:
            return  # nothing is lost: the checkpoint of the previous leg's end has this step
        with session.watch.timing("checkpoint"):
            with out_of_memory_explained("The run cannot be saved"):
                snapshot = session.capture(position, scores)
            if position.is_over and session.agreement.any(session.callbacks.needs.has_end):
                snapshot = replace(snapshot, end={"is_due": True})
                self._trained = snapshot
            required = {name: snapshot.tensors[name] for name in self._required}
            if not self._team.is_alone:
                tensors.require_finite(required, snapshot.step)  # now, so that all workers raise
            if self._team.is_chief:
                best = None if is_due else self._best_steps()
                self._run.save(snapshot, required, self._files.sync, best)
            self._attempt.saves(is_on_disk=self._run.written_leg == session.number)
            if position.is_over:
                self._run.wait()  # the end is reported only when it is on disk

    def save_end(self, session: "Session") -> None:
        """Save what `fit` leaves behind, after `on_train_end`: only now is the leg finished.

        The trained state stays in the checkpoint: it was scored, and more epochs start from it.
        """
        if self._trained is None:
            return
        snapshot, self._trained = self._trained, None
        held = snapshot.tensors
        now = self._team.whole(session.named, tensors.snapshot(session.named))
        changed = {name: value for name, value in now.items() if differ(value, held[name])}
        if self._team.is_chief:
            required = {name: changed[name] for name in self._required if name in changed}
            end = {"changed": sorted(changed), "callbacks": session.callbacks.state()}
            snapshot = replace(snapshot, end=end)
            self._run.save(snapshot, required, self._files.sync, end=changed)
        self._run.wait()

    def leave(self, session: "Session", error: BaseException) -> None:
        """Save where the run is left, so that it can be resumed from there."""
        position, scores = session.position, session.scores
        match error:
            case LoopLeft():
                self.save(session, replace(position, is_over=True), scores)
            case GeneratorExit():  # the caller's loop was left
                self._attempt.leaves_open(session.request.until)
                self.save(session, position, scores)
            case DataError():
                self._save_before_failure(session)
            case _:
                pass

    def last_good(self, session: "Session") -> Snapshot | None:
        """Return the newest state of this leg, if the run rolls back."""
        if session.parts.engine.on_nan != "rollback":
            return None

        def write() -> None:
            with contextlib.suppress(NotFiniteError):
                self._run.wait()

        saved = newest(self._run, self._team, write)
        is_of_leg = saved is not None and saved[1].leg == session.number
        return load(saved) if saved is not None and is_of_leg else self._beginning

    def go_back(self, session: "Session", snapshot: Snapshot) -> None:
        """Forget what came after a snapshot that was applied, in the files too."""
        self._forget_after(session, snapshot)
        self._files.cut(snapshot.lengths)

    def _forget_after(self, session: "Session", snapshot: Snapshot) -> None:
        self._attempt.keep_what_was_set(session.named)
        session.parts.engine.plans.log.go_back(snapshot.step)
        self._measured = snapshot.step, snapshot.measured or {}
        self._validations = [known for known in self._validations if known.step <= snapshot.step]

    def is_spoiled(self, session: "Session") -> bool:
        """Return whether a variable that has to be finite is not."""
        return bool(self._not_finite(session))

    def _not_finite(self, session: "Session") -> list[str]:
        return tensors.non_finite(
            tensors.snapshot({name: session.named[name] for name in self._required})
        )

    def _best_steps(self) -> set[int]:
        return best_steps(self._validations, self._run.rules)

    def _save_before_failure(self, session: "Session") -> None:
        """Save what was trained before the data failed, if the position is only a number."""
        if not self._team.is_alone:
            return  # it may have failed for this worker only, and the others would not save
        stepper, position = session.stepper, session.position
        if not stepper.survives_failure:
            # An iterator that failed has lost what it had read of the batch that failed.
            self._run.set_failures_aside()
            return
        step = session.step + stepper.unreported_steps
        if int(session.parts.task.step_counter.read_value()) != step:
            return  # it failed inside a compiled loop, whose totals are lost with it
        if stepper.unreported_steps:
            position = moved(position, steps=stepper.unreported_steps, seconds=position.seconds)
        self.save(session, position, session.scores)


def still_exact(session: "Session", snapshot: Snapshot, exact: Exact) -> int | None:
    """Return since which step the bits may differ from those of a run without interruption."""
    changes = environment_changes(session, snapshot)
    if not changes:
        return snapshot.exact_until_step
    if exact == "require":
        raise ConfigurationError(
            "This run cannot be resumed bit for bit: its environment has changed.",
            expected="the environment that the checkpoint was written in",
            received="; ".join(changes),
            do='resume there, or pass exact="warn" to resume anyway',
        )
    until = snapshot.step if snapshot.exact_until_step is None else snapshot.exact_until_step
    warn_at_call(
        f"The environment has changed ({'; '.join(changes)}): this run continues, and is bit-exact "
        f"until step {until}."
    )
    return until
