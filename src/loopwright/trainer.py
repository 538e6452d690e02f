"""Trainer: the only place that wires parts together."""

import contextlib
import functools
import inspect
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, final

import keras
import tensorflow as tf

from loopwright import adaptations, loop, state
from loopwright.compiled import CompiledModel, as_task
from loopwright.data import Data, Feed, as_data, training_data, validation_sets
from loopwright.errors import ConfigurationError, LoopwrightWarning, message
from loopwright.events import Event, Finished, Sink
from loopwright.history import History
from loopwright.meter import Pace
from loopwright.piloting import Piloting, asked_for
from loopwright.plan_history import PlanHistory
from loopwright.plans import Plan, nearest, settled
from loopwright.prediction import predict
from loopwright.runners import Runners
from loopwright.running import StepRunner
from loopwright.schedule import Every, Schedule, every
from loopwright.stopwatch import Stopwatch, advice
from loopwright.tally import Tally
from loopwright.task import Task, require_step
from loopwright.telemetry.callbacks import CallbackBridge
from loopwright.telemetry.console import console
from loopwright.training import Training
from loopwright.validation import score

Verbose = Literal["auto", 0, 1, 2]


@final
class Trainer:
    """Trains, evaluates and predicts with a task, or with a compiled Keras model.

    >>> from loopwright import Supervised
    >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    >>> trainer = Trainer(Supervised(model, "mse", "sgd"))
    >>> history = trainer.fit(tf.ones((64, 1)), tf.ones((64, 1)), epochs=2, verbose=0)
    >>> sorted(history.history)
    ['loss']

    `task` may also be a function that makes the task: it is called inside `strategy.scope()`,
    which several replicas need. `seed` decides everything that Loopwright draws. `sinks` are
    functions that hear every event. `plan` says how steps are run: `"auto"` measures while it
    trains; a `Plan`, a short word, or what was recorded (`trainer.plan_history`, or a file of it).
    """

    def __init__(
        self,
        task: Task | keras.Model | Callable[[], Task | keras.Model],
        *,
        plan: "Plan | PlanHistory | str | os.PathLike[str]" = "auto",
        strategy: tf.distribute.Strategy | None = None,
        seed: int = 0,
        sinks: Sequence[Sink] = (),
    ) -> None:
        _require_tensorflow_backend()
        self._strategy = strategy or tf.distribute.get_strategy()
        self._task = as_task(task, self._strategy)
        self._runners = Runners(self._task, self._strategy)
        self._piloting = Piloting(asked_for(plan), self._runners, self._task)
        self._seed = seed
        self._sinks = list(sinks)
        self._epochs_done = 0
        self.history = History()

    @property
    def task(self) -> Any:
        """What is trained; of a Keras model, the task around it."""
        return self._task

    @property
    def plan(self) -> Plan:
        """How steps are run: the plan in use, or the one that training begins with."""
        return self._piloting.plan

    @property
    def plan_history(self) -> PlanHistory:
        """Which plan ran which steps; `Trainer(..., plan=that)` runs a task anew like this one."""
        return self._piloting.history

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        sample_weight: Any = None,
        *,
        batch_size: int | None = None,
        epochs: int = 1,
        until: str | Every | None = None,
        steps_per_epoch: int | None = None,
        shuffle: bool = True,
        validation_data: Any = None,
        validation_split: float = 0.0,
        validation_steps: int | None = None,
        validate_every: str | Every = "1 epoch",
        class_weight: Mapping[int, float] | None = None,
        callbacks: Sequence[keras.callbacks.Callback] = (),
        verbose: Verbose = "auto",
    ) -> History:
        """Trains, and returns the history. Called again, it trains on.

        Data: arrays (`fit(x, y)`), a batched `tf.data.Dataset`, a `PyDataset`, a generator, or
        None for a step without a batch. `until="6 hours"` or `"100000 steps"` instead of
        `epochs`, counted from this call. `validation_data` may be a dict of named sets.
        """
        events = self.events(
            x,
            y,
            sample_weight,
            batch_size=batch_size,
            epochs=epochs,
            until=until,
            steps_per_epoch=steps_per_epoch,
            shuffle=shuffle,
            validation_data=validation_data,
            validation_split=validation_split,
            validation_steps=validation_steps,
            validate_every=validate_every,
            class_weight=class_weight,
            callbacks=callbacks,
            verbose=verbose,
        )
        for _ in events:
            pass
        return self.history

    def events(
        self,
        x: Any = None,
        y: Any = None,
        sample_weight: Any = None,
        *,
        batch_size: int | None = None,
        epochs: int = 1,
        until: str | Every | None = None,
        steps_per_epoch: int | None = None,
        shuffle: bool = True,
        validation_data: Any = None,
        validation_split: float = 0.0,
        validation_steps: int | None = None,
        validate_every: str | Every = "1 epoch",
        class_weight: Mapping[int, float] | None = None,
        callbacks: Sequence[keras.callbacks.Callback] = (),
        verbose: Verbose = 0,
    ) -> Iterator[Event]:
        """As `fit`, one event at a time: to stop, stop iterating."""
        duration, interval = _duration(epochs, until), every(validate_every)
        _require_positive(steps_per_epoch=steps_per_epoch, validation_steps=validation_steps)
        data, held_out = training_data(
            x, y, sample_weight, batch_size, class_weight, validation_split, validation_data
        )
        require_step(self._task, "train_step")
        if held_out is not None:
            require_step(self._task, "test_step")
        sets = validation_sets(held_out, batch_size)
        if data is None:
            feed, length = None, _length_without_data(self._task, steps_per_epoch, duration)
        else:
            feed = data.training(
                seed=self._seed,
                first_epoch=self._epochs_done,
                shuffle=shuffle,
                steps_per_epoch=steps_per_epoch,
            )
            length = feed.steps_per_epoch
        bridge = CallbackBridge(callbacks, self._task)
        self.history = History(bridge.added)
        schedule = Schedule(
            steps_per_epoch=length,
            until=duration,
            validate_every=interval if sets else None,
            stop_every_steps=bridge.stop_every_steps,
        )
        watch, piloting = Stopwatch(time.perf_counter), self._piloting
        first_step = int(self._task.step_counter.read_value())
        training = Training(
            functools.partial(self._runners.runner, "train_step"),
            feed,
            Tally(self._task),
            lambda feed, training: piloting.begin(
                feed, training, watch, steps=schedule.total_steps, seconds=duration.seconds
            ),
            step=first_step,
            watch=watch,
            planned=piloting.planned,
        )
        for held in sets.values():
            # What is wrong with validation shows before an hour of training, not after it.
            if held.can_be_read_again:
                self._test_runner_for(held.one_pass(steps=validation_steps))

        def validate() -> dict[str, Any]:
            with watch.timing("validation"):
                scores = {name: self._score(d, validation_steps) for name, d in sets.items()}
            return {f"{name}{key}": v for name, s in scores.items() for key, v in s.items()}

        events = loop.train(
            schedule=schedule,
            run_steps=bridge.before_steps(training.run_steps),
            start_epoch=training.start_epoch,
            report=training.report,
            news=lambda: piloting.news(training.step),
            validate=bridge.around_validation(validate),
            stop_requested=bridge.stop_requested,
            first_step=first_step,
            pace=Pace(),
            clock=watch.clock,
        )
        sinks = [bridge, self.history, console(verbose), *map(_tolerated, self._sinks)]
        return self._heard(events, sinks, watch, first_step)

    def evaluate(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        batch_size: int | None = None,
        steps: int | None = None,
    ) -> dict[str, Any]:
        """Scores a data set: `{"loss": ..., "accuracy": ...}`. Training is not disturbed."""
        require_step(self._task, "test_step")
        _require_positive(steps=steps)
        return self._score(as_data(x, y, sample_weight, batch_size=batch_size), steps)

    def predict(self, x: Any, *, batch_size: int | None = None, steps: int | None = None) -> Any:
        """The predictions for a data set, as NumPy arrays."""
        require_step(self._task, "predict_step")
        _require_positive(steps=steps)
        data = as_data(x, batch_size=batch_size)
        return predict(self._task, data, steps=steps, strategy=self._strategy, plan=self.plan)

    def _heard(
        self, events: Iterator[Event], sinks: Sequence[Sink], watch: Stopwatch, first_step: int
    ) -> Iterator[Event]:
        """Tells every sink of every event; `Finished` reaches them whatever happens."""
        began, finished, reason = watch.clock(), None, "failed"
        try:
            for event in events:
                if isinstance(event, Finished):
                    finished = event
                    break
                _tell(sinks, event)
                yield event
        except GeneratorExit:
            reason = "left"
            raise
        finally:
            self._piloting.end()
            if finished is None:
                seconds = watch.clock() - began
                finished = Finished(int(self._task.step_counter.read_value()), seconds, reason)
            spent = watch.whole(finished.seconds)
            hint = advice(spent, finished.step - first_step)
            finished = replace(finished, spent=spent, advice=hint or "")
            self._epochs_done += len(self.history.epoch)
            if finished.reason != "failed":
                _finalize_averages(self._task)
            _tell(sinks, finished)
        yield finished

    def _score(self, data: Data, steps: int | None) -> dict[str, Any]:
        return score(
            self._task,
            self._test_runner_for,
            data.one_pass(steps=steps),
            strategy=self._strategy,
            clock=time.perf_counter,
        )

    def _test_runner_for(self, feed: Feed) -> StepRunner:
        # Scores are wanted of any data, whatever plan the training runs by.
        terms = self._runners.terms(feed)
        plan = Plan(self.plan.step, self.plan.loop)
        plan = settled(nearest(plan, terms), terms)
        return self._runners.runner("test_step", feed.batch_spec, plan)


