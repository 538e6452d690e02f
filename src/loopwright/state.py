"""The parts of a task: every model, optimizer, metric, seed and variable it holds."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import keras
import tensorflow as tf

T = TypeVar("T")

_PARTS = (
    keras.Layer,
    keras.optimizers.Optimizer,
    keras.metrics.Metric,
    keras.random.SeedGenerator,
    keras.Variable,
    tf.Variable,
    tf.random.Generator,
)


@dataclass(frozen=True)
class Part:
    """One part and its path from the task: `generator`, `heads[0]`, `critics['left']`."""

    path: str
    value: Any


def parts(task: object) -> list[Part]:
    """Every part of a task, also inside lists, tuples, dicts and plain objects; each once."""
    seen: set[int] = set()
    return list(_walk(task, "", seen))


def of_kind(kind: type[T], task: object) -> list[T]:
    """The parts of one kind, in the order of their attributes."""
    return [part.value for part in parts(task) if isinstance(part.value, kind)]


def variables(part: Any) -> list[Any]:
    """The `tf.Variable`s of one part."""
    match part:
        case tf.Variable():
            return [part]
        case keras.Variable():
            return [part.value]
        case tf.random.Generator():
            return [part.state]
        case keras.random.SeedGenerator():
            return [part.state.value]
        case _:
            return [variable.value for variable in part.variables]


def keras_variables(task: object) -> list[keras.Variable]:
    """Every variable that Keras knows, of all parts, as far as they are built."""
    held = [part.value for part in parts(task)]
    own = [value for value in held if isinstance(value, keras.Variable)]
    seeds = [value.state for value in held if isinstance(value, keras.random.SeedGenerator)]
    with_variables = (keras.Layer, keras.optimizers.Optimizer, keras.metrics.Metric)
    return own + seeds + [v for p in held if isinstance(p, with_variables) for v in p.variables]


def untrained_variables(task: object) -> list[Any]:
    """All variables but what optimizers own or train: metrics, seeds, statistics, counters.

    Validation puts these back, so that a run with and without it ends with the same bits.
    """
    found: dict[int, Any] = {}
    for part in parts(task):
        match part.value:
            case keras.optimizers.Optimizer():
                continue
            case keras.Layer():
                # A compiled Keras model holds metrics that are no sublayers' variables.
                held = [v.value for v in part.value.non_trainable_variables]
                held += [v.value for m in getattr(part.value, "metrics", ()) for v in m.variables]
            case _:
                held = [v for v in variables(part.value) if not _is_trained(part.value)]
        found |= {id(variable): variable for variable in held}
    return list(found.values())


def statistics(task: object) -> list[Any]:
    """The floating variables that layers update by themselves, like those of batch norm."""
    found = [v for layer in of_kind(keras.Layer, task) for v in layer.non_trainable_weights]
    unique = {id(v.value): v.value for v in found if v.value.dtype.is_floating}
    return list(unique.values())


def fingerprint(task: object) -> tuple[Any, ...]:
    """Changes when a traced step would no longer be the step as it now stands.

    Which parts there are, which layers are frozen, and the plain numbers and words that a trace
    has baked in: `task.noise_rate = 0.5` between two calls of `fit` means what it says.
    """
    parts_now = tuple((part.path, id(part.value)) for part in parts(task))
    layers = of_kind(keras.Layer, task)
    frozen = tuple(variable.trainable for layer in layers for variable in layer.variables)
    metrics = tuple(id(m) for layer in layers for m in layer.metrics)
    settings = tuple(
        (name, value)
        for name, value in vars(task).items()
        if isinstance(value, bool | int | float | str | None)
    )
    return parts_now, frozen, metrics, settings


def _is_trained(part: Any) -> bool:
    return isinstance(part, tf.Variable | keras.Variable) and bool(part.trainable)


def _walk(value: Any, path: str, seen: set[int]) -> Iterator[Part]:
    if id(value) in seen:
        return
    if isinstance(value, _PARTS):
        seen.add(id(value))
        yield Part(path, value)
    elif isinstance(value, Mapping):
        seen.add(id(value))
        for key, inner in value.items():
            yield from _walk(inner, f"{path}[{key!r}]", seen)
    elif isinstance(value, list | tuple | set | frozenset):
        seen.add(id(value))
        for index, inner in enumerate(value):
            yield from _walk(inner, f"{path}[{index}]", seen)
    elif path == "" or _is_plain_object(value):
        seen.add(id(value))
        for name, inner in vars(value).items():
            yield from _walk(inner, f"{path}.{name}" if path else name, seen)


def _is_plain_object(value: Any) -> bool:
    """An object of a person's own class; not a module, function, array or library object."""
    if not hasattr(value, "__dict__") or isinstance(value, type) or callable(value):
        return False
    root = type(value).__module__.partition(".")[0]
    return root not in {"tensorflow", "keras", "numpy", "pandas", "builtins", "functools", "types"}
