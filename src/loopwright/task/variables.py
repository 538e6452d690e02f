"""The parts of a task: every model, optimizer, metric, seed and variable, by its name."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, final

import keras
import tensorflow as tf

from loopwright.compat import keras_internals, keras_optimizers, tensorflow_internals
from loopwright.errors import StepError, message
from loopwright.exactness import BEST_EFFORT

Row = Mapping[str, Any]
"""What a checkpoint stores about a variable, with its bytes: `name`, `dtype`, `shape`."""
MOST_NAMED = 10
"""How many variables of a kind a message names."""
SEED_STATE = "seed_generator_state"
"""The name that Keras gives the variable of every `SeedGenerator`."""


def untracked_message(title: str, variables: Sequence[str]) -> str:
    """Return the message about variables that a step uses and its task does not hold."""
    is_seed = [SEED_STATE in variable for variable in variables]
    remedies: list[str] = []
    if not all(is_seed):
        remedies.append(
            "make them attributes of the task, or of a model or list that it holds: "
            "self.temperature = tf.Variable(1.0) in __init__, self.temperature in the step"
        )
    if any(is_seed):
        remedies.append(
            f"{SEED_STATE}: keras.random without a seed draws from a generator that all of Keras "
            "shares; write self.seed = keras.random.SeedGenerator(0) in __init__, and pass "
            "seed=self.seed to keras.random, or seed= to the layer that draws"
        )
    if all(is_seed):
        remedies.append(f"or {BEST_EFFORT}: a resumed run then draws its sequence from the start")
    return message(
        f"{title} uses variables that the task does not hold: a resumed run would lose them.",
        expected="every variable that the step reads or changes, reachable from the task",
        received=", ".join(shortened(variables)),
        do="; ".join(remedies),
    )


def shape_list(shape: Any) -> list[int | None] | None:
    """Return a `tf.TensorShape` as JSON; None if it is unknown."""
    return None if shape.rank is None else shape.as_list()


def shape_text(shape: Sequence[int | None] | None) -> str:
    """Return a shape from a table as text.

    >>> shape_text([None, 3])
    '(None, 3)'
    """
    return "of any shape" if shape is None else str(tuple(shape))


def shortened(texts: Sequence[str]) -> list[str]:
    """Return the first texts, and how many more there are."""
    more = len(texts) - MOST_NAMED
    return [*texts[:MOST_NAMED], *([f"... and {more} more"] if more > 0 else [])]


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


def parts(task: object, *also: type) -> list[Part]:
    """Return every part of a task, also in lists, tuples, dicts and plain objects, each once."""
    return list(_walk(task, "", {}, kinds=(*_PARTS, *also)))


def all_parts(task: object, *also: type) -> list[Part]:
    """Return every part of a task, also those inside other parts: the layers of models."""
    return list(_walk(task, "", {}, deep=True, kinds=(*_PARTS, *also)))


def of_kind(kind: type[T], task: object) -> list[T]:
    """Return the parts of one kind, in the order of their attributes."""
    return [part.value for part in parts(task) if isinstance(part.value, kind)]


def variables(part: Any) -> list[Any]:
    """Return the `tf.Variable`s of one part."""
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
    """Return every Keras variable of all parts, as far as they are built."""
    held = [part.value for part in parts(task)]
    own = [value for value in held if isinstance(value, keras.Variable)]
    seeds = [value.state for value in held if isinstance(value, keras.random.SeedGenerator)]
    with_variables = (keras.Layer, keras.optimizers.Optimizer, keras.metrics.Metric)
    return own + seeds + [v for p in held if isinstance(p, with_variables) for v in p.variables]


def untrained_variables(task: object) -> list[Any]:
    """Return all variables except those that optimizers own or train: metrics, seeds, counters.

    Validation restores them, so that a run with and without it ends with the same bits.
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
                is_variable = isinstance(part.value, tf.Variable | keras.Variable)
                held = [] if is_variable and part.value.trainable else variables(part.value)
        found |= {id(variable): variable for variable in held}
    return list(found.values())