def _duration(epochs: int, until: str | Every | None) -> Every:
    if until is None:
        _require_positive(epochs=epochs)
        return Every(epochs=epochs)
    if epochs != 1:
        raise ConfigurationError(
            message(
                "epochs and until both say how long to train.",
                expected="one of them",
                received=f"epochs={epochs}, until={until!r}",
                do="leave one out",
            )
        )
    return every(until)


def _require_positive(**counts: Any) -> None:
    for name, count in counts.items():
        is_count = isinstance(count, int) and not isinstance(count, bool) and count > 0
        if count is not None and not is_count:
            raise ConfigurationError(
                message(
                    f"{name} is a count.",
                    expected=f"a whole number of 1 or more as {name}",
                    received=f"{name}={count!r}",
                    do="leave it out, or pass such a number",
                )
            )


def _length_without_data(task: Task, length: int | None, duration: Every) -> int | None:
    """The steps per epoch of a step that needs no data: all of them, unless told otherwise."""
    parameters = inspect.signature(task.train_step).parameters.values()
    if any(p.default is p.empty and p.kind is not p.VAR_POSITIONAL for p in parameters):
        raise ConfigurationError(
            message(
                f"{type(task).__name__}.train_step takes a batch, but there is no data.",
                expected="data for fit, or a step without a batch: def train_step(self)",
                received="fit without x",
                do="pass data, or write the step without its batch argument",
            )
        )
    if length is None and duration.epochs is not None:
        raise ConfigurationError(
            message(
                "A step without data has no epochs of its own.",
                expected='until="10000 steps", or steps_per_epoch',
                received="no data and no length",
                do='call fit(None, until="10000 steps")',
            )
        )
    return duration.steps if length is None else length


