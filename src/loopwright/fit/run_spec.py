"""Run specs: what a program asks of a run, as JSON that is the same each time it starts.

The learning rate is the one that the program set, not the one that training made of it: of each
optimizer it is remembered what training left, so that only a value set since then counts.
"""

import contextlib
import dis
import functools
import hashlib
import inspect
import json
import math
import sys
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import CodeType
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from loopwright.compat import keras_internals, keras_optimizers
from loopwright.run_changes import STEP
from loopwright.task import scheduled, variables

RunSpec = dict[str, Any]

_RATE, _OPTIMIZER, _INNER = "learning_rate", "optimizer", "inner_optimizer"
_MOST_ITEMS = 32
_MOST_DEPTH = 12
_LIBRARIES = {"keras", "tensorflow", "loopwright"}

_UNSTABLE = {
    # Automatic names count up in a process, and layers draw a seed where none was given.
    *("name", "seed"),
    # What only a model that was built or compiled has, and where Keras found a class.
    *("build_config", "build_input_shape", "compile_config"),
    *("module", "registered_name", "shared_object_id"),
    # Names of other layers; `_connections` has them by their places.
    *("inbound_nodes", "input_layers", "output_layers"),
}

_asked = weakref.WeakKeyDictionary[Any, dict[str, Any]]()
"""The settings of each optimizer that were recorded last."""
_left = weakref.WeakKeyDictionary[Any, dict[str, Any]]()
"""The settings of each optimizer as training left them."""


def record(
    task: object,
    numbers: Mapping[str, Any],
    *,
    leg: int,
    before: Mapping[str, Any] | None,
    kept: Collection[str] = (),
) -> RunSpec:
    """Return what the program asks of leg `leg`, whose task is built.

    `numbers` are the arguments of trainer and `fit`; `before` is what the leg was begun with, if it
    was begun. An optimizer that was not changed since a leg ended asks for what it asked for then,
    and a learning rate whose variable is `kept` for what the leg was begun with.
    """
    parts = variables.all_parts(task, keras.losses.Loss)
    layers = {part.path: part.value for part in parts if isinstance(part.value, keras.Layer)}
    models = {path: layer for path, layer in layers.items() if isinstance(layer, keras.Model)}
    optimizers, losses = _optimizers(parts), _losses(parts, models)
    schedules = {path: number.schedule for path, number in scheduled.held(task).items()}
    functions = [*losses.values(), *schedules.values()]
    functions += filter(callable, map(_rate, optimizers.values()))
    functions += [v.function for v in layers.values() if isinstance(v, keras.layers.Lambda)]
    spec: RunSpec = {
        **{name: _plain(value) for name, value in numbers.items()},
        _RATE: {},
        _OPTIMIZER: {},
        "loss": {path: _loss(value) for path, value in losses.items()} | _loss_weights(models),
        "schedules": {path: _plain(schedule) for path, schedule in schedules.items()},
        "layers": {path: _layer(layer) for path, layer in layers.items()},
        STEP: _code_digests(task, layers, keras.tree.flatten(functions)),
        "versions": {
            "keras": keras.__version__,
            "code": f"{sys.implementation.cache_tag}-{sys.flags.optimize}",
        },
    }
    for path, optimizer in optimizers.items():
        left, asked = _left.get(optimizer, {}), _asked.get(optimizer, {})
        for name, value in _settings(optimizer).items():
            begun = (before or {}).get(name, {}).get(path, value)
            inherited = asked.get(name, value) if leg > 0 else begun
            is_kept = f"{path}.{name}" in kept
            spec[name][path] = begun if is_kept else inherited if left.get(name) == value else value
    return json.loads(json.dumps(spec))


def accept(task: object, spec: Mapping[str, Any]) -> None:
    """Remember what is asked of the optimizers from now on."""
    for path, optimizer in _optimizers(variables.all_parts(task)).items():
        settings = {name: spec[name] for name in (_RATE, _OPTIMIZER)}
        _asked[optimizer] = {name: held[path] for name, held in settings.items() if path in held}


def leave(task: object) -> None:
    """Remember how training, or a restored checkpoint, leaves the optimizers."""
    parts = variables.parts(task)
    models = [part for part in parts if isinstance(part.value, keras.Model)]
    compiled = [variables.Part(p.path, getattr(p.value, "optimizer", None)) for p in models]
    for optimizer in _optimizers([*parts, *compiled]).values():
        _left[optimizer] = _settings(optimizer)