def global_seeds() -> list[Any]:
    """Return the states of the generators that all of Keras and TensorFlow share, if they exist."""
    found = (keras_internals.global_seed(), tensorflow_internals.global_generator())
    return [variable for variable in found if variable is not None]


def metric_variables(task: object) -> list[Any]:
    """Return the variables of metrics: NaN in them affects the report, not the training."""
    models = [m for layer in of_kind(keras.Layer, task) for m in getattr(layer, "metrics", ())]
    metrics = [*of_kind(keras.metrics.Metric, task), *models]
    return [variable.value for metric in metrics for variable in metric.variables]


def statistics(task: object) -> list[Any]:
    """Return the floating variables that layers update by themselves, like those of batch norm."""
    found = [v for layer in of_kind(keras.Layer, task) for v in layer.non_trainable_weights]
    unique = {id(v.value): v.value for v in found if v.value.dtype.is_floating}
    return list(unique.values())


def fingerprint(task: object) -> tuple[Any, ...]:
    """Return a value that changes when a traced step no longer matches the task.

    Made of the parts, the frozen layers, and plain numbers and strings, which a trace bakes in:
    `task.noise_rate = 0.5` between two calls of `fit` has an effect.
    """
    parts_now = tuple((part.path, id(part.value)) for part in parts(task))
    layers = of_kind(keras.Layer, task)
    frozen = tuple(variable.trainable for layer in layers for variable in layer.variables)
    metrics = tuple(id(m) for layer in layers for m in layer.metrics)
    private = tuple((name, v) for name, v in vars(task).items() if is_plain(v))
    held = tuple(
        (id(s.holder), s.attribute, s.value if is_plain(s.value) else id(s.value))
        for s in settings(task)
    )
    return (parts_now, frozen, metrics), (private, held)


@final
class Setting(NamedTuple):
    """A value that the trace of a step has read from Python."""

    path: str
    holder: Any
    attribute: str
    value: Any

    def now(self) -> Any:
        """Return the value that it has now."""
        return getattr(self.holder, self.attribute, self.value)


def settings(task: object) -> list[Setting]:
    """Return what the trace of a step reads from Python.

    Plain attributes of the task and its layers, `trainable`, and the parts that the task, or the
    compiled model in it, holds by name. Not what callbacks and Keras' own loops set in a model.
    """
    held = vars(task).items()
    found = [Setting(n, task, n, v) for n, v in held if is_plain(v) or isinstance(v, _PARTS)]
    # Callbacks see the optimizer of any other task as that of its model.
    is_compiled = getattr(task, "reported", "mean") == "last"
    for part in (part for part in parts(task) if isinstance(part.value, keras.Layer)):
        for layer in [layer for layer in keras_internals.layers_in(part.value) if layer.built]:
            path = part.path if layer is part.value else f"{part.path}.{layer.name}"
            own = {"trainable": layer.trainable, **vars(layer)}
            also = keras.optimizers.Optimizer if is_compiled else ()
            kept = {n: v for n, v in own.items() if is_plain(v) or isinstance(v, also)}
            found += [Setting(f"{path}.{name}", layer, name, value) for name, value in kept.items()]
    hidden = ("_", "stop_", "train_function", "test_function", "predict_function")
    unique = {(id(setting.holder), setting.attribute): setting for setting in found[::-1]}
    return [s for s in unique.values() if not s.attribute.startswith(hidden)][::-1]


def is_plain(value: Any) -> bool:
    """Return whether a value is a number, a text, None, or a tuple of them."""
    if isinstance(value, tuple):
        return all(map(is_plain, value))
    return isinstance(value, bool | int | float | str | None)


