"""One call of `fit`: its data, its schedule, its steps and who is told, put together."""

import contextlib
import functools
import inspect
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, final

from loopwright import step_warnings
from loopwright.checkpoints.snapshot import Snapshot
from loopwright.data.readers import NOTHING_READ, Read
from loopwright.data.source import Epochs, Feed
from loopwright.dispatch import notify
from loopwright.distribute.team import Agreement
from loopwright.engine.stepper import StepNumbers, Stepper
from loopwright.errors import NotFiniteError
from loopwright.events import Event, Finished, Metrics, Noted, Sink, Started
from loopwright.exactness import EXACT
from loopwright.fit import declaration, settings_notes
from loopwright.fit.callbacks import Callbacks
from loopwright.fit.event_stream import LoopLeft
from loopwright.fit.leg_loop import (
    Checkpoints,
    LegSteps,
    LegStops,
    NoCheckpoints,
    Validation,
)
from loopwright.fit.observer import Observer
from loopwright.fit.parts import Parts
from loopwright.fit.request import FitRequest
from loopwright.fit.step_cost import slow_step
from loopwright.guards import arrays
from loopwright.guards.learning import LearningWatch
from loopwright.loop import verdict
from loopwright.loop.clock import Pace, Stopwatch
from loopwright.loop.schedule import Every, Place, Schedule
from loopwright.loop.signals import Signals
from loopwright.loop.train import Happened, train
from loopwright.plans.evidence import Budget
from loopwright.task import variables
from loopwright.task.optimizers import finalize_averages, uses_averages
from loopwright.task.state import preserved, undisturbed

_AVERAGED = (
    "use_ema: scores and checkpoints are of the trained weights; when fit ends, the model gets the "
    'averaged weights, which restore("last") gives too'
)
_Reason = Literal["left", "interrupted", "failed"]
OVER = ("complete", "stopped", "left", "skipped")
"""The reasons of `Finished` after which the next call of `fit` begins another leg."""


