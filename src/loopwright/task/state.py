"""State: the values of variables, read together and set together."""

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, final

import keras
import tensorflow as tf

from loopwright.task import variables
from loopwright.task.task import Task


@final
@dataclass(frozen=True)
class State:
    """The values that variables had at one moment."""

    pairs: tuple[tuple[Any, Any], ...]
    """Each variable, of each replica, and its value."""


def capture(held: Iterable[Any]) -> State:
    """Return the values of variables, on all replicas of this process.

    >>> weight = tf.Variable(1.0)
    >>> state = capture([weight])
    >>> _ = weight.assign(2.0)
    >>> apply(state)
    >>> float(weight)
    1.0
    """
    own = [v.value if isinstance(v, keras.Variable) else v for v in held]
    # A read is a copy-on-write view: cheap, and unchanged by what comes.
    return State(tuple((part, part.read_value()) for v in own for part in variables.replicas(v)))


def apply(state: State, *, unless: Any = None) -> None:
    """Assign the values again; in a graph, `unless` a condition holds."""
    for variable, value in state.pairs:
        kept = value if unless is None else tf.where(unless, variable.read_value(), value)
        variable.assign(kept)


@contextlib.contextmanager
def preserved(held: Iterable[Any]) -> Iterator[None]:
    """Restore the values of variables on exit, whatever happens inside."""
    state = capture(held)
    try:
        yield
    finally:
        apply(state)


def undisturbed(task: Task) -> contextlib.AbstractContextManager[None]:
    """Restore on exit what no optimizer trains: metrics, statistics, seeds, also global ones."""
    return preserved([*variables.untrained_variables(task), *variables.global_seeds()])