def named(task: object) -> dict[str, Any]:
    """Return every variable of a task by its path: `generator.layers[0].kernel`.

    The same code gives the same names in any process. A shared variable has the first of its
    paths; what an optimizer keeps for a variable is named after the variable:
    `optimizer.momentums[weight]`. A variable whose replicas may differ appears once for each:
    `accuracy.total.replicas[1]`.

    >>> class Task:
    ...     def __init__(self):
    ...         self.weight, self.seed = tf.Variable(1.0), keras.random.SeedGenerator(0)
    >>> list(named(Task()))
    ['weight', 'seed.state']
    """
    found: dict[str, Any] = {}
    paths: dict[int, str] = {}
    optimizers: list[Part] = []
    seen: dict[int, Any] = {}

    def take(part: Part, *, of_optimizer: bool) -> None:
        variable = _variable_of(part.value)
        if variable is not None and id(variable) not in paths:
            name = "step" if part.path == "_step_counter" else part.path
            while name in found:  # an attribute may look like the path of another
                name += "'"
            paths[id(variable)] = name
            is_distributed = isinstance(variable, tf.distribute.DistributedValues)
            strategy: Any = variable.distribute_strategy if is_distributed else None
            count = strategy.num_replicas_in_sync if strategy else 1
            if count > 1 and not of_optimizer and _may_differ(variable):
                held = replicas(variable)
                first = tensorflow_internals.workers(strategy)[1] * len(held)
                each = enumerate(held, start=first)
                found.update({f"{name}.replicas[{i}]": own for i, own in each})
            else:
                found[name] = variable

    for part in _walk(task, "", seen, deep=True):
        take(part, of_optimizer=False)
        if isinstance(part.value, keras.optimizers.Optimizer):
            optimizers.append(part)
    for optimizer in optimizers:
        for part in _slots(optimizer, paths, seen):
            take(part, of_optimizer=True)
    return found


def replicas(variable: Any) -> tuple[Any, ...]:
    """Return the variables behind a variable, one for each replica of this process."""
    if isinstance(variable, tf.distribute.DistributedValues):
        return tuple(variable.distribute_strategy.experimental_local_results(variable))
    return (variable,)


def require_complete(
    named: Mapping[str, Any], captured: Iterable[Any], title: str, *, accepts_seeds: bool = False
) -> list[str]:
    """Raise if a step uses a variable without a name: no checkpoint would hold it.

    `captured` are the variables in its trace, as `engine.trace.Built` has them. With
    `accepts_seeds`, return the states of seed generators that are not saved.
    """
    known = {id(own.handle) for variable in named.values() for own in replicas(variable)}
    used = [own for variable in captured for own in replicas(variable)]
    untracked = [own for own in used if id(getattr(own, "handle", own)) not in known]
    texts = list(dict.fromkeys(map(_described, untracked)))
    if texts and not (accepts_seeds and all(SEED_STATE in text for text in texts)):
        raise StepError(untracked_message(title, texts))
    return texts


