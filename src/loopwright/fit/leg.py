"""Fitting: one call of `fit`, put together from its parts, begun, resumed or skipped."""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import keras
import tensorflow as tf

from loopwright import step_warnings
from loopwright.checkpoints.snapshot import Snapshot
from loopwright.compat import tensorflow_internals
from loopwright.data.source import NOTHING_READ, Data, Feed, Read
from loopwright.distribute.team import Agreement, Team
from loopwright.engine.compiled_steps import CompiledSteps
from loopwright.engine.epoch_metrics import EpochMetrics
from loopwright.engine.nan import OnNan
from loopwright.engine.plan_selector import PlanSelector
from loopwright.engine.scorer import Scorer, undisturbed
from loopwright.engine.step_cost import slow_step
from loopwright.engine.stepper import Stepper
from loopwright.errors import NotFiniteError
from loopwright.events import Event, Finished, Metrics, Noted, Sink, Started
from loopwright.exactness import EXACT
from loopwright.fit import declaration
from loopwright.fit.observer import Observer
from loopwright.guards import arrays
from loopwright.guards.learning import LearningWatch
from loopwright.loop import train, verdict
from loopwright.loop.clock import Pace, Stopwatch
from loopwright.loop.schedule import Every, Place, Schedule
from loopwright.loop.signals import Signals
from loopwright.sinks.callback_model import Scoring
from loopwright.sinks.history import History
from loopwright.sinks.keras_callbacks import CallbackBridge
from loopwright.sinks.notify import notify
from loopwright.task.optimizers import finalize_averages
from loopwright.task.task import Task


@dataclass(frozen=True)
class Lent:
    """What a trainer lends to each call of `fit`."""

    task: Task
    strategy: tf.distribute.Strategy
    team: Team
    runners: CompiledSteps
    piloting: PlanSelector
    scorer: Scorer
    scoring: Scoring
    seed: int
    on_nan: OnNan
    start_from_given_weights: Callable[[], None]
    """Once, if the trainer was given any."""
    state_is_set: Callable[[], None]
    """Called when the task has the state that a leg of a run begins, resumes or ended with."""


@dataclass(frozen=True)
class Saving:
    """What is saved of a run, as the loop asks for it; the default saves nothing."""

    save: Callable[[Place, Metrics], None] = lambda place, scores: None
    is_best: Callable[[int, Metrics], bool] = lambda step, scores: False
    """Whether the scores after a step make a checkpoint of it."""
    save_best: Callable[[Place, Metrics], None] = lambda place, scores: None
    """Saves a checkpoint that is not due, and is only among the best so far."""


SAVE_NOTHING = Saving()


@dataclass(frozen=True)
class FitRequest:
    """What `fit` was asked for."""

    data: Data | None
    sets: Mapping[str, Data]
    until: Every
    validate_every: Every
    save_every: Every | None
    length: Callable[[], int | None]
    """The steps of an epoch without data."""
    steps_per_epoch: int | None
    validation_steps: int | None
    shuffle: bool
    class_weight: Mapping[int, float] | None
    callbacks: Sequence[keras.callbacks.Callback]
    sinks: Sequence[Sink]
    is_observed: bool = False
    """Whether a sink other than the terminal receives facts, learning rates, gradients, images."""
    run_dir: Path | None = None


