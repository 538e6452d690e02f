"""What a program asks of a run, as JSON that is the same each time it starts.

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
import types
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from loopwright.compat import keras_internals, keras_optimizers
from loopwright.config.edits import STEP
from loopwright.task import scheduled, variables

_RATE, _OPTIMIZER, _INNER = "learning_rate", "optimizer", "inner_optimizer"
_MOST_ITEMS = 32
_MOST_DEPTH = 12
_LIBRARIES = {"keras", "tensorflow", "loopwright"}

_UNSTABLE = frozenset(
    [
        # Automatic names count up in a process, and layers draw a seed where none was given.
        "name",
        "seed",
        # What only a model that was built or compiled has, and where Keras found a class.
        "build_config",
        "build_input_shape",
        "compile_config",
        "module",
        "registered_name",
        "shared_object_id",
        # Names of other layers; `_connections` has them by their places.
        "inbound_nodes",
        "input_layers",
        "output_layers",
    ]
)

_left: "weakref.WeakKeyDictionary[Any, dict[str, Any]]" = weakref.WeakKeyDictionary()
_asked: "weakref.WeakKeyDictionary[Any, dict[str, Any]]" = weakref.WeakKeyDictionary()


def declared(
    task: object, numbers: Mapping[str, Any], *, leg: int, before: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return what the program asks of leg `leg`, whose task is built.

    `numbers` are the arguments of trainer and `fit`; `before` is what the leg was begun with, if it
    was begun. An optimizer that was not changed since a leg ended asks for what it asked for then.
    """
    parts = variables.all_parts(task, keras.losses.Loss)
    optimizers = _optimizers(parts)
    found: dict[str, Any] = {name: _plain(value) for name, value in numbers.items()}
    found |= {_RATE: {}, _OPTIMIZER: {}}
    for path, optimizer in optimizers.items():
        left, inherited = _left.get(optimizer, {}), _asked.get(optimizer, {})
        for name, value in _settings(optimizer).items():
            begun = (before or {}).get(name, {})
            earlier = inherited.get(name, value) if leg > 0 else begun.get(path, value)
            found[name][path] = earlier if left.get(name) == value else value
    layers = {part.path: part.value for part in parts if isinstance(part.value, keras.Layer)}
    numbers_held = scheduled.held(task)
    losses = _losses(parts)
    found["loss"] = {path: _loss(value) for path, value in losses.items()} | _loss_weights(parts)
    found["schedules"] = {path: _plain(number.schedule) for path, number in numbers_held.items()}
    found["layers"] = {path: _layer(layer) for path, layer in layers.items()}
    functions = [*losses.values(), *(number.schedule for number in numbers_held.values())]
    functions += [rate for each in optimizers.values() if callable(rate := _rate(each))]
    functions += [
        each.function for each in layers.values() if isinstance(each, keras.layers.Lambda)
    ]
    found[STEP] = _codes(task, layers, keras.tree.flatten(functions))
    found["versions"] = {
        "keras": keras.__version__,
        "code": f"{sys.implementation.cache_tag}-{sys.flags.optimize}",
    }
    return json.loads(json.dumps(found))


def accept(task: object, declaration: Mapping[str, Any]) -> None:
    """Remember what is asked of the optimizers from now on."""
    for path, optimizer in _optimizers(variables.all_parts(task)).items():
        known = {name: declaration[name] for name in (_RATE, _OPTIMIZER)}
        _asked[optimizer] = {name: each[path] for name, each in known.items() if path in each}


def leave(task: object) -> None:
    """Remembers how training, or a restored checkpoint, leaves the optimizers."""
    parts = variables.parts(task)
    models = [part.value for part in parts if isinstance(part.value, keras.Model)]
    compiled = [variables.Part("", getattr(model, "optimizer", None)) for model in models]
    for optimizer in (*_optimizers(parts).values(), *_optimizers(compiled).values()):
        _left[optimizer] = _settings(optimizer)


