"""Trainer: what users call. It wires the parts together, and does nothing else."""

import os
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, final

import keras
import tensorflow as tf

from loopwright import launch
from loopwright.checkpoints.retention import DEFAULT_KEEP, KeepBest, Rule, best_rules
from loopwright.checkpoints.run_directory import Run
from loopwright.compat.lines import shortens_tracebacks
from loopwright.dispatch import tolerated
from loopwright.distribute.replicas import require_tensorflow_backend
from loopwright.distribute.strategy import strategy_for
from loopwright.distribute.team import Team
from loopwright.engine.engine import Engine
from loopwright.engine.nan import OnNan, require_policy
from loopwright.events import Event, Finished, Sink
from loopwright.exactness import Exact, require_exact
from loopwright.fit import measured_child, run_spec
from loopwright.fit.event_stream import EventStream
from loopwright.fit.history import History
from loopwright.fit.memory_run import MemoryRun
from loopwright.fit.options import (
    ExportOptions,
    FitOptions,
    LearningRateOptions,
    ProfileOptions,
    RehearseOptions,
    ReplayOptions,
    Verbose,
    after_step,
    takes,
)
from loopwright.fit.parts import Parts
from loopwright.fit.request import fit_request, require_watchable
from loopwright.fit.restore import Checkpoint, HeldState, Which, require_run
from loopwright.fit.resume import SavedRun
from loopwright.fit.session import OVER
from loopwright.plans.plan import Plan
from loopwright.plans.record import PlanHistory
from loopwright.plans.selector import PlanSelector, asked_for
from loopwright.run_changes import OnChange, require_on_change
from loopwright.step_warnings import require_known
from loopwright.task.context import GradientWatch
from loopwright.task.foreign_names import explains_arguments
from loopwright.task.keras_model import as_task, plan_for
from loopwright.task.task import Task, class_name, require_step

if TYPE_CHECKING:
    from loopwright.data.source import Data
    from loopwright.export.exporter import Exported
    from loopwright.insight.learning_rates import LearningRates
    from loopwright.insight.profile import Profile
    from loopwright.insight.rehearsal_report import Rehearsal
    from loopwright.insight.replayed import Replayed

_MOST_SHOWN = 12


