"""Resuming: a call of `fit` in a run directory goes on where the run was saved."""

import contextlib
import functools
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, final

from loopwright import adaptations, repeatable, signals, state, tensors
from loopwright.attempt import LastAttempt
from loopwright.averages import finalize_averages
from loopwright.errors import DataError, LoopwrightWarning, NotFiniteError
from loopwright.events import (
    BatchSkipped,
    EpochEnded,
    EpochStarted,
    Event,
    Finished,
    Metrics,
    Started,
    Trained,
    Validated,
)
from loopwright.fitting import Asked, Fitting, Lent, tell
from loopwright.legs import entry, excess
from loopwright.rollback import MOST_ROLLBACKS, first_bad_step
from loopwright.runs import Run, Snapshot
from loopwright.schedule import Place, moved, validated
from loopwright.sharing import Found, held, newest, refuse_data, require_same_state
from loopwright.snapshots import Exact, put_back, require_resumable, taken
from loopwright.telemetry.facts import Facts, facts, learning_rates, optimizers
from loopwright.telemetry.run_files import Files, RunFiles
from loopwright.telemetry.worker_log import WorkerLog
from loopwright.validation import undisturbed


def leg_events(
    lent: Lent,
    asked: Asked,
    run: Run,
    leg: int,
    attempt: LastAttempt,
    *,
    first_epoch: int,
    exact: Exact,
    begun: Callable[[Fitting], None],
) -> Iterator[Event]:
    """The events of one call of `fit`, number `leg` of its run: begun, resumed or skipped."""
    refuse_data(asked)
    team = lent.team
    # Heard until the last checkpoint is on disk: another SIGTERM must not cut it off.
    with signals.watched() as heard, held(run, team) as last:
        found = last
        what = entry(leg, asked.until, None if found is None else found[1].reached)
        if what == "skip":
            found = run.end_of(leg)
        elif found is not None and team.is_chief:
            run.go_on_from(found[0])
        snapshot = None if what == "begin" or found is None else found[1]
        changed = attempt.continued(leg, lent.task)
        if snapshot is not None:
            _warn_of_excess(leg, excess(snapshot.place, asked.until))
        else:
            attempt.rewind(lent.task)
        _resume_plans(lent, run, None if found is None else found[1], is_begun=what != "begin")
        # They are opened when everything was compared, and not before.
        files: Files = (
            run_files(lent, run, lambda: fitting)
            if team.is_chief
            else WorkerLog(run.directory, team.index, time.time)
        )
        fitting = Fitting(
            lent,
            replace(asked, sinks=[*asked.sinks, files]),
            first_epoch=first_epoch,
            snapshot=snapshot,
            heard=heard,
        )
        begun(fitting)
        resumed = None if snapshot is None else found
        if what == "skip":
            yield _skipped(fitting, resumed, exact)
        else:
            ends = what == "end"
            trained = _Leg(fitting, run, leg, files, resumed, exact, heard, attempt, ends=ends)
            _warn_of_changes(leg, fitting.training.step, changed)
            files.open({} if found is None else found[1].lengths, is_new_leg=what == "begin")
            # A checkpoint under way still brings these files to disk: it ends before they close.
            with contextlib.closing(files), run.written():
                try:
                    yield from trained.events()
                finally:
                    attempt.ends(trained.named, is_over=fitting.is_over)
            team.farewell()  # nobody leaves before the chief has written everything
    heard.raise_received()


def _resume_plans(lent: Lent, run: Run, saved: Snapshot | None, *, is_begun: bool) -> None:
    """Goes by the plans that the run has recorded, also where they are newer than `saved`."""
    step = int(lent.task.step_counter.read_value())
    recorded = run.recorded_plans() if saved is None else run.plans(saved)
    if recorded is None:
        lent.piloting.go_back(step)
    else:
        step = step if saved is None else saved.step
        lent.piloting.resume(recorded, step, is_continued=is_begun)


def _skipped(fitting: Fitting, found: Found | None, exact: Exact) -> Finished:
    if found is not None:
        put_back(fitting, require_resumable(fitting), *found, exact)
        fitting.bridge.recall()
    finalize_averages(fitting.lent.task)
    fitting.is_over = True
    skipped = Finished(fitting.training.step, 0.0, "skipped")
    tell(fitting.asked.sinks, skipped)
    return skipped


def _warn_of_excess(leg: int, excess: str) -> None:
    if excess:
        text = f"Leg {leg + 1} of this run is already {excess}: it is complete, with that state."
        warnings.warn(text, LoopwrightWarning, stacklevel=2)


def _warn_of_changes(leg: int, step: int, changed: Sequence[str]) -> None:
    if changed:
        names = ", ".join(repeatable.shortened(changed))
        warnings.warn(
            f"This call of fit continues leg {leg + 1} from step {step:,}, with the values that "
            f"were set since the leg was interrupted: {names}.",
            LoopwrightWarning,
            stacklevel=2,
        )


