"""What Keras callbacks remember, taken out for a checkpoint and put back.

A callback with `get_state()` and `set_state(state)` decides by itself; the state is JSON. Of Keras'
own callbacks, and of others that are known to count steps, the numbers and words that changed since
training began are kept, and so the settings stay those of the script; also the best weights of
`EarlyStopping`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from loopwright.errors import message
from loopwright.telemetry.batch_hooks import is_known

_PLAIN = (bool, int, float, str, type(None))


def as_begun(callbacks: Sequence[Any]) -> list[dict[str, Any]]:
    """The plain attributes of each callback, to be taken when training has begun."""
    return [_plain_attributes(callback) for callback in callbacks]


def callback_states(
    callbacks: Sequence[Any], begun: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The state of each callback, as JSON knows it."""
    pairs = zip(callbacks, begun, strict=True)
    return [{"class": type(c).__name__, "state": _state(c, before)} for c, before in pairs]


def callback_tensors(callbacks: Sequence[Any]) -> dict[str, tf.Tensor]:
    """The arrays that callbacks hold, by name: they go where the variables go."""
    return {
        f"callbacks[{number}].best_weights[{place}]": tf.constant(array)
        for number, callback in enumerate(callbacks)
        for place, array in enumerate(getattr(callback, "best_weights", None) or [])
    }


def objection(callbacks: Sequence[Any], states: Sequence[Mapping[str, Any]]) -> str | None:
    """Why these states do not belong to such callbacks, in any order; None if they do."""
    names, before = [type(c).__name__ for c in callbacks], [state["class"] for state in states]
    if sorted(names) == sorted(before):
        return None
    return message(
        "This run was saved with other callbacks.",
        expected=", ".join(before) or "no callbacks",
        received=", ".join(names) or "no callbacks",
        do='pass the same callbacks, pass on_change="start_over" to start over, or choose another '
        "run_dir",
    )


def restore_callbacks(
    callbacks: Sequence[Any],
    states: Sequence[Mapping[str, Any]],
    tensors: Mapping[str, tf.Tensor],
) -> None:
    """Puts back what callbacks remembered; of several of a class, each gets its own in order."""
    waiting = list(callbacks)
    for number, kept in enumerate(states):
        kinds = [type(each).__name__ for each in waiting]
        callback = waiting.pop(kinds.index(kept["class"]))
        if hasattr(callback, "set_state"):
            callback.set_state(kept["state"])
            continue
        vars(callback).update(kept["state"])
        prefix = f"callbacks[{number}].best_weights["
        weights = {int(n[len(prefix) : -1]): t for n, t in tensors.items() if n.startswith(prefix)}
        if weights:
            callback.best_weights = [weights[place].numpy() for place in sorted(weights)]


def _state(callback: Any, begun: Mapping[str, Any]) -> dict[str, Any]:
    if hasattr(callback, "get_state"):
        return callback.get_state()
    if not is_known(callback):
        return {}
    now = _plain_attributes(callback)
    return {name: v for name, v in now.items() if name not in begun or begun[name] != v}


def _plain_attributes(callback: Any) -> dict[str, Any]:
    plain = {name: _plain(value) for name, value in vars(callback).items()}
    return {name: value for name, value in plain.items() if isinstance(value, _PLAIN)}


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
