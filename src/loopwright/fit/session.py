"""A session: one call of `fit`, from its first event to its end.

`Session.events` is the path of every event: the loop yields it, callbacks and sinks get it, then
the caller.
"""

import contextlib
import itertools
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, final

from loopwright import step_warnings
from loopwright.checkpoints.snapshot import Snapshot
from loopwright.data.source import Epochs, Feed
from loopwright.dispatch import notify
from loopwright.distribute.team import Agreement
from loopwright.engine.stepper import StepNumbers, Stepper
from loopwright.errors import NotFiniteError
from loopwright.events import BatchSkipped, Event, Finished, Metrics, Sink, Started
from loopwright.exactness import EXACT, Inexact, require_replayable
from loopwright.fit import run_spec, snapshots, start_notes
from loopwright.fit.callbacks import Callbacks
from loopwright.fit.checkpointing import Checkpoints, NoCheckpoints
from loopwright.fit.event_stream import Reason, reason_of
from loopwright.fit.observer import Observer
from loopwright.fit.parts import Parts
from loopwright.fit.request import FitRequest, Start
from loopwright.fit.resumable import require_resumable
from loopwright.fit.rollback import MOST_ROLLBACKS, roll_back
from loopwright.fit.step_cost import slow_part
from loopwright.fit.validation import Validation
from loopwright.guards import arrays
from loopwright.guards.watches import LearningWatch
from loopwright.loop.clock import Pace, Stopwatch
from loopwright.loop.schedule import (
    Every,
    Position,
    Read,
    Schedule,
    after,
    moved,
    restarted_steps,
)
from loopwright.loop.signals import Signals
from loopwright.loop.train import Happened, train
from loopwright.plans.evidence import Budget
from loopwright.task import variables
from loopwright.task.optimizers import finalize_averages
from loopwright.task.state import preserved, undisturbed

OVER = ("complete", "stopped", "left", "skipped")
"""The reasons of `Finished` after which the next call of `fit` begins another leg."""