@final
class Leg:
    """One call of `fit`, with everything traced that can be before its first step."""

    def __init__(
        self,
        parts: Parts,
        request: FitRequest,
        *,
        first_epoch: int,
        snapshot: Snapshot | None = None,
        signals: Signals | None = None,
        recorded: Sequence[Any] | None = None,
        on_steps: Callable[[Sequence[StepNumbers]], None] = lambda numbers: None,
    ) -> None:
        """With `recorded`, `on_steps` gets the numbers of each step and these variables' values.

        A loss of NaN does not end the leg then: whoever reads the numbers looks at it.
        """
        self.parts, self.request, self._on_steps = parts, request, on_steps
        self.declared: Mapping[str, Any] = {}
        self.inexact = EXACT
        self.reasons: Sequence[str] = ()
        """Why the run cannot be resumed exactly, reasons of earlier starts included."""
        self.notes: list[str] = []
        """What to tell when training begins."""
        self.is_over = False
        """Whether nothing is left to train: the next call of `fit` begins another leg."""
        self.save_end: Callable[[], None] = lambda: None
        """Called when callbacks have ended a leg that is over."""
        self._continues = snapshot is not None
        self.first_epoch = first_epoch if snapshot is None else snapshot.first_epoch
        self.watch = Stopwatch(time.perf_counter)
        began = self.watch.clock()
        self.agreement = Agreement(parts.team, time.perf_counter, signals or Signals())
        self.callbacks = Callbacks(
            request.callbacks,
            parts.task,
            parts.engine,
            self.watch,
            is_saved=request.run_dir is not None,
        )
        # All workers run the same steps between two meetings.
        parts.team.require_same("callbacks with batch hooks", self.callbacks.timing())
        parts.team.require_same("process settings", parts.engine.plans.log.settings.content())
        self.history = request.history
        self.history.take_from(self.callbacks.added)
        self.feed, length = self._feed(NOTHING_READ if snapshot is None else snapshot.read)
        self.schedule = Schedule(
            steps_per_epoch=length,
            until=request.until,
            validate_every=request.validate_every if request.sets else None,
            save_every=request.save_every,
            restarted_steps=_restarted_steps(snapshot, length),
        )
        counted = int(parts.task.step_counter.read_value())
        self.first_step = counted if snapshot is None else snapshot.first_step
        self._validation = Validation(
            request.sets, request.validation_steps, parts.engine, self.callbacks, self.watch
        )
        with self.watch.timing("compile"):
            self.stepper = Stepper(
                parts.engine,
                self.feed,
                step=counted if snapshot is None else snapshot.step,
                budget=Budget(self.schedule.total_steps, request.until.seconds),
                watch=self.watch,
                recorded=self.callbacks.recorded if recorded is None else recorded,
                ignored_nan="all"
                if recorded is not None
                else ("losses" if self.callbacks.looks_for_nan else ""),
            )
            self._validation.build()
            self._check_data()
        self._observer = Observer(parts, request, self.watch) if request.is_observed else None
        self._seconds_to_build = self.watch.clock() - began

    def looped(
        self, place: Place, scores: Metrics, checkpoints: Checkpoints
    ) -> Generator[Happened]:
        """Train from `place` to the end, and again from where `checkpoints` rolls back to."""
        has_started = False
        while True:
            try:
                for happened in self._trained(place, scores, checkpoints):
                    event, here, measured = happened
                    if not isinstance(event, Started):
                        yield happened
                    elif not has_started:
                        has_started = True
                        yield happened
                        for note in self._notes(event.step):
                            yield note, here, measured
                return
            except NotFiniteError as error:
                happened = checkpoints.rolled_back(error)
                _, place, scores = happened
            yield happened

    def told(self, happened: Generator[Happened]) -> Generator[Event]:
        """Tell every sink of each event; `Finished` reaches them whatever happens.

        Whatever ends the training here is thrown into `happened` as well, which may save then.
        """
        sinks: list[Sink] = [self.history, *map(self._timed, self.request.sinks)]
        if self.parts.team.is_chief:
            sinks.append(LearningWatch(self.parts.task, self.parts.engine.silenced))
        if self._observer is not None:
            self._observer.collect_facts()
        began, first_step = self.watch.clock(), self.stepper.step
        finished, images = None, list[Event]()
        reason: _Reason = "failed"
        failed_step: int | None = None
        try:
            for event, _, _ in happened:
                if isinstance(event, Finished):
                    finished = event
                    continue
                for told in self._completed(event):
                    notify([self._call_back, *sinks], told)
                    with self.watch.timing("caller"):
                        yield told
        except BaseException as error:
            reason = _reason(error)
            is_nan = isinstance(error, NotFiniteError)
            failed_step = error.step if is_nan else self.stepper.failed_step
            if inspect.getgeneratorstate(happened) == inspect.GEN_SUSPENDED:
                happened.throw(error)
            raise
        finally:
            seconds = self.watch.clock() - began
            finished = finished or Finished(
                self.stepper.step, seconds, reason, failed_step=failed_step
            )
            finished, images = self._end(finished, sinks, seconds, first_step)
        yield from (*images, finished)

    def read_again(self, after: Read) -> None:
        """Open the data again, as if what is in `after` had been read."""
        self.feed, _ = self._feed(after)
        self.stepper.read_from(self.feed)

    def close(self) -> None:
        """Release the data."""
        self.feed = None
        self.stepper.close()

    def replayed(self, place: Place, steps: int) -> Iterator[Happened]:
        """Run `steps` steps from `place` again: no callback, no validation, no checkpoint."""
        schedule = Schedule(self.schedule.steps_per_epoch, until=Every(steps=place.step + steps))
        self.agreement.meet()
        return train(
            schedule,
            LegSteps(self.stepper, self.agreement),
            LegStops(self.agreement, NoCheckpoints()),
            place=place,
            scores={},
            first_step=self.first_step,
            pace=Pace(),
        )

    def _trained(
        self, place: Place, scores: Metrics, checkpoints: Checkpoints
    ) -> Iterator[Happened]:
        self.agreement.meet()
        return train(
            self.schedule,
            LegSteps(self.stepper, self.agreement, self.callbacks, self._on_steps),
            LegStops(self.agreement, checkpoints, self.callbacks, self._validation),
            place=place,
            scores=scores,
            first_step=self.first_step,
            pace=Pace(limit=self.callbacks.steps_left),
        )

    def _notes(self, step: int) -> list[Noted]:
        texts = [*self.notes]
        texts += settings_notes.notes(self.parts.engine, self.feed, step, continues=self._continues)
        if uses_averages(self.parts.task) and (self.request.sets or self.request.run_dir):
            texts.append(_AVERAGED)
        return [*self.callbacks.notes(step), *(Noted(step, text) for text in texts)]

    def _feed(self, after: Read) -> tuple[Feed | None, int | None]:
        request = self.request
        if request.data is None:
            return None, request.steps_without_data
        epochs = Epochs(
            seed=self.parts.seed,
            first_epoch=self.first_epoch,
            shuffle=request.shuffle,
            steps_per_epoch=request.steps_per_epoch,
            after=after,
            may_be_endless=request.until.epochs is None,
        )
        feed = request.data.training(epochs)
        return feed, feed.steps_per_epoch

    def _check_data(self) -> None:
        parts, request = self.parts, self.request
        conditions = arrays.Conditions(
            parts.task,
            shuffle=request.shuffle,
            nan_ends_the_run=parts.engine.on_nan == "raise" and not self.callbacks.looks_for_nan,
            undisturbed=lambda: undisturbed(parts.task),
        )
        with step_warnings.silenced(parts.engine.silenced):
            arrays.check(request.data, request.sets, conditions)

    def _timed(self, sink: Sink) -> Sink:
        name = getattr(sink, "__qualname__", type(sink).__name__).rpartition(".")[2]

        def timed(event: Event) -> None:
            with self.watch.timing("logging", name):
                sink(event)

        return timed

    def _end(
        self, finished: Finished, sinks: Sequence[Sink], seconds: float, first_step: int
    ) -> tuple[Finished, Sequence[Event]]:
        """End the leg, and tell every sink how its time was spent; return what they were told."""
        self.stepper.tuner.end()
        # Of this start: a resumed run has seconds before it that were not measured here.
        spent = self.watch.whole(seconds + self._seconds_to_build)
        advice = self.slow_part(spent, finished.step - first_step)
        whole = finished.seconds + self._seconds_to_build
        numbers = self.history.history
        finished = replace(
            finished,
            seconds=whole,
            spent=spent,
            advice=advice,
            history=numbers,
            run_dir=self.request.run_dir,
        )
        self.is_over = finished.reason in OVER
        if self.is_over:
            finalize_averages(self.parts.task)
        try:
            self.callbacks(finished)
            if self.is_over:
                self.save_end()
        except BaseException:
            finished, self.is_over = replace(finished, reason="failed"), False
            raise
        finally:
            images = self._tell_end(finished, sinks)
        return finished, images

    def _tell_end(self, finished: Finished, sinks: Sequence[Sink]) -> Sequence[Event]:
        """Tell sinks the last images and the end; return the images."""
        with contextlib.ExitStack() as last:
            last.callback(self.stepper.close)
            last.callback(declaration.leave, self.parts.task)
            last.callback(notify, sinks, finished)  # also if the images are interrupted
            is_end = finished.reason in ("complete", "stopped")
            images = self._observer.images(finished.step) if self._observer and is_end else []
            for event in images:
                notify(sinks, event)
        self.feed = None
        return images

    def _call_back(self, event: Event) -> None:
        """Call the callbacks; a leg that continues keeps its variables in `on_train_begin`."""
        keeps = isinstance(event, Started) and self._continues and self.request.callbacks
        with preserved(variables.named(self.parts.task).values() if keeps else []):
            self.callbacks(event)

    def slow_part(self, spent: Mapping[str, float], steps: int) -> str:
        """Return a sentence about the slowest part of this start; empty if none stands out."""
        if not steps:
            return ""
        feed, request, watch = self.feed, self.request, self.watch
        is_data_slower = spent["data wait"] > spent["step"]
        bottleneck = functools.partial(feed.bottleneck, is_data_slower) if feed is not None else str
        built, plan = self.parts.engine.traces("train_step"), self.parts.engine.plans.plan
        examples, seconds = self.stepper.examples_per_batch(), spent["step"] / steps
        waits = 2 * self._validation.waited_seconds > spent["validation"]
        validate_every, save_every = request.validate_every, request.save_every
        causes = {
            "data wait": lambda: verdict.slow_data(steps, spent, bottleneck()),
            "step": lambda: slow_step(plan, built[-1] if built else None, examples, seconds),
            "validation": lambda: verdict.slow_validation(spent, validate_every, waits=waits),
            "checkpoint": lambda: verdict.slow_saving(save_every, watch.times["checkpoint"]),
            "callbacks": lambda: verdict.slow_callbacks(watch.largest("callbacks")),
            "logging": lambda: verdict.slow_logging(watch.largest("logging")),
            "caller": lambda: ": do less for each event",
            "tuning": lambda: verdict.slow_tuning(repr(plan)),
            "compile": lambda: verdict.slow_compiling(len(built), is_xla=plan.step == "xla"),
            "Python": lambda: verdict.slow_python(self.callbacks.called_each_step),
        }
        return verdict.verdict(spent, causes)

    def _completed(self, event: Event) -> Sequence[Event]:
        if isinstance(event, Started):
            event = replace(event, inexact=tuple(self.reasons), run_dir=self.request.run_dir)
        return [event] if self._observer is None else self._observer.completed(event)


def _reason(error: BaseException) -> _Reason:
    match error:
        case LoopLeft():
            return "left"
        case KeyboardInterrupt() | GeneratorExit():  # the latter: the caller's loop was left
            return "interrupted"
        case _:
            return "failed"


def _restarted_steps(snapshot: Snapshot | None, steps_per_epoch: int | None) -> int:
    """Return how many steps of restarted epochs a leg has run in addition to its epochs."""
    if snapshot is None or steps_per_epoch is None:
        return 0
    place = snapshot.place
    return max(0, place.step - place.step_in_epoch - place.epoch * steps_per_epoch)
