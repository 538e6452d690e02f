"""Optimizers, schedules and callbacks from the names in a config."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras

from loopwright import components, disk
from loopwright.config import Named, names
from loopwright.errors import ConfigurationError, message

_HOMES: dict[str, Any] = {
    "optimizer": keras.optimizers,
    "schedule": keras.optimizers.schedules,
    "callback": keras.callbacks,
}
# Where a callback writes: by default, and always inside the run directory. The run has files of its
# own in `tensorboard`, and cuts them when it goes on.
_WRITES = {
    "CSVLogger": ("filename", "history.csv"),
    "TensorBoard": ("log_dir", "callbacks/tensorboard"),
}
_REFUSED = {"TensorBoard": {"embeddings_freq", "embeddings_metadata"}}


def optimizer(part: Named) -> keras.optimizers.Optimizer:
    """An optimizer, with a number or a schedule as its learning rate.

    >>> optimizer(Named(name="SGD", learning_rate=0.5)).get_config()["learning_rate"]
    0.5
    """
    return _made("optimizer", part.name, part.options)


def callback(part: Named, run_dir: Path) -> keras.callbacks.Callback:
    """A callback; what it writes is in the run directory."""
    options = part.options
    refused = _REFUSED.get(part.name, set()) & options.keys()
    if refused:
        raise _unusable("callback", part.name, options, f"{', '.join(refused)} is not for configs")
    if part.name in _WRITES:
        key, default = _WRITES[part.name]
        options[key] = str(_inside(run_dir, options.get(key, default)))
    return _made("callback", part.name, options)


def _made(kind: str, name: str, options: Mapping[str, Any]) -> Any:
    known = names.spelled(name, kind)
    if known is None:
        raise _unusable(kind, name, options, "there is no such name")
    make = getattr(components, known, None) or getattr(_HOMES[kind], known)
    given = {
        key: _made("schedule", str(value.get("name")), _without_name(value))
        if isinstance(value, dict)
        else value
        for key, value in options.items()
    }
    try:
        return make(**given)
    except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise _unusable(kind, name, options, str(error)) from error


def _without_name(options: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if key != "name"}


def _inside(run_dir: Path, name: Any) -> Path:
    path = os.path.relpath(os.path.join(run_dir, str(name)), run_dir)
    if path in (".", "..") or path.startswith("../") or "\0" in path:
        raise ConfigurationError(
            message(
                "A callback of a config writes into the run directory only.",
                expected=f"a name inside {run_dir}",
                received=repr(name),
                do="leave it out, or give a plain name",
            )
        )
    disk.refuse_links(run_dir, path)  # Keras would follow a symlink
    return run_dir.resolve() / path


def _unusable(kind: str, name: str, options: Any, reason: str) -> ConfigurationError:
    return ConfigurationError(
        message(
            f"The {kind} {name} cannot be made like this.",
            expected=f"the arguments of {name}",
            received=f"{options}: {' '.join(reason.split())[:400]}",
            do="correct its options in the config",
        )
    )
