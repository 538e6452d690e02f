"""The one bridge to Keras callbacks: a sink that calls them when Keras' own `fit` would."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import keras

from loopwright import adaptations
from loopwright.errors import ConfigurationError, LoopwrightWarning, message
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
from loopwright.task import Task
from loopwright.telemetry.callback_model import callback_model, lend_optimizer
from loopwright.telemetry.callback_state import (
    as_begun,
    callback_states,
    callback_tensors,
    objection,
    restore_callbacks,
)


@final
class CallbackBridge:
    """Runs any `keras.callbacks.Callback`.

    Batch hooks run at stops, as in Keras with `steps_per_execution`. A callback with an attribute
    `needs_every_step = True` makes every step a stop; one of Keras' own that was told to count
    steps, like `ModelCheckpoint(save_freq=100)`, makes every hundredth a stop.
    """

    def __init__(
        self, callbacks: keras.callbacks.Callback | Sequence[Any] | None, task: Task
    ) -> None:
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
        self._task = task
        self._model: Any = callback_model(task) if self._callbacks else None
        self._calls: Any = None
        self._logs: dict[str, Any] = {}
        self._written = _Written()
        self._step_in_epoch = 0
        self._undo: Callable[[], None] = lambda: None
        self._restore: Callable[[], None] = lambda: None
        self._begun = as_begun(self._callbacks)

    def state(self) -> list[dict[str, Any]]:
        """What the callbacks remember, as JSON knows it."""
        return callback_states(self._callbacks, self._begun)

    def objection(self, states: Sequence[Mapping[str, Any]]) -> str | None:
        """Why these states cannot be put back into the callbacks; None if they can."""
        return objection(self._callbacks, states)

    def tensors(self) -> dict[str, Any]:
        """The arrays that callbacks hold, by name."""
        return callback_tensors(self._callbacks)

    def restore(self, states: Sequence[Mapping[str, Any]], tensors: Mapping[str, Any]) -> None:
        """Puts back what callbacks remembered, once they have begun: beginning wipes it."""
        self._restore = lambda: restore_callbacks(self._callbacks, states, tensors)
        if self._calls is not None:
            self._restore()

    def recall(self) -> None:
        """Puts it back now: of a leg that was finished before, nothing begins."""
        self._restore()

    @property
    def looks_for_nan(self) -> bool:
        """Whether a callback decides by itself what a loss of NaN means."""
        return any(isinstance(c, keras.callbacks.TerminateOnNaN) for c in self._callbacks)

    @property
    def stop_every_steps(self) -> tuple[int, ...]:
        """The intervals at which callbacks want to be called, in steps."""
        return tuple({steps for c in self._callbacks if (steps := _counts_steps(c)) is not None})

    def stop_requested(self) -> bool:
        """Whether a callback set `model.stop_training`."""
        return bool(self._model is not None and self._model.stop_training)

    def added(self) -> Mapping[str, Any]:
        """What callbacks wrote into the logs of the last epoch, `learning_rate` for instance."""
        return {k: v for k, v in self._written.logs.items() if k not in self._logs}

    def before_steps(self, run_steps: Callable[[int], int]) -> Callable[[int], int]:
        """`run_steps` with the hooks that come before a batch."""
        if self._model is None:
            return run_steps

        def run(steps: int) -> int:
            self._calls.on_train_batch_begin(self._step_in_epoch)
            return run_steps(steps)

        return run

    def around_validation(
        self, validate: Callable[[], Metrics | None]
    ) -> Callable[[], Metrics | None]:
        """`validate` with the hooks around it; some callbacks swap weights there."""
        if self._model is None:
            return validate

        def run() -> Metrics | None:
            self._calls.on_test_begin()
            scores = validate()
            self._calls.on_test_end(dict(scores or {}))
            return scores

        return run

    def __call__(self, event: Event) -> None:
        """Calls the hooks that belong to the event."""
        if self._model is None:
            return
        match event:
            case Started():
                self._start(event)
            case EpochStarted():
                self._step_in_epoch = 0
                self._calls.on_epoch_begin(event.epoch)
            case Trained():
                self._step_in_epoch = event.step_in_epoch
                self._logs = dict(event.metrics)
                self._calls.on_train_batch_end(event.step_in_epoch - 1, self._logs)
            case EpochEnded():
                self._logs = epoch_logs(event)
                self._calls.on_epoch_end(event.epoch, self._logs)
            case Finished():
                try:
                    # As Keras: a run that failed has no end.
                    if event.reason != "failed" and self._calls is not None:
                        self._calls.on_train_end(self._logs)
                finally:
                    self._undo()
            case _:
                pass

    def _start(self, event: Started) -> None:
        self._undo = lend_optimizer(self._model, self._task)
        for callback in self._callbacks:
            _tell_direction(callback, self._task)
        self._model.stop_training = False
        self._calls = keras.callbacks.CallbackList(
            [*self._callbacks, self._written],
            add_history=False,
            model=self._model,
            epochs=event.epochs,
            steps=event.steps_per_epoch,
            verbose=0,
        )
        self._calls.on_train_begin()
        self._begun = as_begun(self._callbacks)
        self._restore()
        epochs_before = adaptations.take_initial_epoch(self._model)
        if epochs_before:
            warnings.warn(_counts_from_zero(epochs_before), LoopwrightWarning, stacklevel=2)


@final
class _Written(keras.callbacks.Callback):
    """The last callback: reads what those before it wrote into the logs of an epoch.

    It has a batch hook so that Keras calls hooks at once, and not from a thread.
    """

    def __init__(self) -> None:
        super().__init__()
        self.logs: dict[str, Any] = {}

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Nothing to read yet."""

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Keeps the logs as they are now."""
        self.logs = dict(logs or {})


def _counts_from_zero(epochs: int) -> str:
    return message(
        f"A callback put back a model that was trained for {epochs} epochs already.",
        expected="epochs counted from 0, as many as fit was told",
        received=f"a callback that goes on with epoch {epochs}",
        do=f"lower epochs by {epochs}, or leave BackupAndRestore out",
    )


def _counts_steps(callback: Any) -> int | None:
    """Every how many steps a callback has something to do, if it counts them."""
    frequency: Any = 1 if getattr(callback, "needs_every_step", False) else "epoch"
    match callback:
        case keras.callbacks.ModelCheckpoint() | keras.callbacks.BackupAndRestore():
            frequency = callback.save_freq
        case keras.callbacks.TensorBoard():
            frequency = callback.update_freq
        case _:
            pass
    return {"epoch": None, "batch": 1}.get(frequency, frequency)


def _tell_direction(callback: Any, task: Task) -> None:
    """Tells a callback with `mode="auto"` whether its metric is better high or low.

    Keras' own `fit` looks that up in the compiled model; here the metrics are the task's.
    """
    if getattr(callback, "mode", None) != "auto":
        return
    metrics = [own for m in task.metrics for own in getattr(m, "metrics", [m])]
    watched = str(getattr(callback, "monitor", "")).removeprefix("val_")
    for metric in metrics:
        mode = adaptations.better(metric)
        if metric.name == watched and mode is not None:
            callback.mode = mode
