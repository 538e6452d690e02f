"""Which callbacks have batch hooks, and how often these have to be called."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import keras

from loopwright.compat import keras_internals

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


@final
@dataclass(frozen=True)
class CallbackNeeds:
    """What all callbacks of a session need, known before its first step."""

    recorded: Sequence[Any] | None
    """The variables to record in every step with its numbers; None: record nothing."""
    test_batches: bool
    """Whether a callback is called for every batch of a validation."""
    looks_for_nan: bool
    """Whether a callback handles a loss of NaN."""
    has_end: bool
    """Whether a callback does something in `on_train_end`, perhaps to the weights."""
    timing: Mapping[str, Any]
    """When callbacks need control in Python, which must be the same on all workers."""
    notes: Sequence[str]
    """What callbacks cost, and which are not called."""


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
