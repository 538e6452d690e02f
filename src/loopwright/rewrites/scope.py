"""Which rewrites this machine has, and the scope in which a step is traced with them."""

import contextlib
from collections.abc import Collection, Iterator
from typing import Literal

import tensorflow as tf

from loopwright.compat.internals import uses
from loopwright.rewrites import random_algorithm, recurrent


def available() -> tuple[Literal["threefry", "recurrent"], ...]:
    """Return the rewrites that apply on this machine, in the order of a plan.

    >>> available()
    ('threefry', 'recurrent')
    """
    if _has_gpu():  # where XLA's own choices are fast
        return ()
    draws: tuple[Literal["threefry"], ...] = ("threefry",) * random_algorithm.is_available()
    return (*draws, *(("recurrent",) if recurrent.is_available() else ()))


@contextlib.contextmanager
def applied(rewrites: Collection[str]) -> Iterator[None]:
    """Trace for XLA with these rewrites until the scope is left.

    Without one of them, a step is traced as it was before that rewrite existed.
    """
    step_graph = tf.compat.v1.get_default_graph()

    def is_free() -> bool:
        return _is_part_of(step_graph)

    with contextlib.ExitStack() as scopes:
        if "recurrent" in rewrites:
            scopes.enter_context(recurrent.recurrent_layers_at_once(is_free))
        if random_algorithm.is_available() and not _has_gpu():
            algorithm = "threefry" if "threefry" in rewrites else "philox"
            scopes.enter_context(random_algorithm.drawing_by(algorithm, is_free))
        yield


def _has_gpu() -> bool:
    return bool(tf.config.list_physical_devices("GPU"))


@uses("tensorflow.__internal__.FuncGraph")
def _is_part_of(step_graph: object) -> bool:
    """Return whether what is traced now is traced for XLA, and for nothing else.

    A step may run operations at once (`tf.init_scope`, to make a variable), and TensorFlow keeps
    the trace of a `tf.function` in a step for whoever calls it next, with or without XLA. Branches
    and loops belong to the graph that they are in.
    """
    graph = tf.compat.v1.get_default_graph()
    while graph is not step_graph:
        if graph is None or type(graph) is tf.__internal__.FuncGraph:
            return False
        graph = getattr(graph, "outer_graph", None)
    return True
