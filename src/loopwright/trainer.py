"""Trainer: the only place that wires parts together."""

import contextlib
import functools
import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, final

import keras
import tensorflow as tf

from loopwright.checkpoints.retention import (
    DEFAULT_KEEP,
    KeepBest,
    Rule,
    best_rules,
)
from loopwright.checkpoints.run_directory import Run
from loopwright.compat.tracebacks import shortening, shortens_tracebacks
from loopwright.config.edits import OnChange, require_on_change
from loopwright.data.adapter import as_data, training_data, validation_sets
from loopwright.distribute.replicas import require_tensorflow_backend
from loopwright.distribute.strategy import strategy_for
from loopwright.distribute.team import Agreement, Team
from loopwright.engine.compiled_steps import CompiledSteps
from loopwright.engine.nan import OnNan, require_policy
from loopwright.engine.plan_selector import PlanSelector, asked_for
from loopwright.engine.predictor import Predictor
from loopwright.engine.scorer import Scorer
from loopwright.events import Event, Sink
from loopwright.exactness import Exact, require_exact
from loopwright.export.exporter import Exported, Format, export
from loopwright.fit import declaration
from loopwright.fit.attempt import LastAttempt, Opened, close_abandoned
from loopwright.fit.leg import FitRequest, Leg, Lent
from loopwright.fit.request import (
    duration,
    length_without_data,
    require_positive,
    require_watchable,
)
from loopwright.fit.restore import (
    Checkpoint,
    HeldState,
    Which,
    require_run,
)
from loopwright.fit.resume import leg_events
from loopwright.fit.sharing import part, require_shareable
from loopwright.loop.schedule import Every, Place, every
from loopwright.loop.signals import Signals
from loopwright.plans.plan import Plan
from loopwright.plans.plan_history import PlanHistory
from loopwright.sinks.callback_model import Scoring
from loopwright.sinks.history import History
from loopwright.sinks.notify import tolerated
from loopwright.sinks.terminal import console, show_scores
from loopwright.step_warnings import require_known
from loopwright.task.keras_model import as_task, plan_for
from loopwright.task.optimizers import averages_in_place
from loopwright.task.task import Task, require_step
from loopwright.task.watching import GradientWatch

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
    `keep` says which checkpoints stay (default: `[KeepLatest(3), KeepBest("val_loss")]`; a metric
    whose name does not tell its direction needs `mode`: `KeepBest("val_gain", mode="max")`),
    `exact="require"` refuses to go on in another environment, `exact="best_effort"` accepts
    training that cannot be resumed exactly, like a shuffle without a seed,
    `fresh=True` starts over and moves the old run aside. A program that was edited since the run
    began is refused: `on_change=["learning_rate"]` accepts edits by name, `on_change="start_over"`
    moves the old run aside if something differs. `on_nan` says what is done about a loss that is
    not finite. `watch="gradients"` reports the norm of each, and writes histograms into the
    TensorBoard files of a run directory. `init_from` are weights to begin with: a run, a
    `.weights.h5` file, or a `tf.train.Checkpoint`. `silence` are the ids of step warnings that are
    not given: `silence=["broadcast"]`.
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
        keep: Sequence[Rule] = DEFAULT_KEEP,
        on_nan: OnNan = "raise",
        exact: Exact = "warn",
        on_change: OnChange = "refuse",
        watch: Literal["gradients"] | None = None,
        init_from: "str | os.PathLike[str] | None" = None,
        fresh: bool = False,
        silence: Sequence[str] = (),
    ) -> None:
        require_tensorflow_backend()
        silenced = require_known(silence)
        self._strategy = strategy_for(strategy)
        self._team = Team(self._strategy)
        require_policy(on_nan, run_dir, self._strategy.num_replicas_in_sync)
        require_on_change(on_change)
        require_exact(exact)
        with self._team.losses_explained():
            self._task = as_task(task, self._strategy)
        require_watchable(watch, self._task)
        # Whole gradients are for sinks; several replicas do not hold them.
        is_observed = run_dir is not None or bool(sinks)
        keeps = is_observed and self._strategy.num_replicas_in_sync == 1
        watched = None if watch is None else GradientWatch(keeps=keeps)
        self._runners = CompiledSteps(self._task, self._strategy, on_nan, watched, silenced)
        asked = asked_for(plan_for(self._task, plan))
        self._piloting = PlanSelector(asked, self._runners, self._task)
        self._scorer = Scorer(self._task, self._strategy, self._runners, self._piloting)
        self._predictor = Predictor(self._task, self._strategy)
        self._sinks = list(sinks)
        self._epochs_done = self._legs = 0
        self._attempt = LastAttempt()
        self._fitting: Leg | None = None
        self._open: Opened | None = None
        self._run = None if run_dir is None else Run(run_dir, keep, fresh=fresh)
        self._shown_rule = next(iter(best_rules(keep)), KeepBest())
        given = None if init_from is None else os.fspath(init_from)
        self._state = HeldState(
            self._task, self._runners, self._run, self._team, init_from=given, fresh=fresh
        )
        self._exact: Exact = exact
        self._on_change: OnChange = on_change
        self._fresh = fresh
        self._lent = Lent(
            self._task,
            self._strategy,
            self._team,
            self._runners,
            self._piloting,
            self._scorer,
            Scoring(self.evaluate, self.predict),
            seed,
            on_nan,
            self._state.start_from_given_weights,
            self._state.is_set_by_leg,
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

    @shortens_tracebacks
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
        directory `save_every` says how often it is saved, beside the end and each validation that
        is the best so far (`Trainer(keep=[KeepBest(...)])`).
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

    @shortens_tracebacks
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
        lasts = duration(epochs, until)
        require_positive(steps_per_epoch=steps_per_epoch, validation_steps=validation_steps)
        data, held_out = training_data(
            x, y, sample_weight, batch_size, class_weight, validation_split, validation_data
        )
        require_step(self._task, "train_step", has_batch=data is not None)
        if held_out is not None:
            require_step(self._task, "test_step")
        sets = validation_sets(held_out, batch_size)
        asked = FitRequest(
            data=None if data is None else part(data, self._team),
            sets={name: part(held, self._team) for name, held in sets.items()},
            until=lasts,
            validate_every=every(validate_every),
            save_every=every(save_every) if self._run is not None else None,
            length=lambda: length_without_data(steps_per_epoch, lasts),
            steps_per_epoch=steps_per_epoch,
            validation_steps=validation_steps,
            shuffle=shuffle,
            class_weight=class_weight,
            callbacks=callbacks,
            sinks=[self._console(verbose), *map(tolerated, self._sinks)] if self.is_chief else [],
            is_observed=self.is_chief and bool(self._sinks),
        )
        require_shareable(asked, self._team)
        if self._run is None:
            fitting = Leg(self._lent, asked, first_epoch=self._epochs_done)
            self._state.start_from_given_weights()
            self._began(fitting)
            return self._counted(fitting.events(Place(), {}))
        if self._fresh:
            self._fresh = False
            self._state.starts_over()
        return self._counted(
            leg_events(
                self._lent,
                asked,
                self._run,
                self._legs,
                self._attempt,
                first_epoch=self._epochs_done,
                exact=self._exact,
                on_change=self._on_change,
                begun=self._began,
            )
        )

    @shortens_tracebacks
    def restore(self, which: Which, *, metric: str | None = None) -> int:
        """Gives the task the state of a checkpoint: "best", "last" or a step; which step that was.

        "best" is the best validation by the first `KeepBest` of `keep`, with `metric="val_auc"` by
        another one. A trainer without `keep` takes the rules that the run was trained with.

        To score, predict or export; or, between two calls of `fit`, to train on from there. In a
        process that has not trained, `task.step` is then the step of the checkpoint. After `fit`
        it stays: what is trained from an earlier state is added to the run.
        """
        step = self._state.restore(which, metric)
        declaration.leave(self._task)
        return step

    @shortens_tracebacks
    def evaluate(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        batch_size: int | None = None,
        steps: int | None = None,
        verbose: Verbose = 0,
        checkpoint: Checkpoint | None = None,
    ) -> dict[str, Any]:
        """Scores a data set: `{"loss": ..., "accuracy": ...}`. Training is not disturbed.

        `checkpoint` is "best", "last" or a step of the run: its state is used for this call, then
        the task's own is put back. "current" are the weights that the task holds. It may be left
        out after `fit` or `restore`, and where there are no checkpoints. `verbose=1` prints the
        scores.
        """
        require_step(self._task, "test_step")
        require_positive(steps=steps)
        with self._state.of(checkpoint, "evaluate"), self._team.losses_explained():
            data = part(as_data(x, y, sample_weight, batch_size=batch_size), self._team)
            alone = Agreement(self._team, time.perf_counter, Signals())
            found = self._scorer.score(data, steps, alone) or {}
        show_scores(verbose if self.is_chief else 0, found)
        return found

    @shortens_tracebacks
    def predict(
        self,
        x: Any,
        *,
        batch_size: int | None = None,
        steps: int | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> Any:
        """The predictions for a data set, as NumPy arrays; `checkpoint` as for `evaluate`."""
        require_step(self._task, "predict_step")
        require_positive(steps=steps)
        with self._state.of(checkpoint, "predict"):
            data = as_data(x, batch_size=batch_size)
            return self._predictor.predict(data, steps=steps, plan=self._piloting.plan_in_force)

    @shortens_tracebacks
    def export(
        self,
        path: "str | os.PathLike[str] | None" = None,
        *,
        format: Format | None = None,
        examples: Mapping[str, Any] | None = None,
        averaged: bool = False,
        checkpoint: Checkpoint | None = None,
    ) -> Exported:
        """Writes the task's models for serving, loads them in a new process, and compares.

        A directory gets versions (`export/1`, `export/2`), a path that ends in `.keras` is one
        file; by default it is in `export` in the run directory. `averaged` takes the averages of
        optimizers with `use_ema`, `checkpoint` is as for `evaluate`. `Task.exports` says which
        models, and under which names.
        """
        with self._state.of(checkpoint, "export") as step:
            run = require_run(self._run) if path is None else None
            if run is not None:
                path = run.export_directory()
                path = path / f"step-{step}.keras" if format == "keras" else path
            models = self._task.exports()
            with averages_in_place(self._task) if averaged else contextlib.nullcontext():
                done = export(models, Path(path or ""), examples, format=format, step=step)
            if run is not None:
                run.exported()
            return done

    def _console(self, verbose: Verbose) -> Sink:
        if self._run is None:
            return console(verbose, self._shown_rule)
        return console(
            verbose, self._shown_rule, functools.partial(self._run.best, self._shown_rule)
        )

    def _began(self, fitting: Leg) -> None:
        self._fitting, self.history = fitting, fitting.history

    def _counted(self, events: Iterator[Event]) -> Iterator[Event]:
        """The events of a leg, which counts once it is over."""

        def counted() -> Iterator[Event]:
            close_abandoned(self._open)
            # Held weakly: a loop that is left must be able to close its events.
            self._open = own[0]
            self._state.trains()
            try:
                with self._team.losses_explained():
                    yield from events
                self._team.barrier()
            finally:
                fitting, self._fitting = self._fitting, None
                # Without a run directory there is nothing to go back to: fit trains on.
                if self._run is None or (fitting is not None and fitting.is_over):
                    self._epochs_done += len(self.history.epoch)
                    self._legs += 1

        own: list[Opened] = []
        opened: Any = shortening(counted())
        own.append(weakref.ref(opened))
        return opened
