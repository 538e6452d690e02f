"""One leg in a run directory: trained from its checkpoint, saved, rolled back after NaN."""

import contextlib
from collections import deque
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, final

from loopwright.checkpoints import tensors
from loopwright.checkpoints.manifest import Checkpoint, out_of_memory_explained
from loopwright.checkpoints.retention import Entry, best_steps, prefixed, require_measured
from loopwright.checkpoints.run_directory import Run
from loopwright.checkpoints.snapshot import Snapshot
from loopwright.dispatch import RunFile
from loopwright.distribute.team import Team
from loopwright.errors import DataError, NotFiniteError
from loopwright.events import BatchSkipped, Metrics, Started
from loopwright.exactness import Exact
from loopwright.fit.attempt import LastAttempt, differ
from loopwright.fit.event_stream import LoopLeft
from loopwright.fit.leg import Leg
from loopwright.fit.leg_loop import Checkpoints
from loopwright.fit.moment import put_back, taken
from loopwright.loop.schedule import Place, moved
from loopwright.loop.signals import Signals
from loopwright.loop.train import Happened
from loopwright.task import variables

MOST_ROLLBACKS = 10
"""In one call of `fit`: a run that needs more of them needs a look."""


def first_bad_step(goes_wrong: Callable[[int], bool], seen_step: int) -> int:
    """Return the first step that goes wrong, counted from 1, given one that did: `seen_step`.

    `goes_wrong(n)` runs the first n steps again and says whether something is wrong then. Mostly
    it is the step itself, or the one before, whose update spoiled the weights.

    >>> tried = []
    >>> first_bad_step(lambda n: tried.append(n) or n >= 70, seen_step=71)
    70
    >>> tried
    [70, 69]
    """
    good, bad = 0, seen_step
    near = [seen_step - 1, seen_step - 2]
    while bad - good > 1:
        guess = near.pop(0) if near else (good + bad) // 2
        if not good < guess < bad:
            continue
        if goes_wrong(guess):
            bad = guess
        else:
            good = guess
    return bad


Found = tuple[Checkpoint, Snapshot]


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


@final
class Moment(NamedTuple):
    """A moment of a run with its tensors."""

    snapshot: Snapshot
    held: Mapping[str, Any]


def on_disk(found: Found) -> Moment:
    """Return the moment of a checkpoint."""
    checkpoint, snapshot = found
    return Moment(snapshot, tensors.read(checkpoint.path / "state"))


def as_left(found: Found) -> Moment:
    """Return the end of a leg as `fit` left it, with what callbacks did in `on_train_end`."""
    checkpoint, (snapshot, held) = found[0], on_disk(found)
    callbacks = snapshot.end.get("callbacks", snapshot.callbacks)
    left = tensors.read_end(checkpoint.path, snapshot.end)
    return Moment(replace(snapshot, callbacks=callbacks), {**held, **left})


