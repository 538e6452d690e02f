"""Graphs: how a step becomes one, what it captures, how it draws under XLA."""

import contextlib
from collections.abc import Callable, Collection, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import auto_control_deps_utils
from tensorflow.python.ops import random_ops_util

from loopwright.adaptations.replacement import replaced
from loopwright.errors import LoopwrightError

# Inside our own graphs AutoGraph is off, and would refuse to convert what they call.
_OUTSIDE_ANY_GRAPH = tf.__internal__.autograph.control_status_ctx()


def autograph(function: Callable[..., Any]) -> Callable[..., Any]:
    """Lets `if` and `while` on tensors in a person's step become graph operations.

    A nested `tf.function` would do it too, but `merge_call` is refused inside one.
    If this moves: steps would have to be written with `tf.cond`.
    """
    api = tf.__internal__.autograph
    converted = api.tf_convert(function, _OUTSIDE_ANY_GRAPH, user_requested=True)

    def call(*args: Any) -> Any:
        try:
            return converted(*args)
        except Exception as error:
            # AutoGraph makes an exception of its own from one whose class it does not know.
            if isinstance(error.__context__, LoopwrightError):
                raise error.__context__ from None
            raise

    return call


@contextlib.contextmanager
def scratch_graph() -> Iterator[Any]:
    """A graph to trace into and throw away.

    `tf.function` would trace a second time when the first trace creates variables.
    If this moves: no step can be built (tested).
    """
    graph = tf.__internal__.FuncGraph("loopwright_build")
    with graph.as_default():
        yield graph


def compiled(
    function: Callable[..., Any], input_signature: Any = None, *, xla: bool = False
) -> Callable[..., Any]:
    """`tf.function`, without its warning that functions from one line of code are traced often.

    Every trainer brings its own loop, all from the same line. If this moves: the warning is back.
    """
    graph_function = tf.function(
        function, input_signature, autograph=False, jit_compile=xla or None
    )
    graph_function._omit_frequent_tracing_warning = True
    return graph_function


def run_on_copies(concrete: Any, arguments: Any) -> None:
    """Calls a traced function on copies of the variables it holds, which are then thrown away.

    An XLA step inside a loop is compiled when it first runs: this runs it without a trace.
    If this moves: it is compiled at its first real step.
    """
    own = {id(variable.handle): variable for variable in concrete.graph.variables}
    copies = {
        key: tf.Variable(variable.read_value(), trainable=False, dtype=variable.dtype)
        for key, variable in own.items()
    }
    captured = [
        copies[id(value)].handle if id(value) in copies else value
        for value in concrete.captured_inputs
    ]
    concrete._call_flat(tf.nest.flatten(arguments, expand_composites=True), captured)


def captured_variables(graph: Any) -> list[Any]:
    """The variables that a scratch graph and its functions use; bare handles if only written.

    If this moves: nobody is told that a step uses variables which no checkpoint holds.
    """
    watched = [v for v in graph._watched_variables if isinstance(v, tf.Variable)]
    by_handle = {
        id(v.handle): v for v in watched if not isinstance(v, tf.distribute.DistributedValues)
    }
    handles = [tensor for tensor in graph.external_captures if tensor.dtype == tf.resource]
    # Lookup tables and iterators are resources too, without a dtype and shape of their own.
    handles = [handle for handle in handles if getattr(handle, "_handle_data", None) is not None]
    return [by_handle.get(id(handle), handle) for handle in handles]


def written_handles(graph: Any) -> set[int] | None:
    """The ids of the variables' handles that a scratch graph may change, in its functions too.

    If this moves: None, and a metric that no step updates is reported as 0 again.
    """
    inputs_of = getattr(auto_control_deps_utils, "get_read_write_resource_inputs", None)
    if inputs_of is None:
        return None
    pairs = zip(graph.internal_captures, graph.external_captures, strict=True)
    handles = {id(inner): id(outer) for inner, outer in pairs}
    written = [tensor for op in graph.get_operations() for tensor in inputs_of(op)[1]]
    return {handles[id(tensor)] for tensor in written if id(tensor) in handles}


def captures_of(graph: Any, handles: Collection[int]) -> list[Any]:
    """The tensors by which a scratch graph knows the variables with these handles."""
    pairs = zip(graph.internal_captures, graph.external_captures, strict=True)
    return [inner for inner, outer in pairs if id(outer) in handles]


@contextlib.contextmanager
def random_numbers_for_xla() -> Iterator[None]:
    """Draws random numbers with Philox by name while an XLA step is traced, on a CPU.

    All that Keras draws asks for `auto_select`, which gives the same numbers under XLA on a CPU and
    takes some thirty times as long. If this moves: random layers are as slow as they were.
    """
    original = getattr(random_ops_util, "get_key_counter_alg", None)
    if original is None or tf.config.list_physical_devices("GPU"):
        yield
        return

    def by_name(seed: Any, alg: Any) -> Any:
        is_open = alg in (None, "auto_select", random_ops_util.Algorithm.AUTO_SELECT)
        return original(seed, "philox" if is_open else alg)

    with replaced(random_ops_util, "get_key_counter_alg", by_name):
        yield


def slow_random_numbers() -> str | None:
    """A note for plans, where `random_numbers_for_xla` finds nothing to adapt."""
    if hasattr(random_ops_util, "get_key_counter_alg"):
        return None
    return (
        f"random numbers inside XLA are drawn slowly: TensorFlow {tf.__version__} has moved "
        "get_key_counter_alg"
    )
