"""The one bridge to Keras callbacks: a sink that calls them when Keras' own `fit` would."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import keras

from loopwright import state
from loopwright.compiled import CompiledModel
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
from loopwright.task import Task


@final
class CallbackBridge:
    """Runs any `keras.callbacks.Callback`.

    Batch hooks run at stops, as in Keras with `steps_per_execution`; a callback with an attribute
    `needs_every_step = True` makes every step a stop.
    """

    def __init__(self, callbacks: Sequence[keras.callbacks.Callback], task: Task) -> None:
        for callback in callbacks:
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
        self._callbacks = list(callbacks)
        self._task = task
        self._model = callback_model(task) if callbacks else None
        self._calls: Any = None
        self._logs: dict[str, Any] = {}
        self._added: dict[str, Any] = {}
        self._step_in_epoch = 0
        self._undo: Callable[[], None] = lambda: None

    @property
    def at_most_steps(self) -> int | None:
        """How many steps may pass between two stops, if a callback cares."""
        eager = any(getattr(c, "needs_every_step", False) for c in self._callbacks)
        return 1 if eager else None

    def stop_requested(self) -> bool:
        """Whether a callback set `model.stop_training`."""
        return bool(self._model is not None and self._model.stop_training)

    def added(self) -> Mapping[str, Any]:
        """What callbacks wrote into the logs of the last epoch, `learning_rate` for instance."""
        return self._added

    def before_steps(self, run_steps: Callable[[int], int]) -> Callable[[int], int]:
        """`run_steps` with the hooks that come before a batch."""
        if self._model is None:
            return run_steps

        def run(steps: int) -> int:
            self._calls.on_train_batch_begin(self._step_in_epoch)
            return run_steps(steps)

        return run

    def around_validation(self, validate: Callable[[], Metrics]) -> Callable[[], Metrics]:
        """`validate` with the hooks around it; some callbacks swap weights there."""
        if self._model is None:
            return validate

        def run() -> Metrics:
            self._calls.on_test_begin()
            scores = validate()
            self._calls.on_test_end(dict(scores))
            return scores

        return run

    def __call__(self, event: Event) -> None:
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
                logs = epoch_logs(event)
                known = set(logs)
                self._calls.on_epoch_end(event.epoch, logs)
                self._logs = logs
                self._added = {k: v for k, v in logs.items() if k not in known}
            case Finished():
                # As Keras: a run that failed has no end.
                if event.reason != "failed" and self._calls is not None:
                    self._calls.on_train_end(self._logs)
                self._undo()
            case _:
                pass

    def _start(self, event: Started) -> None:
        self._undo = _lend_optimizer(self._model, self._task)
        self._model.stop_training = False
        self._calls = keras.callbacks.CallbackList(
            self._callbacks,
            add_history=False,
            model=self._model,
            epochs=event.epochs,
            steps=event.steps_per_epoch,
            verbose=0,
        )
        self._calls.on_train_begin()


def callback_model(task: Task) -> Any:
    """The model that callbacks see: the one the task names or has, else all of them in one."""
    named = getattr(task, "callback_model", None) or getattr(task, "model", None)
    if isinstance(named, keras.Model):
        return named
    models = state.of_kind(keras.Layer, task)
    if len(models) == 1 and isinstance(models[0], keras.Model):
        return models[0]
    return _AllModels(models)


@final
class _AllModels(keras.Model):
    """Every model of a task in one, for callbacks that save or restore weights."""

    def __init__(self, models: list[keras.Layer]) -> None:
        super().__init__(name="all_models")
        self.models = models
        self.built = True

    def call(self, inputs: Any) -> Any:
        raise ConfigurationError(
            message(
                "A callback called the model, but this task has several.",
                expected="one model to call",
                received=f"{len(self.models)} models",
                do="name it in the task: self.callback_model = self.generator",
            )
        )


def _lend_optimizer(model: Any, task: Task) -> Callable[[], None]:
    """Gives the model the task's optimizer while it trains: callbacks look for it there."""
    if isinstance(task, CompiledModel) or getattr(model, "optimizer", None) is not None:
        return lambda: None
    optimizers = state.of_kind(keras.optimizers.Optimizer, task)
    own = getattr(task, "optimizer", None) or (optimizers[0] if len(optimizers) == 1 else None)
    if own is None:
        return lambda: None
    before = vars(model).get("optimizer")
    model.optimizer = own

    def undo() -> None:
        model.optimizer = before

    return undo
