"""Trainer: the only place that wires parts together."""

import contextlib
import inspect
import os
import time
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, final

import keras
import tensorflow as tf

from loopwright.agreement import Agreement, Team
from loopwright.attempt import LastAttempt, Opened, close_abandoned
from loopwright.averages import averages_in_place
from loopwright.compiled import as_task
from loopwright.data import Data, Feed, as_data, training_data, validation_sets
from loopwright.errors import ConfigurationError, message
from loopwright.events import Event, Metrics, Sink
from loopwright.exporting import Exported, Format, export
from loopwright.finite import OnNan, require_policy
from loopwright.fitting import Asked, Fitting, Lent
from loopwright.history import History
from loopwright.initial_weights import start_from
from loopwright.joining import strategy_for
from loopwright.piloting import Piloting, asked_for
from loopwright.plan_history import PlanHistory
from loopwright.plans import Plan, nearest, settled
from loopwright.prediction import Predictor
from loopwright.restoring import Which, require_run, restore
from loopwright.resuming import leg_events
from loopwright.retention import KeepBest, KeepLatest, Rule
from loopwright.runners import Runners
from loopwright.running import StepRunner
from loopwright.runs import Run
from loopwright.runtime import require_tensorflow_backend
from loopwright.schedule import Every, Place, every
from loopwright.sharing import part, require_shareable
from loopwright.signals import Signals
from loopwright.snapshots import Exact
from loopwright.task import Task, require_step
from loopwright.telemetry.console import console
from loopwright.telemetry.tolerance import tolerated
from loopwright.validation import score
from loopwright.watching import GradientWatch

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
    which several replicas need. `strategy="auto"` takes what is there: the other workers that
    `TF_CONFIG` or SLURM tell of, several GPUs, or one device. `seed` decides everything that
    Loopwright draws. `sinks` are functions that hear every event. `plan` says how steps are run:
    `"auto"` measures while it trains; a `Plan`, a short word, or what was recorded
    (`trainer.plan_history`, or a file of it).

    With a `run_dir` the same program goes on where it was stopped, and ends with the same bits:
    `keep` says which checkpoints stay, `exact="require"` refuses to go on in another environment,
    `fresh=True` starts over and moves the old run aside. `on_nan` says what is done about a loss
    that is not finite. `watch="gradients"` reports the norm of each, and writes histograms into
    the TensorBoard files of a run directory. `init_from` are weights to begin with: a run, a
    `.weights.h5` file, or a `tf.train.Checkpoint`.
    """

    def __init__(
        self,
        task: Task | keras.Model | Callable[[], Task | keras.Model],
        *,
        run_dir: "str | os.PathLike[str] | None" = None,
        plan: "Plan | PlanHistory | str | os.PathLike[str]" = "auto",
        strategy: "tf.distribute.Strategy | str | None" = None,
        seed: int = 0,
        sinks: Sequence[Sink] = (),
        keep: Sequence[Rule] = (KeepLatest(3), KeepBest("val_loss")),
        on_nan: OnNan = "raise",
        exact: Exact = "warn",
        watch: Literal["gradients"] | None = None,
        init_from: "str | os.PathLike[str] | None" = None,
        fresh: bool = False,
    ) -> None:
        require_tensorflow_backend()
        self._strategy = strategy_for(strategy)
        self._team = Team(self._strategy)
        require_policy(on_nan, run_dir, self._strategy.num_replicas_in_sync)
        with self._team.losses_explained():
            self._task = as_task(task, self._strategy)
        self._init_from = None if init_from is None else os.fspath(init_from)
        _require_watchable(watch, self._task)
        # Whole gradients go to TensorBoard only; on several replicas nobody holds them.
        keeps = run_dir is not None and self._strategy.num_replicas_in_sync == 1
        watched = None if watch is None else GradientWatch(keeps=keeps)
        self._runners = Runners(self._task, self._strategy, on_nan, watched)
        self._piloting = Piloting(asked_for(plan), self._runners, self._task)
        self._predictor = Predictor(self._task, self._strategy)
        self._sinks = list(sinks)
        self._epochs_done = self._legs = 0
        self._attempt = LastAttempt()
        self._fitting: Fitting | None = None
        self._open: Opened | None = None
        self._restored_step: int | None = None
        self._run = None if run_dir is None else Run(run_dir, keep)
        self._exact: Exact = exact
        self._fresh = fresh
        self._lent = Lent(
            self._task,
            self._strategy,
            self._team,
            self._runners,
            self._piloting,
            self._score,
            self._build_test,
            seed,
            on_nan,
            self._start_from_given_weights,
        )
        self.history = History()

    @property
    def task(self) -> Any:
        """What is trained; of a Keras model, the task around it."""
        return self._task

    @property
    def is_chief(self) -> bool:
        """Whether this process writes and talks: of several workers, only the first one does."""
        return self._team.is_chief

    @property
    def plan(self) -> Plan:
        """How steps are run: the plan in use, or the one that training begins with."""
        return self._piloting.plan

    @property
    def plan_history(self) -> PlanHistory:
        """Which plan ran which steps; `Trainer(..., plan=that)` runs a task anew like this one."""
        return self._piloting.history

    def follow(self, plans: PlanHistory) -> None:
        """Runs what comes by these plans, as if they had been given to the trainer."""
        self._piloting.follow(plans)

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
        save_every: str | Every = "10 minutes",
        verbose: Verbose = "auto",
    ) -> History:
        """Trains, and returns the history. Called again, it trains on.

        Data: arrays (`fit(x, y)`), a batched `tf.data.Dataset`, a `PyDataset`, a generator, or
        None for a step without a batch. `until="6 hours"` or `"100000 steps"` instead of
        `epochs`, counted from this call. `validation_data` may be a dict of named sets. In a run
        directory `save_every` says how often it is saved, beside the end.
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
            save_every=save_every,
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
        save_every: str | Every = "10 minutes",
        verbose: Verbose = 0,
    ) -> Iterator[Event]:
        """As `fit`, one event at a time: to stop, stop iterating."""
        duration = _duration(epochs, until)
        _require_positive(steps_per_epoch=steps_per_epoch, validation_steps=validation_steps)
        data, held_out = training_data(
            x, y, sample_weight, batch_size, class_weight, validation_split, validation_data
        )
        require_step(self._task, "train_step")
        if held_out is not None:
            require_step(self._task, "test_step")
        sets = validation_sets(held_out, batch_size)
        asked = Asked(
            data=None if data is None else part(data, self._team),
            sets={name: part(held, self._team) for name, held in sets.items()},
            until=duration,
            validate_every=every(validate_every),
            save_every=every(save_every) if self._run is not None else None,
            length=lambda: _length_without_data(self._task, steps_per_epoch, duration),
            steps_per_epoch=steps_per_epoch,
            validation_steps=validation_steps,
            shuffle=shuffle,
            callbacks=callbacks,
            sinks=[console(verbose), *map(tolerated, self._sinks)] if self.is_chief else [],
        )
        require_shareable(asked, self._team)
        if self._run is None:
            fitting = Fitting(self._lent, asked, first_epoch=self._epochs_done)
            self._start_from_given_weights()
            self._began(fitting)
            return self._counted(fitting.events(Place(), {}, _save_nothing))
        if self._fresh:
            if self.is_chief:
                self._run.move_aside()
            self._fresh = False
        return self._counted(
            leg_events(
                self._lent,
                asked,
                self._run,
                self._legs,
                self._attempt,
                first_epoch=self._epochs_done,
                exact=self._exact,
                begun=self._began,
            )
        )

    def restore(self, which: Which) -> int:
        """Gives the task the state of a checkpoint: "best", "last" or a step; which step that was.

        To score, predict or export; or, between two calls of `fit`, to train on from there. The
        run's own count of steps stays.
        """
        run = require_run(self._run)
        self._restored_step = restore(self._task, self._runners, run, which, self._team)
        return self._restored_step

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
        self._start_from_given_weights()
        data = part(as_data(x, y, sample_weight, batch_size=batch_size), self._team)
        alone = Agreement(self._team, time.perf_counter, Signals())
        with self._team.losses_explained():
            return self._score(data, steps, alone) or {}

    def predict(self, x: Any, *, batch_size: int | None = None, steps: int | None = None) -> Any:
        """The predictions for a data set, as NumPy arrays."""
        require_step(self._task, "predict_step")
        _require_positive(steps=steps)
        self._start_from_given_weights()
        data = as_data(x, batch_size=batch_size)
        return self._predictor.predict(data, steps=steps, plan=self.plan)

    def export(
        self,
        path: "str | os.PathLike[str] | None" = None,
        *,
        format: Format | None = None,
        examples: Mapping[str, Any] | None = None,
        averaged: bool = False,
    ) -> Exported:
        """Writes the task's models for serving, loads them in a new process, and compares.

        A directory gets versions (`export/1`, `export/2`), a path that ends in `.keras` is one
        file; by default it is in `export` in the run directory. `averaged` takes the averages of
        optimizers with `use_ema`. `Task.exports` says which models, and under which names.
        """
        step = self._restored_step
        if step is None:
            step = int(self._task.step_counter.read_value())
        if path is None:
            path = require_run(self._run).directory / "export"
            path = path / f"step-{step}.keras" if format == "keras" else path
        with averages_in_place(self._task) if averaged else contextlib.nullcontext():
            return export(self._task.exports(), Path(path), examples, format=format, step=step)

    def _start_from_given_weights(self) -> None:
        if self._init_from is not None:
            source, self._init_from = self._init_from, None
            start_from(self._task, source)

    def _began(self, fitting: Fitting) -> None:
        self._fitting, self.history = fitting, fitting.history

    def _counted(self, events: Iterator[Event]) -> Iterator[Event]:
        """The events of a leg, which counts once it is over."""

        def counted() -> Generator[Event]:
            close_abandoned(self._open)
            # Held weakly: a loop that is left must be able to close its events.
            self._open = own[0]
            self._restored_step = None
            try:
                with self._team.losses_explained():
                    yield from events
                self._team.farewell()
            finally:
                fitting, self._fitting = self._fitting, None
                # Without a run directory there is nothing to go back to: fit trains on.
                if self._run is None or (fitting is not None and fitting.is_over):
                    self._epochs_done += len(self.history.epoch)
                    self._legs += 1

        own: list[Opened] = []
        opened = counted()
        own.append(weakref.ref(opened))
        return opened

    def _score(self, data: Data, steps: int | None, agreement: Agreement) -> dict[str, Any] | None:
        return score(
            self._task,
            self._test_runner_for,
            data.one_pass(steps=steps),
            strategy=self._strategy,
            clock=agreement.now,
            interrupted=agreement.interrupted,
        )

    def _build_test(self, data: Data, steps: int | None) -> object:
        return self._test_runner_for(data.one_pass(steps=steps))

    def _test_runner_for(self, feed: Feed) -> StepRunner:
        # Scores are wanted of any data, whatever plan the training runs by.
        terms = self._runners.terms(feed)
        plan = Plan(self.plan.step, self.plan.loop)
        plan = settled(nearest(plan, terms), terms)
        return self._runners.runner("test_step", feed, plan)


def _require_watchable(watch: Any, task: Task) -> None:
    if watch not in (None, "gradients") or (watch and task.reported == "last"):
        raise ConfigurationError(
            message(
                "This cannot be watched.",
                expected='watch="gradients", with a task whose step calls minimize or apply',
                received=f"watch={watch!r}, {type(task).__name__}",
                do="leave watch out; of a compiled Keras model, make a task: lw.Supervised(...)",
            )
        )


def _save_nothing(place: Place, scores: Metrics) -> None:
    """Without a run directory nothing is written."""


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
