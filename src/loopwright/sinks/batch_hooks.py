"""Which callbacks have batch hooks, and how often these have to be called.

Calling Python after every step costs most of the speed of a compiled loop. A callback that only
counts and logs is called later, once per step, with the values of that step. A callback that may
change the training is called at once.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import keras

from loopwright.compat import keras_internals
from loopwright.engine.stepper import StepNumbers
from loopwright.loop.clock import Stopwatch

TRAIN_HOOKS = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
TEST_HOOKS = ("on_test_batch_begin", "on_test_batch_end")


@final
@dataclass(frozen=True)
class Demand:
    """What a callback needs; by default it is called at stops."""

    each_step: bool = False
    """One call per step; calls for the steps before a stop are delivered at that stop."""
    takes_values: Callable[[], bool] | None = None
    """Whether it reads the logs of the step whose batch has begun; None: never."""
    counts_batch: Callable[[], bool] | None = None
    """Counts a batch without calling the hooks; returns False if the hooks must be called. None:
    they must always be called."""
    reads_optimizer: bool = False
    """Whether it reads `model.optimizer`, which then has the values of that step."""
    steps_left: Callable[[], int | None] = lambda: None
    """The steps until it must be called at once, because it reads or changes the model."""
    each_test_batch: bool = False
    """Whether it is called for every batch of a validation."""
    note: str = ""
    """What this costs, unless the user asked for it."""


_AT_STOPS = Demand()


def demand(callback: keras.callbacks.Callback) -> Demand:
    """Return how often the batch hooks of a callback have to be called."""
    wish = getattr(callback, "needs_every_step", None)
    test_hooks = _overridden(callback, TEST_HOOKS)
    if wish is not None:
        left = 1 if wish else None
        return Demand(steps_left=lambda: left, each_test_batch=bool(wish and test_hooks))
    hooks = _overridden(callback, TRAIN_HOOKS)
    if not (hooks or test_hooks):
        known = next(filter(None, map(_known, type(callback).__mro__)), _at_stops)
        return known(callback)
    return Demand(
        steps_left=(lambda: 1) if hooks else (lambda: None),
        each_test_batch=bool(test_hooks),
        note=_cost(callback, hooks, test_hooks),
    )


def _overridden(callback: Any, hooks: Sequence[str]) -> list[str]:
    """Return the hooks that are neither Keras' empty ones nor those of a known callback."""
    return [hook for hook in hooks if hasattr(callback, hook) and not _is_known(callback, hook)]


def _is_known(callback: Any, hook: str) -> bool:
    if hook in vars(callback):
        # tqdm defines its hook in its constructor.
        maker = str(getattr(vars(callback)[hook], "__module__", "")).partition(".")[0]
        known = [_name(owner)[0] for owner in type(callback).__mro__ if _known(owner)]
        return maker in known
    owner = next(owner for owner in type(callback).__mro__ if hook in vars(owner))
    return owner is keras.callbacks.Callback or _known(owner) is not None


def _cost(callback: Any, hooks: Sequence[str], test_hooks: Sequence[str]) -> str:
    after = [*["step"] * bool(hooks), *["validation batch"] * bool(test_hooks)]
    return (
        f"{type(callback).__name__} overrides {', '.join([*hooks, *test_hooks])}: control returns "
        f"to Python after every {' and every '.join(after)}, which slows small models down. "
        "Set needs_every_step = False on it to call it at stops only."
    )


# -- known callbacks -----------------------------------------------------------------------------


def _saver(callback: Any) -> Demand:
    """Return the demand of a callback that counts steps and saves the model at some of them."""
    if callback.save_freq == "epoch":
        return _AT_STOPS
    return Demand(each_step=True, steps_left=lambda: keras_internals.steps_to_save(callback))


def _mlflow_saver(callback: Any) -> Demand:
    def left() -> int:
        return callback.save_freq - (callback.global_step - callback.global_step_last_saving)

    # It counts steps for its file names, even if it saves by epoch.
    is_by_epoch = callback.save_freq == "epoch"
    return Demand(each_step=True, steps_left=(lambda: None) if is_by_epoch else left)


