"""One leg in a run directory: trained from its checkpoint, saved, and taken back after NaN."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, final

from loopwright.checkpoints import tensors
from loopwright.checkpoints.retention import BestSoFar, require_measured
from loopwright.checkpoints.run_directory import Run
from loopwright.checkpoints.snapshot import Snapshot
from loopwright.compat import tensorflow_internals
from loopwright.compat.out_of_memory import out_of_memory_explained
from loopwright.errors import DataError, NotFiniteError
from loopwright.events import (
    BatchSkipped,
    EpochEnded,
    EpochStarted,
    Event,
    Metrics,
    Started,
    Trained,
    Validated,
)
from loopwright.exactness import Exact
from loopwright.fit.attempt import LastAttempt
from loopwright.fit.leg import Leg, Saving
from loopwright.fit.moment import put_back, taken
from loopwright.fit.sharing import Found, newest, require_same_state
from loopwright.loop import signals
from loopwright.loop.schedule import Place, moved, validated
from loopwright.sinks.run_files import Files
from loopwright.task import variables

MOST_ROLLBACKS = 10
"""In one call of `fit`: a run that needs more of them needs a person."""


def first_bad_step(goes_wrong: Callable[[int], bool], seen_step: int) -> int:
    """The first step that goes wrong, counted from 1, where `seen_step` was seen to.

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


@final
class Moment(NamedTuple):
    """A moment of a run with its tensors."""

    snapshot: Snapshot
    held: Mapping[str, Any]


def on_disk(found: Found) -> Moment:
    """Return the moment of a checkpoint."""
    checkpoint, snapshot = found
    return Moment(snapshot, tensors.read(checkpoint.path / "state"))