@final
class _Leg:
    """A leg that is trained: from where it was saved, or from its beginning.

    `ends`: nothing is left to train, and only the checkpoint of its end is to be written.
    """

    def __init__(
        self,
        fitting: Fitting,
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
        self.named = require_resumable(fitting)
        self._exact_until: int | None = None
        self._place: Place = Place()
        self._scores: Metrics = {}
        if found is not None:
            self._go_back(found)
        else:
            fitting.lent.start_from_given_weights()
            attempt.begins(self.named)
        self._data_ends = fitting.training.read.ends
        # A person may keep infinity in a variable on purpose, as the best score so far.
        metrics = {id(v) for v in state.metric_variables(fitting.lent.task)}
        self._required = [n for n, v in self.named.items() if id(v) not in metrics]
        infinite = tensors.non_finite(self._required_values())
        self._required = [name for name in self._required if name not in infinite]
        self._team = fitting.lent.team
        if self._team.is_chief:
            fitting.lent.piloting.record(run.write_plans)
        require_same_state(self._team, self.named)

    def events(self) -> Iterator[Event]:
        """Trains; `break` ends the leg."""
        fitting, place, scores = self._fitting, self._place, self._scores
        recover = None
        if fitting.lent.on_nan == "rollback":
            recover = self._recover
            if place.step == 0:
                self._save(place, {})
        leaving = {GeneratorExit: self._left, DataError: self._data_failed}
        place = replace(place, is_over=self._ends)
        for event in fitting.events(place, scores, self._save, recover, leaving):
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
        self._save(replace(place, is_over=adaptations.was_left_on_purpose()), self._scores)

    def _data_failed(self) -> None:
        """Data that fails does not cost what was trained before it, if its place is a number."""
        if not self._team.is_alone:
            return  # it may have failed for this worker only, and the others would not save
        training, place, feed = self._fitting.training, self._place, self._fitting.feed
        if feed is not None and feed.position != "index":
            # An iterator that failed has lost what it had read of the batch that failed.
            self._run.set_failures_aside()
            return
        if int(self._fitting.lent.task.step_counter.read_value()) != training.step:
            return  # it failed inside a compiled loop, whose totals are lost with it
        steps = training.step - self._fitting.first_step - place.step
        self._save(
            moved(place, steps=steps, seconds=place.seconds) if steps else place, self._scores
        )

    def _save(self, place: Place, scores: Metrics) -> None:
        fitting = self._fitting
        with fitting.watch.timing("checkpoint"):
            read, position = fitting.training.position()
            if fitting.feed is not None and fitting.feed.is_share:
                position = self._team.places(position)
            values = self._team.whole(self.named, tensors.snapshot(self.named))
            held = values | fitting.bridge.tensors() | position
            moment = taken(
                fitting,
                self._leg,
                place,
                scores,
                read,
                self.named,
                self._exact_until,
                self._files.lengths(),
            )
            required = {name: values[name] for name in self._required}
            if not self._team.is_alone:
                tensors.require_finite(required, moment.step)  # now, so that all hear of it
            if self._team.is_chief:
                self._run.save(moment, held, required, self._files.sync)
            self._attempt.saves()
            if place.is_over:
                self._run.wait()  # whoever hears of the end can rely on it

    def _go_back(self, found: Found) -> None:
        """Puts the leg to where a checkpoint was written."""
        checkpoint, snapshot = found
        self._exact_until = put_back(self._fitting, self.named, checkpoint, snapshot, self._exact)
        self._attempt.keep_what_was_set(self.named)
        self._fitting.lent.piloting.go_back(snapshot.step)
        self._place = replace(snapshot.place, is_over=False)
        self._scores = snapshot.scores

    def _recover(self, error: NotFiniteError) -> tuple[Place, Metrics, Event]:
        """After a step that was not finite: the last good state, without the batch that did it."""
        run, training = self._run, self._fitting.training

        def written() -> None:
            with contextlib.suppress(NotFiniteError):
                run.wait()

        found = newest(run, self._team, written)
        if found is None or self._rollbacks == MOST_ROLLBACKS:
            raise error
        self._rollbacks += 1
        saved = found[1]

        def go_back() -> None:
            self._fitting.read_again(saved.read)
            self._go_back(found)

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
        return tensors.snapshot({name: self.named[name] for name in self._required})


def run_files(lent: Lent, run: Run, fitting: Callable[[], Fitting]) -> RunFiles:
    """The files that tell of a run."""

    def images() -> Mapping[str, Any]:
        with undisturbed(lent.task, lent.strategy):
            return lent.task.images()

    held = functools.cache(lambda: optimizers(lent.task))  # looking for them takes a while
    return RunFiles(
        run.directory,
        clock=time.time,
        learning_rates=lambda: learning_rates(held()),
        gradients=lent.runners.last_gradients,
        history=lambda: fitting().history.history,
        images=images,
        facts=lambda: _facts(fitting()),
    )


def _facts(fitting: Fitting) -> Facts:
    lent, asked = fitting.lent, fitting.asked
    spec = None if fitting.feed is None else fitting.feed.batch_spec
    batch_size = {} if asked.data is None else asked.data.fingerprint()
    numbers = {
        "seed": lent.seed,
        "until": str(asked.until),
        **{name: value for name, value in batch_size.items() if name == "batch_size"},
    }
    return facts(lent.task, numbers, lent.runners.built("train_step", spec).graph)


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