@final
class SavedLeg(Checkpoints):
    """A leg that is trained: from where it was saved, or from its beginning.

    `ends`: nothing is left to train, and only its end is to be called and written.
    """

    def __init__(
        self,
        leg: Leg,
        named: dict[str, Any],
        run: Run,
        number: int,
        files: RunFile,
        found: Found | None,
        exact: Exact,
        signals: Signals,
        attempt: LastAttempt,
        *,
        ends: bool,
    ) -> None:
        self._signals, self._attempt, self._ends = signals, attempt, ends
        self._leg, self._run, self._number, self._files = leg, run, number, files
        leg.save_end = self._save_end
        self._exact: Exact = exact
        self._rolls_back, self._rollbacks = leg.parts.engine.on_nan == "rollback", 0
        self._named = named
        self._exact_until: int | None = None
        self._place: Place = Place()
        self._scores: Metrics = {}
        self._measured: tuple[int, Metrics] = (-1, {})
        """The last validation: its step and its scores."""
        self._has_validated = False
        self._trained: Moment | None = None
        """The end of the training, while the end of its callbacks is not saved."""
        self._beginning: Moment | None = None
        """Where a later leg is rolled back to before its first checkpoint, if needed."""
        parts = leg.parts
        self._team = parts.team
        # The chief alone sees the disk, and decides for all.
        self._validations = run.entries() if self._team.is_chief else []
        if found is not None:
            self._roll_back(on_disk(found))
        else:
            parts.state.start_from_given_weights()
            attempt.begins(named)
        parts.state.is_set_by_leg()
        # A task may keep infinity in a variable on purpose, as the best score so far.
        metrics = {id(v) for v in variables.metric_variables(parts.task)}
        self._required = [n for n, v in self._named.items() if id(v) not in metrics]
        infinite = tensors.non_finite(self._required_values())
        self._required = [name for name in self._required if name not in infinite]
        if self._team.is_chief:
            parts.engine.plans.log.write_to(run.write_plans)
        if not self._team.is_alone:
            differing = self._team.differing(named)
            shared = {name: v for name, v in named.items() if name not in differing}
            self._team.require_same("state", tensors.digest(tensors.snapshot(shared)))

    def events(self) -> Generator[Happened]:
        """Train, and save before the run is left, so that it can be resumed from there."""
        place, scores = replace(self._place, is_over=self._ends), self._scores
        if self._rolls_back and place.step == 0:
            if self._number == 0:
                self.save(place, {})
            else:
                self._beginning = self._moment(place, {})
        try:
            for happened in self._leg.looped(place, scores, self):
                event, self._place, self._scores = happened
                yield happened
                if self._ends and isinstance(event, Started):
                    self.save(place, scores)  # with the callbacks that Started has restored
        except LoopLeft:
            self.save(replace(self._place, is_over=True), self._scores)
            raise
        except GeneratorExit:  # the caller's loop was left
            self._attempt.open_until = self._leg.request.until
            self.save(self._place, self._scores)
            raise
        except DataError:
            self._save_before_failure()
            raise

    def _save_before_failure(self) -> None:
        """Save what was trained before the data failed, if the position is only a number."""
        if not self._team.is_alone:
            return  # it may have failed for this worker only, and the others would not save
        stepper, place = self._leg.stepper, self._place
        if not stepper.survives_failure:
            # An iterator that failed has lost what it had read of the batch that failed.
            self._run.set_failures_aside()
            return
        if int(self._leg.parts.task.step_counter.read_value()) != stepper.step:
            return  # it failed inside a compiled loop, whose totals are lost with it
        steps = stepper.step - self._leg.first_step - place.step
        here = moved(place, steps=steps, seconds=place.seconds) if steps else place
        self.save(here, self._scores)

    def is_best(self, step: int, scores: Metrics) -> bool:
        """Return whether a validation is a checkpoint; raise for rules whose metric is missing."""
        if not self._has_validated:
            require_measured(self._run.asked_rules, scores)
        self._has_validated, self._measured = True, (step, scores)
        self._validations.append(Entry(step, ends_leg=False, scores=prefixed(scores)))
        return self._team.is_chief and step in self._best_steps()

    def save(self, place: Place, scores: Metrics, *, is_due: bool = True) -> None:
        """Save a checkpoint; not `is_due`: only because its validation is among the best so far."""
        if place.step == 0 and self._number > 0:
            return  # nothing is lost: the checkpoint of the previous leg's end has this step
        with self._leg.watch.timing("checkpoint"):
            with out_of_memory_explained("The run cannot be saved"):
                snapshot, held = self._moment(place, scores)
            if place.is_over and self._leg.agreement.any(self._leg.callbacks.has_end):
                snapshot = replace(snapshot, end={"is_due": True})
                self._trained = Moment(snapshot, held)
            required = {name: held[name] for name in self._required}
            if not self._team.is_alone:
                tensors.require_finite(required, snapshot.step)  # now, so that all workers raise
            if self._team.is_chief:
                best = None if is_due else self._best_steps()
                self._run.save(snapshot, held, required, self._files.sync, best)
            self._attempt.saves(is_on_disk=self._run.written_leg == self._number)
            if place.is_over:
                self._run.wait()  # the end is reported only when it is on disk

    def _save_end(self) -> None:
        """Save what `fit` leaves behind, after `on_train_end`: only now is the leg finished.

        The trained state stays in the checkpoint: it was scored, and more epochs start from it.
        """
        if self._trained is None:
            return
        (snapshot, held), self._trained = self._trained, None
        now = self._team.whole(self._named, tensors.snapshot(self._named))
        changed = {n: v for n, v in now.items() if differ(v, held[n])}
        if self._team.is_chief:
            required = {name: changed[name] for name in self._required if name in changed}
            end = {"changed": sorted(changed), "callbacks": self._leg.callbacks.state()}
            snapshot = replace(snapshot, end=end)
            self._run.save(snapshot, held, required, self._files.sync, end=changed)
        self._run.wait()

    def _moment(self, place: Place, scores: Metrics) -> "Moment":
        leg, (measured_step, measured) = self._leg, self._measured
        if measured_step != leg.first_step + place.step:
            measured = {}
        read, position = leg.stepper.position()
        if leg.feed is not None and leg.feed.is_share:
            position = self._team.places(position)
        values = self._team.whole(self._named, tensors.snapshot(self._named))
        snapshot = taken(
            leg,
            self._number,
            place,
            scores,
            read,
            self._named,
            self._exact_until,
            self._files.lengths(),
            measured,
            self._run.rules,
        )
        return Moment(snapshot, values | leg.callbacks.tensors() | position)

    def _roll_back(self, moment: "Moment") -> None:
        """Put the leg back to where it was at a moment."""
        snapshot, held = moment
        self._exact_until = put_back(self._leg, self._named, snapshot, held, self._exact)
        self._attempt.keep_what_was_set(self._named)
        self._leg.parts.engine.plans.log.go_back(snapshot.step)
        self._place = replace(snapshot.place, is_over=False)
        self._scores = snapshot.scores
        self._measured = snapshot.step, snapshot.measured or {}
        self._validations = [known for known in self._validations if known.step <= snapshot.step]

    def rolled_back(self, error: NotFiniteError) -> Happened:
        """Go back to the last good state, and skip the batch that made a step not finite."""
        if not self._rolls_back:
            raise error
        run, stepper = self._run, self._leg.stepper

        def written() -> None:
            with contextlib.suppress(NotFiniteError):
                run.wait()

        found = newest(run, self._team, written)
        last = self._beginning
        if found is not None and found[1].leg == self._number:
            last = on_disk(found)
        if last is None or self._rollbacks == MOST_ROLLBACKS:
            raise error
        self._rollbacks += 1
        saved = last.snapshot

        def go_back() -> None:
            self._leg.read_again(saved.read)
            self._roll_back(last)

        def goes_wrong(steps: int) -> bool:
            go_back()
            is_finite = True
            try:
                deque(self._leg.replayed(self._place, steps), maxlen=0)
            except NotFiniteError:
                is_finite = False
            if self._leg.agreement.interrupted():
                self._signals.raise_received()  # the run resumes from what is on disk
            return not is_finite or bool(tensors.non_finite(self._required_values()))

        first = first_bad_step(goes_wrong, error.step - saved.step)
        stepper.pass_over(saved.step + first)
        go_back()
        self._files.cut(saved.lengths)
        batch = stepper.batch_in_words(saved.read.batches + first - 1)
        skipped = BatchSkipped(saved.step + first, batch, saved.step)
        return skipped, self._place, self._scores

    def _best_steps(self) -> set[int]:
        return best_steps(self._validations, self._run.rules)

    def _required_values(self) -> dict[str, Any]:
        return tensors.snapshot({name: self._named[name] for name in self._required})