def _tensorboard(callback: Any) -> Demand:
    writes = callback.update_freq != "epoch"
    if writes and callback.write_steps_per_second:
        note = (
            f"{type(callback).__name__}(write_steps_per_second=True) times every step: control "
            "returns to Python after every step, which slows small models down. Set "
            "write_steps_per_second=False to keep the compiled loop."
        )
        return Demand(steps_left=lambda: 1, note=note)
    profiles = keras_internals.profiles(callback)
    return Demand(
        each_step=writes or profiles,
        takes_values=(lambda: keras_internals.writes_batch(callback)) if writes else None,
        counts_batch=None if profiles else lambda: keras_internals.count_batch(callback),
        steps_left=lambda: keras_internals.steps_to_profile(callback),
    )


def _wandb_logger(callback: Any) -> Demand:
    is_by_batch = bool(getattr(callback, "logging_batch_wise", True))
    takes_values = (lambda: True) if is_by_batch else None
    return Demand(each_step=True, takes_values=takes_values, reads_optimizer=is_by_batch)


def _mlflow_logger(callback: Any) -> Demand:
    if callback.log_every_n_steps is None:
        return _AT_STOPS
    return Demand(each_step=True, takes_values=lambda: True, reads_optimizer=True)


def _counter(callback: Any) -> Demand:
    return Demand(each_step=True, takes_values=lambda: True)


def _at_stops(callback: Any) -> Demand:
    """Return the demand of a callback without batch hooks, or with one that updates a bar."""
    return _AT_STOPS


_OF_KERAS: dict[type, Callable[[Any], Demand]] = {
    keras.callbacks.ModelCheckpoint: _saver,
    keras.callbacks.BackupAndRestore: _saver,
    keras.callbacks.TensorBoard: _tensorboard,
    keras.callbacks.TerminateOnNaN: _counter,
    keras.callbacks.ProgbarLogger: _at_stops,
}
if hasattr(keras.callbacks, "OrbaxCheckpoint"):
    _OF_KERAS[keras.callbacks.OrbaxCheckpoint] = _saver

_OF_OTHERS: dict[tuple[str, str], Callable[[Any], Demand]] = {
    ("wandb", "WandbMetricsLogger"): _wandb_logger,
    ("wandb", "WandbModelCheckpoint"): _saver,
    ("mlflow", "MlflowCallback"): _mlflow_logger,
    ("mlflow", "MlflowModelCheckpointCallback"): _mlflow_saver,
    ("tqdm", "TqdmCallback"): _counter,
}


def _known(owner: type) -> Callable[[Any], Demand] | None:
    return _OF_KERAS.get(owner) or _OF_OTHERS.get(_name(owner))


def _name(owner: type) -> tuple[str, str]:
    """Return the package and the name of a class; the package need not be imported."""
    return owner.__module__.partition(".")[0], owner.__name__


def is_known(callback: Any) -> bool:
    """Return whether this is a callback of Keras or of another known package."""
    return type(callback).__module__.partition(".")[0] == "keras" or bool(_known(type(callback)))