def _finalize_averages(task: Task) -> None:
    """Puts the averaged weights of an optimizer with `use_ema` in place, as Keras does."""
    optimizers = state.of_kind(keras.optimizers.Optimizer, task)
    if isinstance(task, CompiledModel) and isinstance(
        task.model.optimizer, keras.optimizers.Optimizer
    ):
        optimizers = [task.model.optimizer]
    for optimizer in optimizers:
        if optimizer.built:
            optimizer.finalize_variable_values(adaptations.trained_by(optimizer))


def _tell(sinks: Sequence[Sink], event: Event) -> None:
    with contextlib.ExitStack() as every_sink:
        # In their order, and each of them even if one before it raises.
        for sink in reversed(sinks):
            every_sink.callback(sink, event)


def _tolerated(sink: Sink) -> Sink:
    """A sink that fails warns once and never stops training."""
    failed = False

    def hear(event: Event) -> None:
        nonlocal failed
        if failed:
            return
        try:
            sink(event)
        except Exception as error:
            failed = True
            warnings.warn(
                f"The sink {sink!r} failed and hears nothing more: {error!r}",
                LoopwrightWarning,
                stacklevel=2,
            )

    return hear


def _require_tensorflow_backend() -> None:
    backend = keras.backend.backend()
    if backend != "tensorflow":
        raise ConfigurationError(
            message(
                "Loopwright trains with TensorFlow.",
                expected="Keras with the TensorFlow backend",
                received=f"the {backend} backend",
                do="set KERAS_BACKEND=tensorflow before importing keras",
            )
        )
