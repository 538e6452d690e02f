"""Keras callbacks in a training: their hooks are called when Keras `fit` would call them.

Calling Python after every step costs most of the speed of a compiled loop. A callback that only
counts and logs is called later, once per step, with the values of that step; a callback that may
change the training is called at once: see `callback_needs`.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, final

import keras

from loopwright.compat import keras_internals
from loopwright.engine.engine import Engine
from loopwright.engine.stepper import StepNumbers
from loopwright.errors import ConfigurationError, message
from loopwright.events import (
    EpochEnded,
    EpochStarted,
    Event,
    Finished,
    Metrics,
    Started,
    Trained,
    epoch_logs,
)
from loopwright.fit import callback_state
from loopwright.fit.callback_model import (
    callback_model,
    lend,
    optimizer_for,
    optimizer_scalars,
)
from loopwright.fit.callback_needs import CallbackNeeds, demand
from loopwright.loop.clock import Stopwatch
from loopwright.step_warnings import warn_at_call
from loopwright.task.state import preserved
from loopwright.task.task import Task

_LEFT_OUT = "BackupAndRestore is left out: the run directory resumes this run, to the same bits."


@final
class Callbacks:
    """Runs any `keras.callbacks.Callback`.

    `engine` is what `model.evaluate` and `model.predict` do while the task is trained.
    """

    def __init__(
        self,
        callbacks: keras.callbacks.Callback | Sequence[Any] | None,
        task: Task,
        engine: Engine,
        watch: Stopwatch,
        *,
        is_saved: bool = False,
    ) -> None:
        """With `is_saved`, a run directory resumes the training, and no callback does."""
        self._callbacks = [] if callbacks is None else keras.tree.flatten(callbacks)
        for callback in self._callbacks:
            if not isinstance(callback, keras.callbacks.Callback):
                raise ConfigurationError(
                    "callbacks takes Keras callbacks.",
                    expected="keras.callbacks.Callback objects",
                    received=f"{callback!r} ({type(callback).__name__})",
                    do="create the object first, or pass a function of events as a sink: "
                    "Trainer(..., sinks=[...])",
                )
        self._task, self._engine, self._watch = task, engine, watch
        self._model: Any = callback_model(task, engine) if self._callbacks else None
        left_out = keras.callbacks.BackupAndRestore if is_saved else ()
        self._called = [c for c in self._callbacks if not isinstance(c, left_out)]
        self._demands = [(callback, demand(callback)) for callback in self._called]
        self._counters = [(callback, wants) for callback, wants in self._demands if wants.each_step]
        self._reads_steps = any(wants.takes_values is not None for _, wants in self._counters)
        self._recorded: Sequence[StepNumbers] = ()
        self._variables: Sequence[Any] = ()
        """Variables whose values in every step callbacks read."""
        if any(wants.reads_optimizer for _, wants in self._counters):
            self._variables = optimizer_scalars(optimizer_for(self._model, task))
        self._has_begun = False
        self._first_batch = 0
        self._awaits_batch = False
        """Whether the hooks before a batch were called, and those after it were not."""
        self._logs: dict[str, Any] = {}
        self._added: Mapping[str, Any] = {}
        self._undo: Callable[[], None] = lambda: None
        self._restore: Callable[[], None] = lambda: None
        self._states: Sequence[Mapping[str, Any]] = ()
        self._begun = callback_state.as_begun(self._callbacks)
        self.needs = self._needs()

    def state(self) -> list[dict[str, Any]]:
        """Return the state of the callbacks as JSON values."""
        return callback_state.callback_states(self._callbacks, self._begun)

    def check(self, states: Sequence[Mapping[str, Any]]) -> str | None:
        """Return why these states cannot be restored; None if they can."""
        return callback_state.objection(self._callbacks, states)

    def tensors(self) -> dict[str, Any]:
        """Return the arrays that callbacks hold, by name."""
        return callback_state.callback_tensors(self._callbacks)

    def restore(self, states: Sequence[Mapping[str, Any]], tensors: Mapping[str, Any]) -> None:
        """Restore the callbacks after their `on_train_begin`, which resets their state."""
        self._awaits_batch, self._states = False, states
        self._restore = lambda: callback_state.restore_callbacks(self._callbacks, states, tensors)
        if self._has_begun:
            self._restore()

    def restore_now(self) -> None:
        """Restore the callbacks now: a leg that is already complete does not begin again."""
        self._restore()

    def most_steps(self) -> int | None:
        """Return the most steps to run until callbacks have to be called; None: any number."""
        wished = [wants.steps_left() for _, wants in self._demands]
        return min((steps for steps in wished if steps is not None), default=None)

    @property
    def called_each_step(self) -> str:
        """The class of a callback that needs control in Python after every step; or empty."""
        asking = [type(c).__name__ for c, wants in self._demands if wants.steps_left() == 1]
        return next(iter(asking), "")

    def stop_requested(self) -> bool:
        """Return whether a callback set `model.stop_training`."""
        return bool(self._model is not None and self._model.stop_training)

    def added(self) -> Mapping[str, Any]:
        """Return what callbacks added to the logs of the last epoch, such as `learning_rate`."""
        return self._added

    def before_steps(self, step_in_epoch: int) -> None:
        """Call the hooks that come before a batch."""
        counters = [callback for callback, _ in self._counters]
        for callback in self._called:
            # If the data ended before this batch, a counter has already counted it.
            if not (self._awaits_batch and any(callback is counter for counter in counters)):
                self._call(callback, "on_train_batch_begin", step_in_epoch, {})
        self._first_batch, self._awaits_batch = step_in_epoch, True

    def after_steps(self, recorded: Sequence[StepNumbers]) -> None:
        """Take the recorded numbers of the steps that ran; `Trained` calls the hooks with them."""
        self._recorded = recorded

    def on_test_batch(self, batch: int, logs: Metrics) -> None:
        """Call the hooks of a validation batch, if they are needed."""
        self._call_all("on_test_batch_begin", batch, {})
        self._call_all("on_test_batch_end", batch, dict(logs))

    def before_validation(self) -> None:
        """Call the hooks before a validation; some callbacks swap weights there."""
        self._call_all("on_test_begin", {})

    def after_validation(self, scores: Metrics | None) -> None:
        """Call the hooks after a validation."""
        self._call_all("on_test_end", dict(scores or {}))

    def on(self, event: Event) -> None:
        """Call the hooks that belong to the event."""
        if self._model is None:
            return
        match event:
            case Started():
                self._start(event)
            case EpochStarted():
                self._call_all("on_epoch_begin", event.epoch, {})
            case Trained():
                self._logs = dict(event.metrics)
                self._end_batches(event.step_in_epoch - 1)
            case EpochEnded():
                self._logs = epoch_logs(event)
                written = dict(self._logs)
                self._call_all("on_epoch_end", event.epoch, written)
                self._added = {k: v for k, v in written.items() if k not in self._logs}
            case Finished():
                try:
                    # As in Keras, on_train_end is not called after a failure or Ctrl-C.
                    has_end = event.saved if event.reason == "interrupted" else True
                    if has_end and event.reason != "failed" and self._has_begun:
                        # A leg that was only to be ended has trained in another process.
                        last = {name: values[-1] for name, values in event.history.items()}
                        self._call_all("on_train_end", dict(self._logs or last))
                finally:
                    self._undo()
            case _:
                pass

    def _needs(self) -> CallbackNeeds:
        demands, empty = self._demands, keras.callbacks.Callback.on_train_end
        ends = [getattr(c.on_train_end, "__func__", None) is not empty for c in self._called]
        tests = any(wants.each_test_batch for _, wants in demands)
        timing = {
            "steps until a callback has to be called": self.most_steps(),
            "a callback reads the values of every step": self._reads_steps,
            "a callback is called for every validation batch": tests,
        }
        left_out = [_LEFT_OUT] if len(self._called) < len(self._callbacks) else []
        return CallbackNeeds(
            recorded=self._variables if self._reads_steps else None,
            test_batches=tests,
            looks_for_nan=any(
                isinstance(c, keras.callbacks.TerminateOnNaN) for c in self._callbacks
            ),
            has_end=any(ends),
            timing={need: value for need, value in timing.items() if value},
            notes=[*(wants.note for _, wants in demands if wants.note), *left_out],
        )

    def _start(self, event: Started) -> None:
        self._undo = lend(self._model, self._task, self._engine)
        for callback in self._callbacks:
            _set_direction(callback, self._task)
        self._model.stop_training = False
        for callback in self._called:
            callback.set_model(self._model)
            callback.set_params(
                {"epochs": event.epochs, "steps": event.steps_per_epoch, "verbose": 0}
            )
        self._has_begun = True
        with callback_state.files_continued(self._callbacks, self._states):
            self._call_all("on_train_begin", {})
        self._begun = callback_state.as_begun(self._callbacks)
        self._restore()
        epochs_before = keras_internals.take_initial_epoch(self._model)
        if epochs_before:
            warn_at_call(
                message(
                    f"A callback restored a model that was trained for {epochs_before} epochs.",
                    expected="epochs that count from 0 in every call of fit",
                    received=f"a callback that resumes at epoch {epochs_before}",
                    do=f"lower epochs by {epochs_before}, or leave BackupAndRestore out",
                )
            )

    def _end_batches(self, batch: int) -> None:
        """Call the hooks that come after the batches that were begun, up to `batch`."""
        with _restored(self._variables) as current:
            for number in range(self._first_batch, batch) if self._counters else ():
                logs = None
                if self._reads_steps:
                    numbers = self._recorded[number - self._first_batch]
                    logs = numbers.logs
                    if numbers.variables:
                        _assign(self._variables, numbers.variables, current)
                self._count(number, logs, is_next_last=number + 1 == batch)
        shared = dict(self._logs)
        for callback in self._called:
            if not _has_ended(callback):
                self._call(callback, "on_train_batch_end", batch, shared)
        self._awaits_batch = False

    def _count(self, batch: int, logs: Mapping[str, Any] | None, *, is_next_last: bool) -> None:
        """End a batch and begin the next one for the callbacks that count steps."""
        for callback, wants in self._counters:
            takes = wants.takes_values is not None and wants.takes_values()
            if (takes or wants.counts_batch is None) and not _has_ended(callback):
                values = dict(logs) if takes and logs else None
                self._call(callback, "on_train_batch_end", batch, values)
        for callback, wants in self._counters:
            if is_next_last or wants.counts_batch is None or not wants.counts_batch():
                self._call(callback, "on_train_batch_begin", batch + 1, {})

    def _call_all(self, hook: str, *arguments: Any) -> None:
        """Call a hook of all callbacks, which share its logs."""
        for callback in self._called:
            self._call(callback, hook, *arguments)

    def _call(self, callback: Any, hook: str, *arguments: Any) -> None:
        with self._watch.timing("callbacks", f"{type(callback).__name__}.{hook}"):
            getattr(callback, hook)(*arguments)


def _has_ended(callback: Any) -> bool:
    """Return whether it has stopped the training already, and would do so for every step."""
    is_nan_check = isinstance(callback, keras.callbacks.TerminateOnNaN)
    return is_nan_check and bool(callback.model.stop_training)


@contextlib.contextmanager
def _restored(variables: Sequence[Any]) -> Iterator[list[Any]]:
    """Yield the values of the variables, and restore them at the end."""
    with preserved(variables):
        yield [variable.numpy() for variable in variables]


def _assign(variables: Sequence[Any], values: Sequence[Any], current: list[Any]) -> None:
    for place, (variable, value) in enumerate(zip(variables, values, strict=True)):
        if current[place] != value:
            variable.assign(value.astype(variable.dtype.as_numpy_dtype))
            current[place] = value


def _set_direction(callback: Any, task: Task) -> None:
    """Set `mode` of a callback with `mode="auto"` by the metric that it monitors.

    Keras `fit` finds the metric in the compiled model; here the metrics are the task's.
    """
    if getattr(callback, "mode", None) != "auto":
        return
    metrics = [own for m in task.metrics for own in getattr(m, "metrics", [m])]
    watched = str(getattr(callback, "monitor", "")).removeprefix("val_")
    for metric in metrics:
        mode = keras_internals.better(metric)
        if metric.name == watched and mode is not None:
            callback.mode = mode