@final
class Session:
    """One call of `fit`: its data, its steps and its stops, put together.

    It is what the loop calls: `Steps` and `Stops` of `loop/train.py`, the same on all workers.
    """

    def __init__(
        self,
        parts: Parts,
        request: FitRequest,
        start: Start,
        *,
        checkpoints: Checkpoints | None = None,
        signals: Signals | None = None,
        recorded: Sequence[Any] | None = None,
        on_steps: Callable[[Sequence[StepNumbers]], None] = lambda numbers: None,
    ) -> None:
        """Trace everything that can be traced before the first step.

        With `recorded`, `on_steps` gets the numbers of each step and these variables' values. NaN
        does not end the session then: whoever reads the numbers looks at it.
        """
        self.parts, self.request, self.number = parts, request, start.number
        self.checkpoints = checkpoints or NoCheckpoints()
        self._on_steps = on_steps
        snapshot = start.snapshot
        self.continues = snapshot is not None
        counted = int(parts.task.step_counter.read_value())
        self.first_step = counted if snapshot is None else snapshot.first_step
        self.first_epoch = start.first_epoch if snapshot is None else snapshot.first_epoch
        self.position = Position() if snapshot is None else snapshot.position
        self._ends = start.ends
        self.scores: Metrics = {}
        """Of the last validation in the epoch."""
        self.is_over = False
        """Whether nothing is left to train: the next call of `fit` begins another leg."""
        self._has_started, self._rollbacks = False, 0
        self._skipped = list[BatchSkipped]()
        self.watch = Stopwatch(time.perf_counter)
        began = self.watch.clock()
        self._signals = signals or Signals()
        self.agreement = Agreement(parts.team, time.perf_counter, self._signals)
        self.callbacks = Callbacks(
            request.callbacks,
            parts.task,
            parts.engine,
            self.watch,
            is_saved=request.run_dir is not None,
        )
        # All workers run the same steps between two meetings.
        parts.team.require_same("callbacks with batch hooks", self.callbacks.needs.timing)
        parts.team.require_same("process settings", parts.engine.plans.log.settings.content())
        self.history = request.history
        self.history.take_from(self.callbacks.added)
        self.feed, length = self._open_feed(self.position.read)
        self.schedule = Schedule(
            steps_per_epoch=length,
            until=request.until,
            validate_every=request.validate_every if request.sets else None,
            save_every=request.save_every,
            restarted_steps=restarted_steps(self.position, length),
        )
        self.validation = Validation(
            request.sets, request.validation_steps, parts.engine, self.callbacks, self.watch
        )
        needs = self.callbacks.needs
        ignored: Literal["all", "losses", ""] = "losses" if needs.looks_for_nan else ""
        with self.watch.timing("compile"):
            self.stepper = Stepper(
                parts.engine,
                self.feed,
                first_step=self.first_step,
                budget=Budget(self.schedule.total_steps, request.until.seconds),
                watch=self.watch,
                recorded=needs.recorded if recorded is None else recorded,
                ignored_nan=ignored if recorded is None else "all",
            )
            self.stepper.build(self.position)
            self.validation.build()
            self._check_data()
            if start.exact is not None:  # an eager plan has created no lazy variables yet
                spec = None if self.feed is None else self.feed.batch_spec
                parts.engine.built("train_step", spec)
        self.named = variables.named(parts.task)
        """Every variable of the task; now: callbacks lend the model more of them."""
        exactness, self.declared = self._declare(start)
        known = dict.fromkeys([*start.reasons, *exactness.reasons])
        self.exactness = Inexact((*known,), exactness.loses_position)
        """Why the run cannot be resumed exactly, reasons of earlier starts included."""
        self.notes = [*([str(exactness)] if exactness else []), *start.notes]
        """What to tell when training begins."""
        self._observer = Observer(parts, request, self.watch) if request.is_observed else None
        sinks = [self.history, *map(self.watch.timed_sink, request.sinks)]
        watching = [LearningWatch(parts.task, parts.engine.silenced)] if parts.team.is_chief else []
        self._sinks: Sequence[Sink] = [*sinks, *watching]
        self._seconds_to_build = self.watch.clock() - began

    @property
    def step(self) -> int:
        """The steps of the whole run so far."""
        return self.first_step + self.position.step

    # -- one life: each event on its way, and the end ----------------------------------------------

    def events(self, opened: contextlib.ExitStack) -> Generator[Event]:
        """Train to the end, and yield each event when callbacks and sinks have it.

        `Finished` reaches the sinks whatever happens; then what was `opened` is closed.
        """
        with opened:
            began, first_step = self.watch.clock(), self.step
            if self._observer is not None:
                self._observer.collect_facts()
            finished: Finished | None = None
            reason: Reason = "failed"
            failed_step: int | None = None
            happened: Iterable[Happened] | None = self.loop()
            try:
                while happened is not None:
                    try:
                        for event, self.position, self.scores in happened:
                            if isinstance(event, Finished):
                                finished = event
                                continue
                            for item in self._complete(event):
                                notify([self._call_back, *self._sinks], item)
                                with self.watch.timing("caller"):
                                    yield item
                        happened = None
                    except NotFiniteError as error:
                        happened = itertools.chain([self._roll_back(error)], self.loop())
                if self._ends:
                    self.save(self.position, self.scores)  # with what Started has restored
            except BaseException as error:
                is_nan = isinstance(error, NotFiniteError)
                reason = reason_of(error)
                failed_step = error.step if is_nan else self.stepper.failed_step
                self.checkpoints.leave(self, error)
                raise
            finally:
                seconds = self.watch.clock() - began
                step = self.step + self.stepper.unreported_steps
                last = finished or Finished(step, seconds, reason, failed_step=failed_step)
                finished, images = self._finish(last, seconds, first_step)
            yield from (*images, finished)

    def loop(self) -> Iterator[Happened]:
        """Return the training loop from the position on."""
        self.agreement.meet()
        return train(
            self.schedule,
            self,
            self,
            position=self.position,
            scores=self.scores,
            first_step=self.first_step,
            pace=Pace(limit=self.callbacks.most_steps),
        )

    def _complete(self, event: Event) -> Sequence[Event]:
        """Return an event with what sinks cannot see, and the events that belong to it."""
        notes: Sequence[Event] = ()
        if isinstance(event, Started):
            if self._has_started:
                return ()  # after a rollback the loop begins again
            self._has_started = True
            reasons = self.exactness.reasons
            event = replace(event, inexact=reasons, run_dir=self.request.run_dir)
            notes = start_notes.notes(self, event.step)
        items = [event] if self._observer is None else self._observer.completed(event)
        return [*items, *notes]

    def _call_back(self, event: Event) -> None:
        """Call the callbacks; a leg that continues keeps its variables in `on_train_begin`."""
        keeps = isinstance(event, Started) and self.continues and self.request.callbacks
        with preserved(variables.named(self.parts.task).values() if keeps else []):
            self.callbacks.on(event)

    def _finish(
        self, finished: Finished, seconds: float, first_step: int
    ) -> tuple[Finished, Sequence[Event]]:
        """End the session, and tell every sink how its time was spent; return what they got."""
        self.stepper.tuner.end()
        # Of this start: a resumed run has seconds before it that were not measured here.
        spent = self.watch.whole(seconds + self._seconds_to_build)
        finished = replace(
            finished,
            seconds=finished.seconds + self._seconds_to_build,
            spent=spent,
            advice=slow_part(self, spent, finished.step - first_step),
            history=self.history.history,
            run_dir=self.request.run_dir,
            saved=finished.saved and self.request.run_dir is not None,
        )
        self.is_over = finished.reason in OVER
        if self.is_over:
            finalize_averages(self.parts.task)
        try:
            self.callbacks.on(finished)
            if self.is_over:
                self.checkpoints.save_end(self)
        except BaseException:
            finished, self.is_over = replace(finished, reason="failed"), False
            raise
        finally:
            images = self._notify_end(finished)
        return finished, images

    def _notify_end(self, finished: Finished) -> Sequence[Event]:
        """Give sinks the last images and the end; return the images."""
        with contextlib.ExitStack() as last:
            last.callback(self.close)
            last.callback(run_spec.leave, self.parts.task)
            last.callback(notify, self._sinks, finished)  # also if the images are interrupted
            is_end = finished.reason in ("complete", "stopped")
            images = self._observer.images(finished.step) if self._observer and is_end else []
            for event in images:
                notify(self._sinks, event)
        return images

    def close(self) -> None:
        """Release the data."""
        self.feed = None
        self.stepper.read_from(None)

    # -- where it is: captured, applied, run again -------------------------------------------------

    def capture(self, position: Position, scores: Metrics) -> Snapshot:
        """Return the session as it is now, at a position."""
        return snapshots.make_snapshot(self, position, scores)

    def apply(self, snapshot: Snapshot, named: Mapping[str, Any] | None = None) -> None:
        """Bring the session, or only the variables `named`, to where the snapshot was made."""
        snapshots.apply_snapshot(self, snapshot, self.named if named is None else named)
        self.position = replace(snapshot.position, is_over=self._ends)
        self.scores = snapshot.scores

    def seek(self, read: Read) -> None:
        """Go to the beginning, with the data opened again as if this much of it had been read."""
        self.feed, _ = self._open_feed(read)
        self.stepper.read_from(self.feed)
        self.position = Position(read=read)

    def run(self, steps: int) -> int:
        """Run steps from the position; return how many, which are fewer at the end of the data."""
        ran = self.stepper.run_steps(self.position, steps).steps
        here = self.position
        self.position = moved(here, steps=ran, seconds=here.seconds, epoch_ended=ran < steps)
        return ran

    def run_quietly(self, steps: int) -> Iterator[int]:
        """Run steps from the position, and yield how many after each call; nothing else happens.

        No callback, no validation, no checkpoint, no event.
        """
        self.agreement.meet()
        last, pace = self.position.step + steps, Pace()
        schedule = Schedule(self.schedule.steps_per_epoch, until=Every(steps=last))
        while self.position.step < last and not self.agreement.interrupted():
            here = self.position
            if here.is_due:
                here = after(schedule.stop_at(here), here, seconds=here.seconds)
            if here.step_in_epoch == 0:
                self.stepper.start_epoch(here)
            asked = schedule.next_stop(here, at_most_steps=pace.at_most_steps).step - here.step
            began, self.position = self.agreement.clock(), here
            ran = self.run(asked)
            self.agreement.meet()
            pace.add(steps=ran, seconds=self.agreement.clock() - began)
            yield ran

    def go_back(self, saved: Snapshot) -> None:
        """Go back to where it was saved; the data is opened again."""
        self.seek(saved.position.read)
        self.apply(saved)
        self.checkpoints.go_back(self, saved)

    def require_not_interrupted(self) -> None:
        """End the run as a signal asked for, if one came: it resumes from what is on disk."""
        if self.agreement.interrupted():
            self._signals.raise_received()

    def _roll_back(self, error: NotFiniteError) -> Happened:
        saved = self.checkpoints.last_good(self)
        if saved is None or self._rollbacks == MOST_ROLLBACKS:
            raise error
        self._rollbacks += 1
        return roll_back(self, saved, error), self.position, self.scores

    # -- what the loop calls: steps ----------------------------------------------------------------

    def start_epoch(self, position: Position) -> None:
        """Reset the metrics of the epoch."""
        self.stepper.start_epoch(position)

    def run_steps(self, position: Position, steps: int) -> int:
        """Run that many steps between the hooks of callbacks; fewer: the epoch's data ended."""
        self.callbacks.before_steps(position.step_in_epoch)
        ran = self.stepper.run_steps(position, steps)
        self.callbacks.after_steps(ran.records)
        self._on_steps(ran.records)
        self._skipped.extend(ran.skipped)
        self.agreement.meet()
        return ran.steps

    def report(self) -> Metrics:
        """Return the metrics since the epoch began."""
        return self.stepper.metrics.numbers()

    def pending_events(self) -> Iterable[Event]:
        """Return the plans that were chosen and the batches that were skipped."""
        yield from self.stepper.tuner.pending_events(self.step)
        yield from self._skipped
        self._skipped.clear()

    # -- what the loop calls: stops ----------------------------------------------------------------

    def clock(self) -> float:
        """Return the time in seconds."""
        return self.agreement.clock()

    def validate(self) -> Metrics | None:
        """Return the scores on the validation data; None if a signal arrived."""
        self.callbacks.before_validation()
        scores = self.validation.scores(self.agreement)
        self.callbacks.after_validation(scores)
        self.agreement.meet()
        return scores

    def is_best(self, step: int, scores: Metrics) -> bool:
        """Return whether the scores after a step are worth a checkpoint."""
        return self.agreement.any(self.checkpoints.is_best(self, step, scores))

    def save(self, position: Position, scores: Metrics, *, is_due: bool = True) -> None:
        """Save a checkpoint; not `is_due`: only because its scores are among the best."""
        self.checkpoints.save(self, position, scores, is_due=is_due)
        self.agreement.meet()

    def stop_requested(self) -> bool:
        """Return whether a callback asked to stop training."""
        return self.agreement.any(self.callbacks.stop_requested())

    def interrupted(self) -> bool:
        """Return whether a signal arrived."""
        return self.agreement.interrupted()

    # -- its parts ---------------------------------------------------------------------------------

    def _open_feed(self, read: Read) -> tuple[Feed | None, int | None]:
        request = self.request
        if request.data is None:
            return None, request.steps_without_data
        epochs = Epochs(
            seed=self.parts.seed,
            first_epoch=self.first_epoch,
            shuffle=request.shuffle,
            steps_per_epoch=request.steps_per_epoch,
            after=read,
            may_be_endless=request.until.epochs is None,
        )
        feed = request.data.training(epochs)
        return feed, feed.steps_per_epoch

    def _check_data(self) -> None:
        parts, request = self.parts, self.request
        conditions = arrays.Conditions(
            parts.task,
            shuffle=request.shuffle,
            nan_ends_the_run=parts.engine.on_nan == "raise"
            and not self.callbacks.needs.looks_for_nan,
            undisturbed=lambda: undisturbed(parts.task),
        )
        with step_warnings.silenced(parts.engine.silenced):
            arrays.check(request.data, request.sets, conditions)

    def _declare(self, start: Start) -> tuple[Inexact, Mapping[str, Any]]:
        """Return how exactly the session can be resumed, and what the program asks of it."""
        if start.exact is None:
            return EXACT, {}
        reasons = require_resumable(self, start.exact)
        exactness = start.accepted.with_reasons(reasons)
        require_replayable(exactness, self.parts.engine.on_nan)
        reference = start.reference or start.snapshot
        return exactness, snapshots.declare(self, reference, start.edited)
