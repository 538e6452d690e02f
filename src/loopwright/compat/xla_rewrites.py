"""What is changed in a step while it is traced for XLA: random numbers, recurrent layers.

A plan names its rewrites, because they change bits: a run that is resumed follows its record.
Without one of them, a step is traced as it was before that rewrite existed.
"""

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator
from typing import Any, Literal

import tensorflow as tf

from loopwright.compat import internals, recurrent
from loopwright.compat.internals import uses
from loopwright.compat.patches import replaced

random_ops_util = internals.module("tensorflow.python.ops.random_ops_util")
_FUNCTION_GRAPH = tf.__internal__.FuncGraph


def available() -> tuple[Literal["threefry", "recurrent"], ...]:
    """Return the rewrites that apply on this machine, in the order of a plan.

    >>> available()
    ('threefry', 'recurrent')
    """
    has_layers = recurrent.slow_recurrent_layers() is None and not _has_gpu()
    return (*(("threefry",) if _draws_by_name() else ()), *(("recurrent",) if has_layers else ()))


@contextlib.contextmanager
def applied(rewrites: Collection[str]) -> Iterator[None]:
    """Trace for XLA with these rewrites until the scope is left."""
    with contextlib.ExitStack() as scopes:
        if "recurrent" in rewrites:
            is_free = functools.partial(_is_part_of, tf.compat.v1.get_default_graph())
            scopes.enter_context(recurrent.recurrent_layers_at_once(is_free))
        if _draws_by_name():
            scopes.enter_context(_drawing_by("threefry" if "threefry" in rewrites else "philox"))
        yield


def notes() -> list[str]:
    """Return what a record of plans says about rewrites that internals have moved away from."""
    return [note for note in (slow_random_numbers(), recurrent.slow_recurrent_layers()) if note]


def slow_random_numbers() -> str | None:
    """Return a note for plans if there is no function to choose the algorithm in."""
    if hasattr(random_ops_util, "get_key_counter_alg"):
        return None
    return (
        f"random numbers inside XLA are drawn slowly: TensorFlow {tf.__version__} has moved "
        "get_key_counter_alg"
    )


def _draws_by_name() -> bool:
    """Return whether the algorithm is chosen here: on a CPU, where XLA's own choice is slow."""
    return hasattr(random_ops_util, "get_key_counter_alg") and not _has_gpu()


def _has_gpu() -> bool:
    return bool(tf.config.list_physical_devices("GPU"))


@uses("tensorflow.python.ops.random_ops_util.get_key_counter_alg", if_moved="slower")
@contextlib.contextmanager
def _drawing_by(algorithm: Literal["philox", "threefry"]) -> Iterator[None]:
    """Draw random numbers by an algorithm where the step leaves it open.

    Keras asks for `auto_select`, which gives the numbers of Philox under XLA on a CPU and takes
    about thirty times as long. Threefry gives other numbers, faster still.
    """
    util: Any = random_ops_util
    step_graph = tf.compat.v1.get_default_graph()

    def by_name(original: Callable[..., Any]) -> Callable[..., Any]:
        def choose(seed: Any, alg: Any) -> Any:
            if alg not in (None, "auto_select", util.Algorithm.AUTO_SELECT):
                return original(seed, alg)
            seed = tf.convert_to_tensor(seed)
            is_free = _is_part_of(step_graph) and _fits_threefry(seed)
            return original(seed, algorithm if is_free else "philox")

        return choose

    with replaced(util, "get_key_counter_alg", by_name):
        yield


def _fits_threefry(seed: Any) -> bool:
    """Return whether a seed keeps its meaning: Threefry takes the lower 32 bits of each number.

    What is drawn by a constant seed is computed once, by kernels that only Philox has.
    """
    return seed.dtype.size == 4 and tf.get_static_value(seed) is None


def _is_part_of(step_graph: Any) -> bool:
    """Return whether what is traced now is traced for XLA, and for nothing else.

    Threefry has no kernel outside XLA. A step may run operations at once (`tf.init_scope`, to make
    a variable), and TensorFlow keeps the trace of a `tf.function` in a step for whoever calls it
    next, with or without XLA. Branches and loops belong to the graph that they are in.
    """
    graph: Any = tf.compat.v1.get_default_graph()
    while graph is not step_graph:
        if graph is None or type(graph) is _FUNCTION_GRAPH:
            return False
        graph = getattr(graph, "outer_graph", None)
    return True
