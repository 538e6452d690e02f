"""The state of Keras callbacks, saved in checkpoints and restored.

A callback with `get_state()` and `set_state(state)` defines its state, as JSON values. The state of
Keras' own callbacks, and of other known callbacks, is each number or string attribute that changed
since training began, so that settings come from the script; the best weights of `EarlyStopping`;
and the length of the file of `CSVLogger`.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from loopwright import disk
from loopwright.errors import ConfigurationError, message
from loopwright.fit.callback_needs import is_known

_PLAIN = (bool, int, float, str, type(None))
# Keras turns its sign when a callback first compares: restored, it would be turned twice.
_SETTINGS = {"min_delta"}
_LENGTH = "file_bytes"


def as_begun(callbacks: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the plain attributes of each callback, read when training has begun."""
    return [_plain_attributes(callback) for callback in callbacks]


def callback_states(
    callbacks: Sequence[Any], begun: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the state of each callback as JSON values."""
    pairs = zip(callbacks, begun, strict=True)
    return [{"class": type(c).__name__, "state": _state(c, before)} for c, before in pairs]


def callback_tensors(callbacks: Sequence[Any]) -> dict[str, tf.Tensor]:
    """Return the arrays that callbacks hold, by name; they are saved with the variables."""
    return {
        f"callbacks[{number}].best_weights[{place}]": tf.constant(array)
        for number, callback in enumerate(callbacks)
        for place, array in enumerate(getattr(callback, "best_weights", None) or [])
    }


def objection(callbacks: Sequence[Any], states: Sequence[Mapping[str, Any]]) -> str | None:
    """Return why these states do not match the callbacks, in any order; None if they do."""
    names, before = [type(c).__name__ for c in callbacks], [state["class"] for state in states]
    do = 'pass the same callbacks, pass on_change="start_over", or choose another run_dir'
    if sorted(names) != sorted(before):
        return message(
            "The run was saved with different callbacks.",
            expected=", ".join(before) or "no callbacks",
            received=", ".join(names) or "no callbacks",
            do=do,
        )
    for _, callback, state in _matched(callbacks, states):
        if not (isinstance(state, dict) or hasattr(callback, "set_state")):
            return message(
                f"The saved state of {type(callback).__name__} cannot be read.",
                expected="a dict of attributes, or a callback with set_state",
                received=type(state).__name__,
                do=do,
            )
    return None


def restore_callbacks(
    callbacks: Sequence[Any],
    states: Sequence[Mapping[str, Any]],
    tensors: Mapping[str, tf.Tensor],
) -> None:
    """Restore the states of callbacks; callbacks of the same class are matched in order."""
    for number, callback, state in _matched(callbacks, states):
        if hasattr(callback, "set_state"):
            callback.set_state(state)
            continue
        vars(callback).update({n: v for n, v in state.items() if n not in {*_SETTINGS, _LENGTH}})
        prefix = f"callbacks[{number}].best_weights["
        weights = {int(n[len(prefix) : -1]): t for n, t in tensors.items() if n.startswith(prefix)}
        if weights:
            callback.best_weights = [weights[place].numpy() for place in sorted(weights)]


def _matched(
    callbacks: Sequence[Any], states: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[int, Any, Any]]:
    """Yield the number of each state, its callback and the state."""
    waiting = list(callbacks)
    for number, kept in enumerate(states):
        kinds = [type(each).__name__ for each in waiting]
        yield number, waiting.pop(kinds.index(kept["class"])), kept["state"]


@contextlib.contextmanager
def files_continued(
    callbacks: Sequence[Any], states: Sequence[Mapping[str, Any]]
) -> Iterator[None]:
    """Truncate files to their lengths in `states`, for an `on_train_begin` that appends to them."""
    with contextlib.ExitStack() as undo:
        for _, callback, state in _matched(callbacks, states):
            is_logger = isinstance(callback, keras.callbacks.CSVLogger) and isinstance(state, dict)
            length = state.get(_LENGTH) if is_logger else None
            if isinstance(length, int) and 0 <= length <= _file_bytes(callback):
                disk.cut(Path(callback.filename).parent, Path(callback.filename).name, length)
                undo.callback(setattr, callback, "append", callback.append)
                callback.append = True
        yield


def _file_bytes(logger: Any) -> int:
    """Return the length of a logger's file; -1 if it has none of its own."""
    file = logger.filename
    is_own = os.path.isfile(file) and not os.path.islink(file)
    return os.path.getsize(file) if is_own else -1


def _state(callback: Any, begun: Mapping[str, Any]) -> Any:
    if hasattr(callback, "get_state"):
        return _required_json(callback)
    if not is_known(callback):
        return {}
    now = {n: v for n, v in _plain_attributes(callback).items() if n not in _SETTINGS}
    if isinstance(callback, keras.callbacks.CSVLogger):
        now[_LENGTH] = _file_bytes(callback)
    return {name: v for name, v in now.items() if name not in begun or begun[name] != v}


def _required_json(callback: Any) -> Any:
    """Return the result of `get_state`; raise if JSON would change it."""
    try:
        return _json_value(callback.get_state())
    except (TypeError, RecursionError) as error:
        raise ConfigurationError(
            f"{type(callback).__name__}.get_state returns a state that cannot be saved.",
            expected="numbers, strings, True, False, None, and lists and dicts of these, with "
            "strings as keys",
            received=str(error),
            do="return array.tolist() for an array, or keep the values in a variable of the task",
        ) from None


def _json_value(value: Any) -> Any:
    """Return a value as JSON gives it back; raise TypeError for what JSON cannot hold."""
    value = _plain(value)
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, list | tuple):
        return [_json_value(item) for item in value]
    if not isinstance(value, Mapping):
        raise TypeError(f"a value of type {type(value).__name__}")
    for key in value:
        if not isinstance(key, str):
            raise TypeError(f"the key {key!r} of type {type(key).__name__}")
    return {key: _json_value(item) for key, item in value.items()}


def _plain_attributes(callback: Any) -> dict[str, Any]:
    plain = {name: _plain(value) for name, value in vars(callback).items()}
    return {name: value for name, value in plain.items() if isinstance(value, _PLAIN)}


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
