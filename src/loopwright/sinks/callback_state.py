"""The state of Keras callbacks, saved in checkpoints and restored.

A callback with `get_state()` and `set_state(state)` defines its state, as JSON values. The state of
Keras' own callbacks, and of other known callbacks, is each number or string attribute that changed
since training began, so that settings come from the script; the best weights of `EarlyStopping`;
and the length of the file of `CSVLogger`.
"""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from loopwright import disk
from loopwright.errors import ConfigurationError, message
from loopwright.sinks.batch_hooks import is_known

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
    if sorted(names) == sorted(before):
        return _misread(callbacks, states)
    return message(
        "The run was saved with different callbacks.",
        expected=", ".join(before) or "no callbacks",
        received=", ".join(names) or "no callbacks",
        do='pass the same callbacks, pass on_change="start_over" to start over, or choose another '
        "run_dir",
    )


def _misread(callbacks: Sequence[Any], states: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the message about a state that is not a dict, for a callback that needs one."""
    own = {type(callback).__name__ for callback in callbacks if hasattr(callback, "set_state")}
    for kept in states:
        if kept["class"] not in own and not isinstance(kept["state"], dict):
            return message(
                f"The state of {kept['class']} in the checkpoint cannot be restored.",
                expected="a dict of the attributes that training changed",
                received=type(kept["state"]).__name__,
                do='restore the checkpoint from a copy, pass on_change="start_over" to start over, '
                "or choose another run_dir",
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
    given = callback.get_state()
    try:
        found = json.loads(json.dumps(given, default=_plain_number))
    except (TypeError, ValueError, RecursionError) as error:
        reason = str(error)
    else:
        reason = _changed_key(given)
        if not reason:
            return found
    raise ConfigurationError(
        message(
            f"{type(callback).__name__}.get_state returns a state that cannot be saved.",
            expected="numbers, strings, True, False, None, and lists and dicts of these, with "
            "strings as keys",
            received=reason,
            do="return array.tolist() for an array, or keep the values in a variable of the task",
        )
    )


def _plain_number(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a value of type {type(value).__name__}")


def _changed_key(value: Any) -> str:
    """Return a description of a key that JSON would change to a string; empty if none."""
    if isinstance(value, Mapping):
        others = [key for key in value if not isinstance(key, str)]
        if others:
            return f"the key {others[0]!r} of type {type(others[0]).__name__}"
        value = list(value.values())
    inner = value if isinstance(value, list | tuple) else ()
    return next(filter(None, map(_changed_key, inner)), "")


def _plain_attributes(callback: Any) -> dict[str, Any]:
    plain = {name: _plain(value) for name, value in vars(callback).items()}
    return {name: value for name, value in plain.items() if isinstance(value, _PLAIN)}


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