def new_rates(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return the learning rates that differ between two specs, by the names of their variables."""
    old, new = before.get(_RATE, {}), now.get(_RATE, {})
    changed = {path: rate for path, rate in new.items() if old.get(path, rate) != rate}
    return {f"{path}.{_RATE}": rate for path, rate in changed.items()}


def set_rates(named: Mapping[str, Any], rates: Mapping[str, Any]) -> None:
    """Give variables of learning rates their values; schedules have no variable."""
    for name, rate in rates.items():
        for variable in variables.replicas(named[name]) if name in named else ():
            variable.assign(rate, read_value=False)


def _optimizers(parts: Sequence[variables.Part]) -> dict[str, Any]:
    """Return the optimizers of a task by path, inner optimizers included."""
    optimizers = dict[str, Any]()
    for part in parts:
        path, optimizer = part.path, part.value
        while isinstance(optimizer, keras.optimizers.Optimizer):
            optimizers[path] = optimizer
            path, optimizer = f"{path}.{_INNER}", getattr(optimizer, _INNER, None)
    return optimizers


def _settings(optimizer: Any) -> dict[str, Any]:
    """Return an optimizer's learning rate, unless an inner one has it, and its other settings."""
    config = _config(optimizer)
    config.pop(_RATE, None)
    if config.pop(_INNER, None) is not None:
        return {_OPTIMIZER: config}
    rate = _rate(optimizer)
    return {_RATE: rate if isinstance(rate, float) else _plain(rate), _OPTIMIZER: config}


def _rate(optimizer: Any) -> Any:
    """Return the learning rate: a number, a schedule or a function."""
    rate = keras_optimizers.learning_rate_of(optimizer)
    return rate if callable(rate) else float(tf.convert_to_tensor(rate))


def _losses(parts: Sequence[variables.Part], models: Mapping[str, keras.Model]) -> dict[str, Any]:
    """Return what models were compiled with, and the losses that the task holds."""
    compiled = {path: getattr(model, "loss", None) for path, model in models.items()}
    compiled = {path: loss for path, loss in compiled.items() if loss is not None}
    known = {id(loss) for loss in keras.tree.flatten(list(compiled.values()))}
    held = [part for part in parts if isinstance(part.value, keras.losses.Loss)]
    return compiled | {part.path: part.value for part in held if id(part.value) not in known}


def _loss_weights(models: Mapping[str, keras.Model]) -> dict[str, Any]:
    weights = dict[str, Any]()
    for path, model in models.items():
        with contextlib.suppress(Exception):  # a user's function may have no config
            weight = _plain((model.get_compile_config() or {}).get("loss_weights"))
            weights |= {} if weight is None else {f"{path}.loss_weights": weight}
    return weights


def _loss(loss: Any) -> Any:
    if isinstance(loss, list | tuple):
        loss = dict(enumerate(loss))
    if isinstance(loss, Mapping):
        return {str(key): _loss(inner) for key, inner in loss.items()}
    return _plain(keras.losses.get(loss) if isinstance(loss, str) else loss)


def _layer(layer: keras.Layer) -> dict[str, Any]:
    config = _config(layer)
    if isinstance(layer, keras.Sequential) or hasattr(layer, "operations"):
        config.pop("layers", None)
        with contextlib.suppress(Exception):  # a user's layers: without a config not compared
            config["connections"] = _connections(layer)
    return config


def _connections(model: Any) -> str:
    """Return a digest of which layers feed which; raise if the model has no such graph."""
    config = model.get_config()
    places = {layer["name"]: place for place, layer in enumerate(config["layers"])}
    ends = [config["input_layers"], config["output_layers"]]
    inner = [[layer["class_name"], layer["inbound_nodes"]] for layer in config["layers"]]
    return _digest(_by_place([ends, inner], places))


def _by_place(value: Any, places: Mapping[str, int]) -> Any:
    """A config with the places of layers for their names."""
    match value:
        case {"class_name": "__keras_tensor__", "config": {"keras_history": history}}:
            return _by_place(history, places)
        case [str(name), int(node), int(tensor)] if name in places:
            return [places[name], node, tensor]
        case Mapping():
            return {str(key): _by_place(inner, places) for key, inner in value.items()}
        case list() | tuple():
            return [_by_place(inner, places) for inner in value]
        case _:
            return _plain(value)


def _config(part: Any) -> dict[str, Any]:
    """Return the class of an object, and the part of its config that stays the same."""
    try:
        config = part.get_config()
    except Exception:  # a user's class without a config: its name has to do
        is_schedule = isinstance(part, keras.optimizers.schedules.LearningRateSchedule)
        public = {n: v for n, v in vars(part).items() if is_schedule and not n.startswith("_")}
        config = {n: v for n, v in public.items() if isinstance(v, bool | int | float | str)}
    if isinstance(part, keras.losses.Loss) and isinstance(config, Mapping):
        config = {**config, **keras_internals.loss_arguments(part)}
    plain = _plain(config) if isinstance(config, Mapping) else None
    return {"class": type(part).__name__, **(plain if isinstance(plain, dict) else {})}


def _plain(value: Any, depth: int = 0) -> Any:
    """A value as JSON; None for what is not the same each time: arrays, variables, addresses."""
    if depth > _MOST_DEPTH:
        return None
    if isinstance(value, np.generic):
        value = value.item()
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case Mapping():
            return _plain_mapping(value, depth)
        case list() | tuple() | set() | frozenset():
            return _plain_items(value, depth)
        case np.ndarray() | tf.Tensor() | tf.Variable() | keras.Variable():
            return None
    if hasattr(value, "get_config"):
        return _config(value)
    if isinstance(value, functools.partial):
        value = value.func
    return getattr(value, "__name__", None) or type(value).__name__


def _plain_mapping(value: Mapping[Any, Any], depth: int) -> Any:
    kind = value.get("class_name")
    if not isinstance(kind, str) or "config" not in value:
        items = {str(k): _plain(v, depth + 1) for k, v in value.items() if k not in _UNSTABLE}
        return {key: item for key, item in items.items() if item is not None}
    config = value["config"]
    if kind.startswith("__") or kind == "function":
        return config if kind == "function" else "lambda" if kind == "__lambda__" else None
    if kind.endswith("Policy") and isinstance(config, Mapping):
        return str(config.get("name"))
    inner = _plain(config, depth + 1)
    return {"class": kind, **(inner if isinstance(inner, dict) else {})}


def _plain_items(value: Any, depth: int) -> Any:
    items = [_plain(item, depth + 1) for item in value]
    if isinstance(value, set | frozenset):
        items = sorted(items, key=json.dumps)
    if len(items) <= _MOST_ITEMS:
        return items
    # A vocabulary, or computed numbers, which another machine rounds differently.
    if any(isinstance(item, float) for item in items):
        return None
    return f"{len(items)} items, {_digest(items)}"


def _code_digests(
    task: object, layers: Mapping[str, keras.Layer], functions: Sequence[Any]
) -> dict[str, str]:
    """Return a digest of the code of each step, layer and function of the user, by name."""
    named = dict[str, Any](_methods(task, "train_step"))
    for layer in layers.values():
        named |= _methods(layer, "call")
        if isinstance(layer, keras.Model):
            named |= _methods(layer, "train_step")
    for place, function in enumerate(functions):
        name = getattr(function, "__name__", "")
        if name and _is_own(getattr(function, "__module__", "")):
            named[f"{name} {place}" if name == "<lambda>" else name] = function
    digests = dict[str, str]()
    for name, function in named.items():
        python = getattr(function, "python_function", function)  # of tf.function
        code = getattr(inspect.unwrap(python), "__code__", None)
        if inspect.iscode(code):
            digests[name] = _digest(list(_instructions(code)))
    return digests


def _methods(owner: Any, name: str) -> Iterator[tuple[str, Any]]:
    if name in vars(owner):
        yield f"{type(owner).__name__}.{name}", vars(owner)[name]
    for kind in type(owner).__mro__:
        if name in vars(kind) and _is_own(kind.__module__):
            yield f"{kind.__name__}.{name}", vars(kind)[name]


def _is_own(module: str | None) -> bool:
    return (module or "").partition(".")[0] not in _LIBRARIES


def _instructions(code: CodeType) -> Iterator[Any]:
    """Return the code without comments, formatting and docstrings."""
    for instruction in dis.get_instructions(code):
        value = instruction.argval
        if inspect.iscode(value):
            value = list(_instructions(value))
        elif isinstance(value, frozenset):  # its order differs between processes
            value = sorted(map(repr, value))
        elif not isinstance(value, bool | int | str | None):
            value = repr(value)
        yield [instruction.opname, value]


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]
