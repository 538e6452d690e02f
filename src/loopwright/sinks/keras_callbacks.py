"""The bridge to Keras callbacks: a sink that calls their hooks when Keras `fit` would."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, final

import keras

from loopwright.compat import keras_internals
from loopwright.engine.inference import Inference
from loopwright.engine.stepper import StepNumbers
from loopwright.errors import ConfigurationError, message
from loopwright.events import (
    EpochEnded,
    EpochStarted,
    Event,
    Finished,
    Metrics,
    Noted,
    Started,
    Trained,
    epoch_logs,
)
from loopwright.loop.clock import Stopwatch
from loopwright.sinks.batch_hooks import BatchCalls
from loopwright.sinks.callback_model import (
    callback_model,
    lend,
    optimizer_for,
    optimizer_scalars,
)
from loopwright.sinks.callback_state import (
    as_begun,
    callback_states,
    callback_tensors,
    files_continued,
    objection,
    restore_callbacks,
)
from loopwright.step_warnings import warn_at_call
from loopwright.task.task import Task

_LEFT_OUT = "BackupAndRestore is left out: the run directory resumes this run, to the same bits."


@final
class TimedCallbacks:
    """The callbacks of a `keras.callbacks.CallbackList`, timed while the list iterates over them.

    >>> watch = Stopwatch(clock=iter([0.0, 2.0]).__next__)
    >>> callbacks = TimedCallbacks(["a callback"], watch)
    >>> callbacks.hook = "on_epoch_end"
    >>> [callback for callback in callbacks], watch.largest("callbacks")
    (['a callback'], 'str.on_epoch_end')
    """

    def __init__(self, callbacks: Iterable[Any], watch: Stopwatch) -> None:
        self._callbacks, self._watch = list(callbacks), watch
        self.hook = ""

    def __iter__(self) -> Iterator[Any]:
        """Yield each callback; the time until the next one is requested is the time of its hook."""
        for callback in self._callbacks:
            with self._watch.timing("callbacks", f"{type(callback).__name__}.{self.hook}"):
                yield callback


@final
class CallbackBridge:
    """Runs any `keras.callbacks.Callback`.

    How often batch hooks are called depends on the callback: see `batch_hooks`. `inference` is what
    `model.evaluate` and `model.predict` do while the task is trained.
    """

    def __init__(
        self,
        callbacks: keras.callbacks.Callback | Sequence[Any] | None,
        task: Task,
        inference: Inference,
        watch: Stopwatch,
        *,
        is_saved: bool = False,
    ) -> None:
        """With `is_saved`, a run directory resumes the training, and no callback does."""
        self._callbacks = [] if callbacks is None else keras.tree.flatten(callbacks)
        for callback in self._callbacks:
            if not isinstance(callback, keras.callbacks.Callback):
                raise ConfigurationError(
                    message(
                        "callbacks takes Keras callbacks.",
                        expected="keras.callbacks.Callback objects",
                        received=f"{callback!r} ({type(callback).__name__})",
                        do="create the object first, or pass a function of events as a sink: "
                        "Trainer(..., sinks=[...])",
                    )
                )
        self._task, self._inference = task, inference
        self._model: Any = callback_model(task, inference) if self._callbacks else None
        self._watch = watch
        left_out = keras.callbacks.BackupAndRestore if is_saved else ()
        self._called = [c for c in self._callbacks if not isinstance(c, left_out)]
        self._batches = BatchCalls(self._called, watch)
        self._calls: Any = None
        self._timed = TimedCallbacks([], watch)
        self._logs: dict[str, Any] = {}
        self._written = _Written()
        self._recorded: Sequence[StepNumbers] = ()
        self._variables: Sequence[Any] = ()
        if self._batches.reads_optimizer:
            self._variables = optimizer_scalars(optimizer_for(self._model, task))
        self._undo: Callable[[], None] = lambda: None
        self._restore: Callable[[], None] = lambda: None
        self._states: Sequence[Mapping[str, Any]] = ()
        self._begun = as_begun(self._callbacks)

    def state(self) -> list[dict[str, Any]]:
        """Return the state of the callbacks as JSON values."""
        return callback_states(self._callbacks, self._begun)

    def objection(self, states: Sequence[Mapping[str, Any]]) -> str | None:
        """Return why these states cannot be restored; None if they can."""
        return objection(self._callbacks, states)

    def tensors(self) -> dict[str, Any]:
        """Return the arrays that callbacks hold, by name."""
        return callback_tensors(self._callbacks)

    def restore(self, states: Sequence[Mapping[str, Any]], tensors: Mapping[str, Any]) -> None:
        """Restore the callbacks after their `on_train_begin`, which resets their state."""
        self._batches.rolled_back()
        self._states = states
        self._restore = lambda: restore_callbacks(self._callbacks, states, tensors)
        if self._calls is not None:
            self._restore()

    def recall(self) -> None:
        """Restore the callbacks now: a leg that is already complete does not begin again."""
        self._restore()

    @property
    def looks_for_nan(self) -> bool:
        """Return whether a callback handles a loss of NaN."""
        return any(isinstance(c, keras.callbacks.TerminateOnNaN) for c in self._callbacks)

    @property
    def recorded(self) -> Sequence[Any] | None:
        """Return the variables to record in every step with its numbers; None: record nothing."""
        return self._variables if self._batches.needs_values else None

    @property
    def has_end(self) -> bool:
        """Return whether a callback does something in `on_train_end`, perhaps to the weights."""
        empty = keras.callbacks.Callback.on_train_end
        return any(getattr(c.on_train_end, "__func__", None) is not empty for c in self._called)

    def timing(self) -> Mapping[str, Any]:
        """Return when callbacks need control in Python, which must be the same on all workers."""
        needs = {
            "steps until a callback has to be called": self.steps_left(),
            "a callback reads the values of every step": self.recorded is not None,
            "a callback is called for every validation batch": self.on_test_batch is not None,
        }
        return {need: value for need, value in needs.items() if value}

    def steps_left(self) -> int | None:
        """Return the most steps to run until callbacks have to be called; None: any number."""
        return self._batches.steps_left()

    def notes(self, step: int) -> list[Noted]:
        """Return notes about callbacks: what they cost, and which are not called."""
        left_out = [_LEFT_OUT] if len(self._called) < len(self._callbacks) else []
        return [Noted(step, text) for text in (*self._batches.notes, *left_out)]

    @property
    def called_each_step(self) -> str:
        """Return the class of a callback that needs control in Python after every step."""
        return self._batches.called_each_step

    def stop_requested(self) -> bool:
        """Return whether a callback set `model.stop_training`."""
        return bool(self._model is not None and self._model.stop_training)

    def added(self) -> Mapping[str, Any]:
        """Return what callbacks added to the logs of the last epoch, such as `learning_rate`."""
        return {k: v for k, v in self._written.logs.items() if k not in self._logs}

    def before_steps(self, step_in_epoch: int) -> None:
        """Call the hooks that come before a batch."""
        if self._model is not None:
            self._batches.begin(step_in_epoch)

    def after_steps(self, recorded: Sequence[StepNumbers]) -> None:
        """Take the recorded numbers of the steps that ran; `Trained` calls the hooks with them."""
        self._recorded = recorded

    @property
    def on_test_batch(self) -> Callable[[int, Metrics], None] | None:
        """Return what to call after every validation batch; None: no callback needs it."""
        return self._batches.test_batch if self._batches.needs_test_batches else None

    def before_validation(self) -> None:
        """Call the hooks before a validation; some callbacks swap weights there."""
        if self._model is not None:
            self._call("on_test_begin")

    def after_validation(self, scores: Metrics | None) -> None:
        """Call the hooks after a validation."""
        if self._model is not None:
            self._call("on_test_end", dict(scores or {}))

    def __call__(self, event: Event) -> None:
        """Call the hooks that belong to the event."""
        if self._model is None:
            return
        match event:
            case Started():
                self._start(event)
            case EpochStarted():
                self._call("on_epoch_begin", event.epoch)
            case Trained():
                self._logs = dict(event.metrics)
                batch = event.step_in_epoch - 1
                self._batches.end(batch, self._logs, self._recorded, self._variables)
            case EpochEnded():
                self._logs = epoch_logs(event)
                self._call("on_epoch_end", event.epoch, self._logs)
            case Finished():
                try:
                    # As in Keras, on_train_end is not called after a failure or Ctrl-C.
                    has_end = event.saved if event.reason == "interrupted" else True
                    is_end = has_end and event.reason != "failed"
                    if is_end and self._calls is not None:
                        # A leg that was only to be ended has trained in another process.
                        last = {name: values[-1] for name, values in event.history.items()}
                        self._call("on_train_end", self._logs or last)
                finally:
                    self._undo()
            case _:
                pass

    def _call(self, hook: str, *arguments: Any) -> None:
        self._timed.hook = hook
        getattr(self._calls, hook)(*arguments)

    def _start(self, event: Started) -> None:
        self._undo = lend(self._model, self._task, self._inference)
        for callback in self._callbacks:
            _set_direction(callback, self._task)
        self._model.stop_training = False
        self._calls = keras.callbacks.CallbackList(
            [*self._called, self._written],
            add_history=False,
            model=self._model,
            epochs=event.epochs,
            steps=event.steps_per_epoch,
            verbose=0,
        )
        self._timed = TimedCallbacks(self._calls.callbacks, self._watch)
        self._calls.callbacks = self._timed
        with files_continued(self._callbacks, self._states):
            self._call("on_train_begin")
        self._begun = as_begun(self._callbacks)
        self._restore()
        epochs_before = keras_internals.take_initial_epoch(self._model)
        if epochs_before:
            warn_at_call(_counts_from_zero(epochs_before))


@final
class _Written(keras.callbacks.Callback):
    """The last callback: reads what earlier callbacks wrote into the logs of an epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.logs: dict[str, Any] = {}

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Copy the logs."""
        self.logs = dict(logs or {})


def _counts_from_zero(epochs: int) -> str:
    return message(
        f"A callback restored a model that was already trained for {epochs} epochs.",
        expected="epochs that count from 0 in every call of fit",
        received=f"a callback that resumes at epoch {epochs}",
        do=f"lower epochs by {epochs}, or leave BackupAndRestore out",
    )


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