def keep_rates(found: dict[str, Any], before: Mapping[str, Any], kept: Collection[str]) -> None:
    """Gives learning rates whose variables are `kept` what the leg was begun with."""
    old = before.get(_RATE, {})
    for path in found[_RATE]:
        if path in old and f"{path}.{_RATE}" in kept:
            found[_RATE][path] = old[path]


def new_rates(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return the learning rates that differ, by the names of their variables."""
    old, new = (each.get(_RATE, {}) for each in (before, now))
    paths = [path for path in new if path in old and old[path] != new[path]]
    return {f"{path}.{_RATE}": new[path] for path in paths}


def set_rates(named: Mapping[str, Any], rates: Mapping[str, Any]) -> None:
    """Gives variables of learning rates their values; schedules have no variable."""
    for name, rate in rates.items():
        for own in variables.replicas(named[name]) if name in named else ():
            own.assign(rate, read_value=False)


def _optimizers(parts: Sequence[variables.Part]) -> dict[str, Any]:
    """Return the optimizers of a task by path, inner optimizers included."""
    found = dict[str, Any]()
    for part in parts:
        path, optimizer = part.path, part.value
        while isinstance(optimizer, keras.optimizers.Optimizer):
            found[path] = optimizer
            path, optimizer = f"{path}.{_INNER}", getattr(optimizer, _INNER, None)
    return found


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
    found = keras_optimizers.learning_rate_of(optimizer)
    if isinstance(found, keras.Variable | tf.Variable | tf.Tensor):
        return float(tf.convert_to_tensor(found))
    return float(found) if isinstance(found, int | float | np.generic) else found


def _losses(parts: Sequence[variables.Part]) -> dict[str, Any]:
    """Return what models were compiled with, and the losses that the task holds."""
    compiled = {
        part.path: part.value.loss
        for part in parts
        if isinstance(part.value, keras.Model) and getattr(part.value, "loss", None) is not None
    }
    known = {id(each) for each in keras.tree.flatten(list(compiled.values()))}
    held = [part for part in parts if isinstance(part.value, keras.losses.Loss)]
    return compiled | {part.path: part.value for part in held if id(part.value) not in known}


def _loss_weights(parts: Sequence[variables.Part]) -> dict[str, Any]:
    found = dict[str, Any]()
    for part in parts:
        if isinstance(part.value, keras.Model):
            with contextlib.suppress(Exception):  # a user's function may have no config
                config = part.value.get_compile_config() or {}
                found[f"{part.path}.loss_weights"] = _plain(config.get("loss_weights"))
    return {path: weights for path, weights in found.items() if weights is not None}


def _loss(loss: Any) -> Any:
    if isinstance(loss, Mapping):
        return {str(key): _loss(each) for key, each in loss.items()}
    if isinstance(loss, list | tuple):
        return {str(index): _loss(each) for index, each in enumerate(loss)}
    if isinstance(loss, str):
        loss = keras.losses.get(loss)
    return _plain(loss)


def _layer(layer: keras.Layer) -> dict[str, Any]:
    config = _config(layer)
    if isinstance(layer, keras.Sequential) or hasattr(layer, "operations"):
        config.pop("layers", None)
        connections = _connections(layer)
        if connections is not None:
            config["connections"] = connections
    return config


def _connections(model: Any) -> str | None:
    """Return a digest of which layers feed which; None if the model has no such graph."""
    try:
        config = model.get_config()
        places = {layer["name"]: place for place, layer in enumerate(config["layers"])}
        ends = [config["input_layers"], config["output_layers"]]
        inner = [[layer["class_name"], layer["inbound_nodes"]] for layer in config["layers"]]
        return _digest(_by_place([ends, inner], places))
    except Exception:  # a user's layers: without a config they are not compared
        return None


def _by_place(value: Any, places: Mapping[str, int]) -> Any:
    """A config with the places of layers for their names."""
    match value:
        case {"class_name": "__keras_tensor__", "config": {"keras_history": history}}:
            return _by_place(history, places)
        case [str(name), int(node), int(tensor)] if name in places:
            return [places[name], node, tensor]
        case Mapping():
            return {str(key): _by_place(each, places) for key, each in value.items()}
        case list() | tuple():
            return [_by_place(each, places) for each in value]
        case _:
            return _plain(value)


def _config(part: Any) -> dict[str, Any]:
    """Return the class of an object, and the part of its config that stays the same."""
    try:
        config = part.get_config()
    except Exception:  # a user's class without a config: its name has to do
        config = _attributes(part) if isinstance(part, _Schedule) else {}
    if isinstance(part, keras.losses.Loss) and isinstance(config, Mapping):
        config = {**config, **keras_internals.loss_arguments(part)}
    plain = _plain(config) if isinstance(config, Mapping) else None
    return {"class": type(part).__name__, **(plain if isinstance(plain, dict) else {})}


_Schedule = keras.optimizers.schedules.LearningRateSchedule


def _attributes(part: Any) -> dict[str, Any]:
    plain = bool | int | float | str
    return {n: v for n, v in vars(part).items() if isinstance(v, plain) and not n.startswith("_")}


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
        return {key: each for key, each in items.items() if each is not None}
    config = value["config"]
    if kind.startswith("__") or kind == "function":
        return config if kind == "function" else "lambda" if kind == "__lambda__" else None
    if kind.endswith("Policy") and isinstance(config, Mapping):
        return str(config.get("name"))
    inner = _plain(config, depth + 1)
    return {"class": kind, **(inner if isinstance(inner, dict) else {})}


def _plain_items(value: Any, depth: int) -> Any:
    items = [_plain(each, depth + 1) for each in value]
    if isinstance(value, set | frozenset):
        items = sorted(items, key=json.dumps)
    if len(items) <= _MOST_ITEMS:
        return items
    # A vocabulary, or computed numbers, which another machine rounds differently.
    if any(isinstance(each, float) for each in items):
        return None
    return f"{len(items)} items, {_digest(items)}"


def _codes(
    task: object, layers: Mapping[str, keras.Layer], functions: Sequence[Any]
) -> dict[str, str]:
    """Return a digest of the code of each step, layer and function of the user, by name."""
    found = dict[str, Any](_methods(task, "train_step"))
    for layer in layers.values():
        found |= _methods(layer, "call")
        if isinstance(layer, keras.Model):
            found |= _methods(layer, "train_step")
    for place, function in enumerate(functions):
        name = getattr(function, "__name__", "")
        if name and _is_own(getattr(function, "__module__", "")):
            found[f"{name} {place}" if name == "<lambda>" else name] = function
    codes = {name: _code(function) for name, function in found.items()}
    return {
        name: _digest(list(_instructions(code))) for name, code in codes.items() if code is not None
    }


def _methods(owner: Any, name: str) -> Iterator[tuple[str, Any]]:
    if name in vars(owner):
        yield f"{type(owner).__name__}.{name}", vars(owner)[name]
    for kind in type(owner).__mro__:
        if name in vars(kind) and _is_own(kind.__module__):
            yield f"{kind.__name__}.{name}", vars(kind)[name]


def _is_own(module: str | None) -> bool:
    return (module or "").partition(".")[0] not in _LIBRARIES


def _code(function: Any) -> types.CodeType | None:
    function = getattr(function, "python_function", function)  # of tf.function
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code if isinstance(code, types.CodeType) else None


def _instructions(code: types.CodeType) -> Iterator[Any]:
    """Return the code without comments, formatting and docstrings."""
    for instruction in dis.get_instructions(code):
        value = instruction.argval
        if isinstance(value, types.CodeType):
            value = list(_instructions(value))
        elif isinstance(value, frozenset):  # its order differs between processes
            value = sorted(map(repr, value))
        elif not isinstance(value, bool | int | str | None):
            value = repr(value)
        yield [instruction.opname, value]


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]