@final
class Leg:
    """One call of `fit`: its data, its loop and its numbers."""

    def __init__(
        self,
        lent: Lent,
        asked: FitRequest,
        *,
        first_epoch: int,
        snapshot: "Snapshot | None" = None,
        heard: Signals | None = None,
    ) -> None:
        self.lent, self.asked = lent, asked
        self.declared: Mapping[str, Any] = {}
        self.inexact = EXACT
        self.reasons: Sequence[str] = ()
        """Why the run cannot be resumed exactly, reasons of earlier starts included."""
        self.notes: list[str] = []
        """What to tell when training begins."""
        self.is_over = False
        """Whether nothing is left to train: the next call of `fit` begins another leg."""
        self.first_epoch = first_epoch if snapshot is None else snapshot.first_epoch
        self.watch = Stopwatch(time.perf_counter)
        self._validation_wait = 0.0
        """For how many seconds validation waited for its data."""
        began = self.watch.clock()
        self.agreement = Agreement(lent.team, time.perf_counter, heard or Signals())
        self.bridge = CallbackBridge(asked.callbacks, lent.task, lent.scoring, self.watch)
        # All workers run the same steps between two meetings.
        lent.team.require_same("callbacks with batch hooks", self.bridge.timing())
        self.history = History(self.bridge.added)
        self.feed, length = self._feed(NOTHING_READ if snapshot is None else snapshot.read)
        self.schedule = Schedule(
            steps_per_epoch=length,
            until=asked.until,
            validate_every=asked.validate_every if asked.sets else None,
            save_every=asked.save_every,
            restarted_steps=_restarted_steps(snapshot, length),
        )
        counted = int(lent.task.step_counter.read_value())
        self.first_step = counted if snapshot is None else snapshot.first_step
        arrays.require_numbers(asked.data, lent.task)
        self.tally = EpochMetrics(lent.task, "train_step", lent.runners.updates)
        with self.watch.timing("compile"):
            self.training = self._built_training(counted if snapshot is None else snapshot.step)
        self._observer = None
        if asked.is_observed:
            self._observer = Observer(
                lent.task,
                lent.strategy,
                lent.runners,
                self.watch,
                data=asked.data,
                settings={"seed": lent.seed, "until": str(asked.until)},
                run_dir=asked.run_dir,
            )
        self._seconds_to_build = self.watch.clock() - began

    def _built_training(self, step: int) -> Stepper:
        """The training, with everything traced that can be before its first step."""
        lent, asked = self.lent, self.asked
        training = Stepper(
            functools.partial(lent.runners.runner, "train_step", recorded=self.bridge.recorded),
            self.feed,
            self.tally,
            self._pilot,
            step=step,
            count_step=lambda: lent.task.step_counter.assign_add(1),
            watch=self.watch,
            planned=lent.piloting.planned,
        )
        training.lets_nan_pass = self.bridge.looks_for_nan
        training.records = self.bridge.recorded is not None
        for held in asked.sets.values():
            # What is wrong with validation shows before an hour of training, not after it.
            if held.can_be_read_again:
                lent.scorer.build(held, asked.validation_steps)
        self._check_data()
        return training

    def events(
        self,
        place: Place,
        scores: Metrics,
        saving: Saving = SAVE_NOTHING,
        recover: Callable[[NotFiniteError], tuple[Place, Metrics, Event]] | None = None,
        leaving: Mapping[type[BaseException], Callable[[], None]] | None = None,
    ) -> Iterator[Event]:
        """Trains, and tells every sink of every event; `Finished` reaches them whatever happens.

        `recover` says where to go on after a step that was not finite, and what to tell of it.
        `leaving` is called for what ends the run, with everything as it is at that moment.
        """
        events = self._looped(place, scores, saving, recover)
        sinks: list[Sink] = [self.bridge, self.history, *map(self._timed, self.asked.sinks)]
        if self.lent.team.is_chief:
            sinks.append(LearningWatch(self.lent.task, self.lent.runners.silenced))
        return self._heard(events, sinks, leaving or {})

    def read_again(self, after: Read) -> None:
        """Begins anew in the data, as if what is in `after` had been read."""
        self.feed, _ = self._feed(after)
        self.training.read_from(self.feed)

    def replay(self, place: Place, steps: int) -> bool:
        """Runs `steps` steps from `place` without telling anybody; whether all were finite."""
        until = Every(steps=place.step + steps)
        schedule = Schedule(steps_per_epoch=self.schedule.steps_per_epoch, until=until)
        try:
            for _ in self._trained(schedule, place):
                pass
        except NotFiniteError:
            return False
        return True

    def _looped(
        self,
        place: Place,
        scores: Metrics,
        saving: Saving,
        recover: Callable[[NotFiniteError], tuple[Place, Metrics, Event]] | None,
    ) -> Iterator[Event]:
        bridge, training, piloting = self.bridge, self.training, self.lent.piloting
        is_begun = False
        while True:
            events = self._trained(
                self.schedule,
                place,
                saving,
                scores=scores,
                run_steps=bridge.before_steps(training),
                pace=Pace(limit=bridge.steps_left),
                news=lambda: [*piloting.news(training.step), *training.news()],
                validate=bridge.around_validation(self._validate),
                stop_requested=bridge.stop_requested,
            )
            try:
                for event in events:
                    if not (is_begun and isinstance(event, Started)):
                        yield event
                        if isinstance(event, Started):
                            yield from bridge.notes(event.step)
                            yield from (Noted(event.step, text) for text in self.notes)
                return
            except NotFiniteError as error:
                if recover is None:
                    raise
                place, scores, told = recover(error)
                is_begun = True
            yield told

    def _trained(
        self, schedule: Schedule, place: Place, saving: Saving = SAVE_NOTHING, **parts: Any
    ) -> Iterator[Event]:
        """The loop over this data; what is not given in `parts` does nothing."""
        quiet = {
            "scores": {},
            "run_steps": self.training.run_steps,
            "news": tuple[Event, ...],
            "validate": dict[str, Any],
            "stop_requested": lambda: False,
            "pace": Pace(),
        }
        parts, agreement = quiet | parts, self.agreement
        agreement.now()
        return train.train(
            schedule=schedule,
            place=place,
            start_epoch=self.training.start_epoch,
            report=self.training.report,
            interrupted=agreement.interrupted,
            first_step=self.first_step,
            clock=agreement.clock,
            run_steps=agreement.after(parts.pop("run_steps")),
            validate=agreement.after(parts.pop("validate")),
            is_best=agreement.any(saving.is_best),
            save=agreement.after(saving.save),
            save_best=agreement.after(saving.save_best),
            stop_requested=agreement.any(parts.pop("stop_requested")),
            **parts,
        )

    def _check_data(self) -> None:
        lent, asked = self.lent, self.asked
        spec = None if self.feed is None else self.feed.batch_spec

        def graph() -> Any:
            # Debugging eagerly, a trace would stop at breakpoints with symbolic tensors.
            is_eager = lent.piloting.plan.step == "eager"
            return None if is_eager else lent.runners.built("train_step", spec).graph

        conditions = arrays.Conditions(
            lent.task,
            shuffle=asked.shuffle,
            nan_ends_the_run=lent.on_nan == "raise" and not self.bridge.looks_for_nan,
            graph=graph,
            undisturbed=lambda: undisturbed(lent.task, lent.strategy),
        )
        with step_warnings.silenced(lent.runners.silenced):
            arrays.check(asked.data, asked.sets, conditions)

    def _feed(self, after: Read) -> tuple[Feed | None, int | None]:
        asked = self.asked
        if asked.data is None:
            return None, asked.length()
        feed = asked.data.training(
            seed=self.lent.seed,
            first_epoch=self.first_epoch,
            shuffle=asked.shuffle,
            steps_per_epoch=asked.steps_per_epoch,
            after=after,
        )
        return feed, feed.steps_per_epoch

    def _pilot(self, feed: Feed | None, training: Stepper) -> Any:
        until = self.asked.until
        return self.lent.piloting.begin(
            feed, training, self.watch, steps=self.schedule.total_steps, seconds=until.seconds
        )

    def _validate(self) -> dict[str, Any] | None:
        found: dict[str, Any] = {}
        inner = Stopwatch(self.watch.clock)
        try:
            with self.watch.timing("validation"):
                for name, data in self.asked.sets.items():
                    steps, on_batch = self.asked.validation_steps, self.bridge.on_test_batch
                    scores = self.lent.scorer.score(data, steps, self.agreement, on_batch, inner)
                    if scores is None:
                        return None
                    found |= {f"{name}{key}": value for key, value in scores.items()}
        finally:
            compiling = inner.seconds["compile"]
            self.watch.add("validation", -compiling)
            self.watch.add("compile", compiling)
            self._validation_wait += inner.seconds["data wait"]
        return found

    def _timed(self, sink: Sink) -> Sink:
        name = getattr(sink, "__qualname__", type(sink).__name__).rpartition(".")[2]

        def timed(event: Event) -> None:
            with self.watch.timing("logging", name):
                sink(event)

        return timed

    def _verdict(self, spent: Mapping[str, float], steps: int) -> str:
        """Which part of this start was slow, and why; empty if none was."""
        asked, feed, watch, lent = self.asked, self.feed, self.watch, self.lent
        if not steps:
            return ""
        slower = spent["data wait"] > spent["step"]
        bottleneck = functools.partial(feed.bottleneck, slower) if feed is not None else str
        built, plan = lent.runners.trains_built(), lent.piloting.plan
        examples, seconds = self.training.examples_per_batch(), spent["step"] / steps
        waits = 2 * self._validation_wait > spent["validation"]
        causes = {
            "data wait": lambda: verdict.slow_data(steps, spent, bottleneck()),
            "step": lambda: slow_step(plan, built[-1] if built else None, examples, seconds),
            "validation": lambda: verdict.slow_validation(spent, asked.validate_every, waits=waits),
            "checkpoint": lambda: verdict.slow_saving(asked.save_every, watch.times["checkpoint"]),
            "callbacks": lambda: verdict.slow_callbacks(watch.largest("callbacks")),
            "logging": lambda: verdict.slow_logging(watch.largest("logging")),
            "caller": lambda: ": do less for each event",
            "tuning": lambda: verdict.slow_tuning(repr(plan)),
            "compile": lambda: verdict.slow_compiling(len(built), is_xla=plan.step == "xla"),
            "Python": lambda: verdict.slow_python(self.bridge.called_each_step),
        }
        return verdict.verdict(spent, causes)

    def _completed(self, event: Event) -> Sequence[Event]:
        if isinstance(event, Started):
            event = replace(event, inexact=tuple(self.reasons))
        return [event] if self._observer is None else self._observer.completed(event)

    def _last_images(self, finished: Finished) -> Sequence[Event]:
        is_end = finished.reason in ("complete", "stopped")
        return self._observer.images(finished.step) if self._observer and is_end else []

    def _heard(
        self,
        events: Iterator[Event],
        sinks: Sequence[Sink],
        leaving: Mapping[type[BaseException], Callable[[], None]],
    ) -> Iterator[Event]:
        if self._observer is not None:
            self._observer.collect_facts()
        began, first_step = self.watch.clock(), self.training.step
        finished, reason = None, "failed"
        try:
            for event in events:
                if isinstance(event, Finished):
                    finished = event
                    break
                for told in self._completed(event):
                    notify(sinks, told)
                    with self.watch.timing("caller"):
                        yield told
        except BaseException as error:
            # An exception in the caller's own code closes the generator too, and fails the run.
            is_left = (
                isinstance(error, GeneratorExit) and tensorflow_internals.was_left_on_purpose()
            )
            is_stopped = isinstance(error, KeyboardInterrupt)  # by Ctrl-C: nothing failed
            reason = "left" if is_left else "interrupted" if is_stopped else "failed"
            for kind, call in leaving.items():
                if isinstance(error, kind):
                    call()
            raise
        finally:
            self.lent.piloting.end()
            # Of this start: a run that goes on has seconds before it that nobody here has seen.
            seconds = self.watch.clock() - began
            finished = finished or Finished(self.training.step, seconds, reason)
            spent = self.watch.whole(seconds + self._seconds_to_build)
            advice = self._verdict(spent, finished.step - first_step)
            whole = finished.seconds + self._seconds_to_build
            finished = replace(
                finished,
                seconds=whole,
                spent=spent,
                advice=advice,
                history=self.history.history,
            )
            self.is_over = finished.reason in ("complete", "stopped", "left")
            if self.is_over:
                finalize_averages(self.lent.task)
            with contextlib.ExitStack() as last:
                last.callback(notify, sinks, finished)  # also if the images are interrupted
                images = self._last_images(finished)
                for event in images:
                    notify(sinks, event)
            declaration.leave(self.lent.task)
            self.feed = None
            self.training.close()
        yield from [*images, finished]


def _restarted_steps(snapshot: Snapshot | None, steps_per_epoch: int | None) -> int:
    """Return how many steps of restarted epochs a leg has run beside those of its epochs."""
    if snapshot is None or steps_per_epoch is None:
        return 0
    place = snapshot.place
    return max(0, place.step - place.step_in_epoch - place.epoch * steps_per_epoch)