@final
class Trainer:
    """Train, evaluate and predict with a task, or with a compiled Keras model.

    >>> from loopwright import Supervised
    >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    >>> trainer = Trainer(Supervised(model, "mse", "sgd"))
    >>> history = trainer.fit(tf.ones((64, 1)), tf.ones((64, 1)), epochs=2, verbose=0)
    >>> sorted(history.history)
    ['loss']

    `task` may also be a function that makes the task: it is called inside `strategy.scope()`,
    which several replicas need. `strategy="auto"` uses what is there: the workers named by
    `TF_CONFIG` or SLURM, several GPUs, or one device. `seed` decides everything that
    Loopwright draws. `sinks` are functions called with every event. `plan` is how steps are run:
    `"auto"` measures while it trains; a `Plan`, a short word, or what was recorded
    (`trainer.plan_history`, or a file of it).

    With a `run_dir` the same program resumes where it was stopped, and ends with the same bits:
    `keep` says which checkpoints stay (default: `[KeepLatest(3), KeepBest("val_loss")]`; a metric
    whose name does not tell its direction needs `mode`: `KeepBest("val_gain", mode="max")`),
    `exact="require"` refuses to resume in another environment, `exact="best_effort"` accepts
    training that cannot be resumed exactly, like a shuffle without a seed,
    `fresh=True` starts over and moves the old run aside. A program that was edited since the run
    began is refused: `on_change=["learning_rate"]` accepts edits by name, `on_change="start_over"`
    moves the old run aside if something differs. `on_nan` says what is done about a loss that is
    not finite. `watch="gradients"` reports the norm of each, and writes histograms into the
    TensorBoard files of a run directory. `init_from` are weights to begin with: a run, a
    `.weights.h5` file, or a `tf.train.Checkpoint`. `silence` are the ids of step warnings that are
    not given: `silence=["broadcast"]`.
    """

    @explains_arguments
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
        plans = PlanSelector(asked_for(plan_for(self._task, plan)))
        engine = Engine(
            self._task, self._team, plans, on_nan=on_nan, watch=watched, silenced=silenced
        )
        self._sinks = list(sinks)
        self._epochs_done = self._legs = 0
        self._memory = MemoryRun()
        self._data: Data | None = None
        self._held_out: Mapping[str, Data] = {}
        self._open: weakref.ref[EventStream] | None = None
        self._measured_dir = None
        if launch.is_measured() and run_dir is not None:
            self._measured_dir, run_dir = os.path.abspath(run_dir), None
        self._run = None if run_dir is None else Run(run_dir, keep, fresh=fresh)
        self._shown_rule = next(iter(best_rules(keep)), KeepBest())
        self._histories: list[History] = []
        source = None if init_from is None else os.fspath(init_from)
        state = HeldState(engine, self._run, init_from=source, fresh=fresh)
        self._saved = None if self._run is None else SavedRun(self._run, exact, on_change)
        self._exact: Exact = exact
        self._on_change: OnChange = on_change
        self._fresh = fresh
        self._parts = Parts(engine, state, seed)
        self.history = History()

    def __repr__(self) -> str:
        steps = int(self._task.step_counter.read_value())
        known = [class_name(self._task), f"{steps:,} {'step' if steps == 1 else 'steps'}"]
        known += [] if self._run is None else [f"run_dir={str(self._run.directory)!r}"]
        last = [(name, values[-1]) for name, values in self.history.history.items() if values]
        known += [f"{name} {value:.4g}" for name, value in last[:_MOST_SHOWN]]
        return f"Trainer({', '.join(known)})"

    @property
    def task(self) -> Any:
        """The task that is trained; for a Keras model, the task around it."""
        return self._task

    @property
    def is_chief(self) -> bool:
        """Whether this process writes files and prints: only the first of several workers does."""
        return self._team.is_chief

    @property
    def plan(self) -> Plan:
        """The plan in use, or the one that training begins with."""
        return self._parts.engine.plans.plan

    @property
    def plan_history(self) -> PlanHistory:
        """Which plan ran which steps; to reproduce a run, pass it as `Trainer(..., plan=...)`."""
        return self._parts.engine.plans.log.history

    def follow(self, plans: PlanHistory) -> None:
        """Run the next steps by these plans, as if they had been passed to the trainer."""
        self._parts.engine.plans.follow(plans)

    @shortens_tracebacks
    @takes(FitOptions)
    def fit(self, options: FitOptions) -> History:
        """Train, and return the history. Called again, it continues training.

        Data: arrays (`fit(x, y)`), a batched `tf.data.Dataset`, a `PyDataset`, a generator, or
        None for a step without a batch. `until="6 hours"` or `"100000 steps"` instead of
        `epochs`, counted from this call. `validation_data` may be a dict of named sets. In a run
        directory `save_every` is how often checkpoints are saved, besides the end and each
        validation that is the best so far (`Trainer(keep=[KeepBest(...)])`).
        """
        for _ in self._events(options, watches=True):
            pass
        return self.history

    @shortens_tracebacks
    @takes(FitOptions, verbose=0)
    def events(self, options: FitOptions) -> EventStream:
        """Train like `fit`, yielding one event at a time: to stop, stop iterating.

        However the loop is left, a run directory is saved, and the next call of `fit` continues
        there. To finish early, leave the loop inside `with trainer.events(...) as events:`.
        """
        return self._events(options)

    @shortens_tracebacks
    @takes(RehearseOptions, verbose=0)
    def rehearse(self, options: RehearseOptions) -> "Rehearsal":
        """Try everything that `fit` with these arguments does, once, and return what it will take.

        Steps on the first and the last batch, validation, a checkpoint restored and compared,
        images; then speed, memory, disk, warnings: `print(trainer.rehearse(x, y))`. It raises what
        would have failed, and leaves no trace: the run afterwards has the same bits as without.
        `rehearse_callbacks=True` calls `callbacks` too, which may have effects outside;
        `overfit="1 batch"` trains a copy on one batch, and says why if its loss does not fall.
        `verbose=1` prints each part when it is done.
        """
        from loopwright.insight import rehearsal

        planned = rehearsal.Planned(
            self._run, self._legs, self._epochs_done, self._exact, self._on_change, self._fresh
        )
        return rehearsal.rehearse(self._parts, options, planned)

    def _events(self, options: FitOptions, *, watches: bool = False) -> EventStream:
        abandoned = None if self._open is None else self._open()
        if abandoned is not None:
            abandoned.close()  # it would keep the run's lock
        history = History()
        sinks = [self._console(options.verbose), *map(tolerated, self._sinks)]
        request = fit_request(
            options,
            self._task,
            self._team,
            saves=self._run is not None,
            sinks=[self._note_end, *(sinks if self.is_chief else ())],
            is_observed=self.is_chief and bool(self._sinks),
            history=history,
        )
        self._data, self._held_out = request.data, request.sets
        if launch.is_measured():
            measured_child.serve(self._parts, request, self._measured_dir or "")

        def begin() -> Generator[Event]:
            self.history = history
            self._histories.append(history)
            if self._saved is None:
                return self._memory.begin(self._parts, request, self._epochs_done, watches=watches)
            if self._fresh:
                self._fresh = False
                self._parts.state.starts_over()
            return self._saved.begin(self._parts, request, self._legs, self._epochs_done)

        stream = EventStream(begin)
        # Held weakly: a loop that is left must be able to close its events.
        self._open = weakref.ref(stream)
        return stream

    @shortens_tracebacks
    @takes(after_step(ReplayOptions))
    def replay(self, given: tuple[int | None, ReplayOptions]) -> "Replayed":
        """Replay a step of the run, by default the one that ended it, and return what is in it.

        Takes the step, then the arguments of `fit`. It trains from the checkpoint before the step,
        by the recorded plans, and compares with the record; the run directory, the task and its
        seeds stay as they are. `debugger=True` stops in pdb at the first line of the step. Of the
        callbacks only those of Keras that change the learning rate or the weights are called.
        """
        from loopwright.insight.replay import replay

        step, options = given
        return replay(self._parts, options, require_run(self._saved), step)

    @shortens_tracebacks
    def restore(self, which: Which, *, metric: str | None = None) -> int:
        """Restore the state of a checkpoint ("best", "last" or a step) and return its step.

        "best" is the best validation by the first `KeepBest` of `keep`, or by the one for
        `metric="val_auc"`. A trainer without `keep` takes the rules that the run was trained with.

        To score, predict or export; or, between two calls of `fit`, to train on from there. In a
        process that has not trained, `task.step` is then the step of the checkpoint. After `fit`
        it stays: what is trained from an earlier state is added to the run.
        """
        step = self._parts.state.restore(which, metric)
        run_spec.leave(self._task)
        return step

    @shortens_tracebacks
    @explains_arguments
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
        """Return the scores on a data set: `{"loss": ..., "accuracy": ...}`.

        `checkpoint` is "best", "last" or a step of the run: its state is used for this call, then
        the task's own is put back. "current" are the weights that the task holds. It may be left
        out after `fit` or `restore`, and where there are no checkpoints. `verbose=1` prints the
        scores.
        """
        require_step(self._task, "test_step")
        with self._parts.state.of(checkpoint, "evaluate"):
            found = self._parts.engine.evaluate(
                x, y, sample_weight, batch_size=batch_size, steps=steps
            )
        from loopwright.sinks import defaults

        defaults.show_scores(verbose if self.is_chief else 0, found)
        return found

    @shortens_tracebacks
    @explains_arguments
    def predict(
        self,
        x: Any,
        *,
        batch_size: int | None = None,
        steps: int | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> Any:
        """Return the predictions for a data set as NumPy arrays; `checkpoint` as for `evaluate`."""
        require_step(self._task, "predict_step")
        with self._parts.state.of(checkpoint, "predict"):
            return self._parts.engine.predict(x, batch_size=batch_size, steps=steps)

    @shortens_tracebacks
    @takes(ExportOptions)
    def export(self, options: ExportOptions) -> "Exported":
        """Write the task's models for serving, load them in a new process, and compare outputs.

        A directory gets versions (`export/1`, `export/2`); a path that ends in `.keras`, `.tflite`
        or `.onnx` is one file; by default it is in `export` in the run directory. `quantize` is for
        LiteRT: "dynamic", "float16" or "int8". `averaged` takes the averages of optimizers with
        `use_ema`, `checkpoint` is as for `evaluate`. `Task.exports` says which models, and under
        which names. Examples are those of the last `fit`, or of `data`.
        """
        from loopwright.export.request import run_export

        return run_export(self._parts, self._run, options, self._data, self._held_out.values())

    @shortens_tracebacks
    @takes(LearningRateOptions)
    def find_learning_rate(self, options: LearningRateOptions) -> "LearningRates":
        """Raise the learning rate at each step, and return the losses and a suggestion.

        It trains in the compiled loop and stops when the loss diverges; then the task is as
        before, bit for bit. A task with several optimizers: all rates rise together, or only that
        of `optimizer`, a name like `"generator_optimizer"`. A `LearningRateSchedule` is replaced
        for the sweep. `monitor` is the number that is watched.
        """
        from loopwright.insight.learning_rates import find_learning_rate

        return find_learning_rate(self._parts, options)

    @shortens_tracebacks
    @takes(ProfileOptions)
    def profile(self, options: ProfileOptions) -> "Profile":
        """Return which operations and which stage of the data take the time of a step.

        Runs some steps under TensorFlow's profiler; then the task is as before, bit for bit. In
        `directory` the profile is kept for TensorBoard.
        """
        from loopwright.insight.profile import profile

        return profile(self._parts, options)

    def _console(self, verbose: Verbose) -> Sink:
        from loopwright.sinks import defaults

        return defaults.console(verbose, self._shown_rule, self._run, self._histories)

    def _note_end(self, event: Event) -> None:
        """Count the epochs, and the call of `fit` once it is over."""
        if not isinstance(event, Finished):
            return
        epochs = len(self.history.epoch)
        if self._run is None:
            self._epochs_done = self._memory.first_epoch + epochs
        elif event.reason in OVER:
            self._epochs_done, self._legs = self._epochs_done + epochs, self._legs + 1