def table(named: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return names, dtypes and shapes, to be stored as JSON.

    >>> table({"weight": tf.Variable([[1.0, 2.0]])})
    [{'name': 'weight', 'dtype': 'float32', 'shape': [1, 2]}]
    """
    return [
        {"name": name, "dtype": variable.dtype.name, "shape": shape_list(variable.shape)}
        for name, variable in named.items()
    ]


def _walk(
    value: Any, path: str, seen: dict[int, Any], *, deep: bool = False, kinds: Any = _PARTS
) -> Iterator[Part]:
    """Yield every part below a value; `deep`: also inside parts, but not inside optimizers."""
    if id(value) in seen:
        return
    inner: Iterable[tuple[str, Any]] = ()
    if isinstance(value, kinds):
        yield Part(path, value)
        if deep and not isinstance(value, keras.optimizers.Optimizer):
            inner = _held(value)
    elif isinstance(value, Mapping):
        inner = [(_key(key, index), item) for index, (key, item) in enumerate(value.items())]
    elif isinstance(value, list | tuple | set | frozenset):
        inner = [(f"[{index}]", item) for index, item in enumerate(value)]
    elif path == "" or _is_plain_object(value):
        own = [name for name in vars(value) if not keras_internals.is_tracking(name)]
        inner = [(f".{name}" if path else name, vars(value)[name]) for name in own]
    else:
        return
    seen[id(value)] = value  # kept alive, so that no other object gets its id
    found = (p for name, i in inner for p in _walk(i, path + name, seen, deep=deep, kinds=kinds))
    if deep and isinstance(value, set | frozenset):
        found = list(found)
        if found and len(value) > 1:
            raise StepError(
                f"{path} is a set, which has no order: its variables cannot be identified.",
                expected="a list, a tuple or a dict",
                received=f"a set of {len(value)}",
                do=f"make {path} a list",
            )
    yield from found


def _held(part: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a part holds: by attribute if it has one, else by its place in a list."""
    if isinstance(part, tf.Variable | keras.Variable):
        return
    if isinstance(part, keras.random.SeedGenerator | tf.random.Generator):
        yield ".state", part.state
        return

    def listed(name: str) -> Iterator[tuple[str, Any]]:
        items = getattr(part, name, None)
        if isinstance(items, list | tuple):
            yield from ((f".{name}[{index}]", item) for index, item in enumerate(items))

    if isinstance(part, keras.metrics.Metric):
        yield from listed("metrics")
    elif isinstance(part, keras.Sequential) or hasattr(part, "operations"):  # a graph of layers
        yield from listed("layers")
    attributes = dict(vars(part))
    for name, item in attributes.items():
        public = name.lstrip("_")
        if not keras_internals.is_bookkeeping(name):
            yield f".{name if public in attributes else public}", item
    for name in ("layers", "metrics", "variables"):
        yield from listed(name)


def _slots(optimizer: Part, paths: Mapping[int, str], seen: dict[int, Any]) -> Iterator[Part]:
    """Yield what an optimizer holds; lists with an item for each variable by the variables' names.

    By positions, freezing one of two layers of the same shape would go unnoticed.
    """
    trained = keras_optimizers.trained_by(optimizer.value)
    labels = [paths.get(id(_variable_of(v)), str(index)) for index, v in enumerate(trained)]
    for name, item in _held(optimizer.value):
        inner = {name: item}
        is_slots = isinstance(item, list) and len(item) == len(labels)
        if is_slots and all(v is None or _variable_of(v) is not None for v in item):
            inner = {f"{name}[{label}]": v for label, v in zip(labels, item, strict=True)}
        for path, value in inner.items():
            for part in _walk(value, optimizer.path + path, seen, deep=True):
                yield part
                if isinstance(part.value, keras.optimizers.Optimizer):
                    yield from _slots(part, paths, seen)


def _key(key: Any, index: int) -> str:
    # An address would differ in the next process.
    text = repr(key)
    return f"[#{index}]" if " at 0x" in text else f"[{text}]"


def _variable_of(value: Any) -> Any:
    """Return the `tf.Variable` that a value is or wraps; None if there is none (yet)."""
    inner = value.value if isinstance(value, keras.Variable) else value
    return inner if isinstance(inner, tf.Variable) else None


def _may_differ(variable: Any) -> bool:
    """Return whether each replica changes its own copy: metrics, seeds, batch norm."""
    is_summed_up = variable.synchronization == tf.VariableSynchronization.ON_READ
    is_own = variable.aggregation == tf.VariableAggregation.NONE and not variable.trainable
    return is_summed_up or is_own


def _described(variable: Any) -> str:
    if not isinstance(variable, tf.Variable):
        return "a variable that the step only writes"
    shape = shape_text(shape_list(variable.shape))
    return f"{variable.name.partition(':')[0]} ({variable.dtype.name} {shape})"


def _is_plain_object(value: Any) -> bool:
    """Return whether it is an object of a user's class: no module, array or library object."""
    if not hasattr(value, "__dict__") or isinstance(value, type):
        return False
    root = type(value).__module__.partition(".")[0]
    return root not in {"tensorflow", "keras", "numpy", "pandas", "builtins", "functools", "types"}