@final
class BatchCalls:
    """Calls the batch hooks of callbacks, each as often as it needs."""

    def __init__(self, callbacks: Sequence[Any], watch: Stopwatch) -> None:
        self._callbacks, self._watch = callbacks, watch
        self._demands = [demand(callback) for callback in callbacks]
        pairs = zip(callbacks, self._demands, strict=True)
        self._counters = [(callback, wants) for callback, wants in pairs if wants.each_step]
        self._first = 0
        self._awaits_batch = False

    @property
    def needs_values(self) -> bool:
        """Return whether a callback reads the values of every step."""
        return any(wants.takes_values is not None for _, wants in self._counters)

    @property
    def reads_optimizer(self) -> bool:
        """Return whether a callback reads the optimizer's values of every step."""
        return any(wants.reads_optimizer for _, wants in self._counters)

    @property
    def needs_test_batches(self) -> bool:
        """Return whether a callback is called for every validation batch."""
        return any(wants.each_test_batch for wants in self._demands)

    @property
    def called_each_step(self) -> str:
        """Return the class of a callback that needs control in Python after every step."""
        pairs = zip(self._callbacks, self._demands, strict=True)
        asking = [type(callback).__name__ for callback, wants in pairs if wants.steps_left() == 1]
        return asking[0] if asking else ""

    @property
    def notes(self) -> list[str]:
        """Return sentences about the cost of callbacks."""
        return [wants.note for wants in self._demands if wants.note]

    def steps_left(self) -> int | None:
        """Return the most steps to run until callbacks have to be called; None: any number."""
        wished = [wants.steps_left() for wants in self._demands]
        return min((steps for steps in wished if steps is not None), default=None)

    def begin(self, batch: int) -> None:
        """Call the hooks that come before a batch."""
        counters = [callback for callback, _ in self._counters]
        for callback in self._callbacks:
            # If the data ended before this batch, a counter has already counted it.
            if not (self._awaits_batch and any(callback is counter for counter in counters)):
                self._call(callback, "on_train_batch_begin", batch, {})
        self._first, self._awaits_batch = batch, True

    def end(
        self,
        batch: int,
        logs: Mapping[str, Any],
        recorded: Sequence[StepNumbers],
        variables: Sequence[Any],
    ) -> None:
        """Call the hooks that come after the batches since `begin` up to `batch`.

        `recorded` are the numbers of their steps; `variables` those whose values were recorded.
        """
        with _restored(variables) as current:
            for number in range(self._first, batch) if self._counters else ():
                numbers = recorded[number - self._first] if self.needs_values else None
                if numbers is not None and numbers.variables:
                    _assign(variables, numbers.variables, current)
                logs_then = None if numbers is None else numbers.logs
                self._deliver(number, logs_then, is_next_last=number + 1 == batch)
        shared = dict(logs)
        for callback in self._callbacks:
            if not _has_ended(callback):
                self._call(callback, "on_train_batch_end", batch, shared)
        self._awaits_batch = False

    def rolled_back(self) -> None:
        """Forget the batch that was begun: the callbacks were restored to an earlier step."""
        self._awaits_batch = False

    def test_batch(self, batch: int, logs: Mapping[str, Any]) -> None:
        """Call the hooks around a validation batch that was scored."""
        shared = dict(logs)
        for callback in self._callbacks:
            self._call(callback, "on_test_batch_begin", batch, {})
        for callback in self._callbacks:
            self._call(callback, "on_test_batch_end", batch, shared)

    def _deliver(self, batch: int, logs: Mapping[str, Any] | None, *, is_next_last: bool) -> None:
        """End a batch and begin the next one for the callbacks that count steps."""
        for callback, wants in self._counters:
            takes = wants.takes_values is not None and wants.takes_values()
            if (takes or wants.counts_batch is None) and not _has_ended(callback):
                values = dict(logs) if takes and logs else None
                self._call(callback, "on_train_batch_end", batch, values)
        for callback, wants in self._counters:
            if is_next_last or wants.counts_batch is None or not wants.counts_batch():
                self._call(callback, "on_train_batch_begin", batch + 1, {})

    def _call(self, callback: Any, hook: str, batch: int, logs: dict[str, Any] | None) -> None:
        with self._watch.timing("callbacks", _title(type(callback), hook)):
            getattr(callback, hook)(batch, logs=logs)


@functools.cache
def _title(kind: type, hook: str) -> str:
    """Return the hook by the name that the callback overrides: the new or the older one."""
    older = hook.replace("_train_batch_", "_batch_")
    is_older = getattr(kind, hook) is getattr(keras.callbacks.Callback, hook)
    return f"{kind.__name__}.{older if is_older else hook}"


def _has_ended(callback: Any) -> bool:
    """Return whether it has stopped the training already, and would do so for every step."""
    is_nan_check = isinstance(callback, keras.callbacks.TerminateOnNaN)
    return is_nan_check and bool(callback.model.stop_training)


@contextlib.contextmanager
def _restored(variables: Sequence[Any]) -> Iterator[list[Any]]:
    """Yield the values of the variables, and restore them at the end."""
    before = [variable.read_value() for variable in variables]
    current = [value.numpy() for value in before]
    try:
        yield current
    finally:
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)


def _assign(variables: Sequence[Any], values: Sequence[Any], current: list[Any]) -> None:
    for place, (variable, value) in enumerate(zip(variables, values, strict=True)):
        if current[place] != value:
            variable.assign(value.astype(variable.dtype.as_numpy_dtype))
            current[place] = value