@final
class SavedLeg:
    """A leg that is trained: from where it was saved, or from its beginning.

    `ends`: nothing is left to train, and only the checkpoint of its end is to be written.
    """

    def __init__(
        self,
        fitting: Leg,
        named: dict[str, Any],
        run: Run,
        leg: int,
        files: Files,
        found: Found | None,
        exact: Exact,
        heard: signals.Signals,
        attempt: LastAttempt,
        *,
        ends: bool,
    ) -> None:
        self._heard, self._attempt, self._ends = heard, attempt, ends
        self._fitting, self._run, self._leg, self._files = fitting, run, leg, files
        self._exact: Exact = exact
        self._rollbacks = 0
        self._named = named
        self._exact_until: int | None = None
        self._place: Place = Place()
        self._scores: Metrics = {}
        self._measured: tuple[int, Metrics] = (-1, {})
        """The last validation: its step and its scores."""
        self._has_validated = False
        self._beginning: Moment | None = None
        """Where a later leg goes back to before its first checkpoint, if it may have to."""
        self._team = fitting.lent.team
        # The chief alone sees the disk, and decides for all.
        self._best = BestSoFar(run.rules, run.entries() if self._team.is_chief else [])
        if found is not None:
            self._go_back(on_disk(found))
        else:
            fitting.lent.start_from_given_weights()
            attempt.begins(named)
        fitting.lent.state_is_set()
        self._data_ends = fitting.training.read.ends
        # A person may keep infinity in a variable on purpose, as the best score so far.
        metrics = {id(v) for v in variables.metric_variables(fitting.lent.task)}
        self._required = [n for n, v in self._named.items() if id(v) not in metrics]
        infinite = tensors.non_finite(self._required_values())
        self._required = [name for name in self._required if name not in infinite]
        if self._team.is_chief:
            fitting.lent.piloting.record(run.write_plans)
        require_same_state(self._team, self._named)

    def events(self) -> Iterator[Event]:
        """Trains; `break` ends the leg."""
        fitting, place, scores = self._fitting, self._place, self._scores
        recover = None
        if fitting.lent.on_nan == "rollback":
            recover = self._recover
            if place.step == 0 and self._leg == 0:
                self._save(place, {})
            elif place.step == 0:
                self._beginning = self._moment(place, {})
        leaving = {GeneratorExit: self._left, DataError: self._data_failed}
        only_best = functools.partial(self._save, is_due=False)
        saving = Saving(self._save, self._is_best, only_best)
        place = replace(place, is_over=self._ends)
        for event in fitting.events(place, scores, saving, recover, leaving):
            if self._ends and isinstance(event, Started):
                self._save(place, scores)
            self._place = _after(self._place, event, fitting.first_step)
            if isinstance(event, Validated | EpochStarted):
                self._scores = event.metrics if isinstance(event, Validated) else {}
            if isinstance(event, EpochStarted | EpochEnded):
                self._data_ends = fitting.training.read.ends
            yield event

    def _left(self) -> None:
        """A leg that was left by `break` is over; an exception of the caller's does not end it."""
        place = self._place
        if self._fitting.training.read.ends > self._data_ends:
            place = replace(place, is_due=True, epoch_ended=True)
        self._save(replace(place, is_over=tensorflow_internals.was_left_on_purpose()), self._scores)

    def _data_failed(self) -> None:
        """Data that fails does not cost what was trained before it, if its place is a number."""
        if not self._team.is_alone:
            return  # it may have failed for this worker only, and the others would not save
        training, place = self._fitting.training, self._place
        if not training.survives_failure:
            # An iterator that failed has lost what it had read of the batch that failed.
            self._run.set_failures_aside()
            return
        if int(self._fitting.lent.task.step_counter.read_value()) != training.step:
            return  # it failed inside a compiled loop, whose totals are lost with it
        steps = training.step - self._fitting.first_step - place.step
        self._save(
            moved(place, steps=steps, seconds=place.seconds) if steps else place, self._scores
        )

    def _is_best(self, step: int, scores: Metrics) -> bool:
        """Whether a validation is a checkpoint; refuses rules whose metric it does not give."""
        if not self._has_validated:
            require_measured(self._run.asked_rules, scores)
        self._has_validated, self._measured = True, (step, scores)
        return self._team.is_chief and self._best.add(step, scores)

    def _save(self, place: Place, scores: Metrics, *, is_due: bool = True) -> None:
        """Saves a moment; not `is_due`: only because its validation is among the best so far."""
        if place.step == 0 and self._leg > 0:
            return  # nothing is lost, and the end of the leg before has the checkpoint of this step
        with self._fitting.watch.timing("checkpoint"):
            with out_of_memory_explained("The run cannot be saved"):
                snapshot, held = self._moment(place, scores)
            required = {name: held[name] for name in self._required}
            if not self._team.is_alone:
                tensors.require_finite(required, snapshot.step)  # now, so that all hear of it
            if self._team.is_chief:
                best_steps = None if is_due else self._best.steps
                self._run.save(snapshot, held, required, self._files.sync, best_steps)
            self._attempt.saves(is_on_disk=self._run.written_leg == self._leg)
            if place.is_over:
                self._run.wait()  # whoever hears of the end can rely on it

    def _moment(self, place: Place, scores: Metrics) -> "Moment":
        fitting, (measured_step, measured) = self._fitting, self._measured
        if measured_step != fitting.first_step + place.step:
            measured = {}
        read, position = fitting.training.position()
        if fitting.feed is not None and fitting.feed.is_share:
            position = self._team.places(position)
        values = self._team.whole(self._named, tensors.snapshot(self._named))
        snapshot = taken(
            fitting,
            self._leg,
            place,
            scores,
            read,
            self._named,
            self._exact_until,
            self._files.lengths(),
            measured,
            self._run.rules,
        )
        return Moment(snapshot, values | fitting.bridge.tensors() | position)

    def _go_back(self, moment: "Moment") -> None:
        """Puts the leg to where it was at a moment."""
        snapshot, held = moment
        self._exact_until = put_back(self._fitting, self._named, snapshot, held, self._exact)
        self._attempt.keep_what_was_set(self._named)
        self._fitting.lent.piloting.go_back(snapshot.step)
        self._place = replace(snapshot.place, is_over=False)
        self._scores = snapshot.scores
        self._measured = snapshot.step, snapshot.measured or {}
        self._best.go_back(snapshot.step)

    def _recover(self, error: NotFiniteError) -> tuple[Place, Metrics, Event]:
        """After a step that was not finite: the last good state, without the batch that did it."""
        run, training = self._run, self._fitting.training

        def written() -> None:
            with contextlib.suppress(NotFiniteError):
                run.wait()

        found = newest(run, self._team, written)
        last = self._beginning
        if found is not None and found[1].leg == self._leg:
            last = on_disk(found)
        if last is None or self._rollbacks == MOST_ROLLBACKS:
            raise error
        self._rollbacks += 1
        saved = last.snapshot

        def go_back() -> None:
            self._fitting.read_again(saved.read)
            self._go_back(last)

        def goes_wrong(steps: int) -> bool:
            go_back()
            is_finite = self._fitting.replay(self._place, steps)
            if self._fitting.agreement.interrupted():
                self._heard.raise_received()  # what is on disk is the state to go on from
            return not is_finite or bool(tensors.non_finite(self._required_values()))

        first = first_bad_step(goes_wrong, error.step - saved.step)
        training.passed_over.add(saved.step + first)
        go_back()
        self._files.cut(saved.lengths)
        batch = training.batch_in_words(saved.read.batches + first - 1)
        return self._place, self._scores, BatchSkipped(saved.step + first, batch, saved.step)

    def _required_values(self) -> dict[str, Any]:
        return tensors.snapshot({name: self._named[name] for name in self._required})


def _after(place: Place, event: Event, first_step: int) -> Place:
    """Where a run is after an event, for somebody who leaves it there."""
    match event:
        case Trained():
            step = event.step - first_step
            at = moved(place, steps=step - place.step, seconds=place.seconds + event.seconds)
            return replace(at, epoch=event.epoch, step_in_epoch=event.step_in_epoch)
        case Validated():
            return validated(place, seconds=place.seconds)
        case EpochEnded():
            return replace(
                place,
                epoch=event.epoch + 1,
                step_in_epoch=0,
                epoch_began_seconds=place.seconds,
                is_due=False,
                epoch_ended=False,
            )
        case _:
            return place
