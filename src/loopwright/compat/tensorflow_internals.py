"""Graphs: how a step becomes one, what it captures, how it draws under XLA."""

import contextlib
import functools
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.python.client import device_lib
from tensorflow.python.framework import auto_control_deps_utils, op_def_registry
from tensorflow.python.ops import random_ops_util

from loopwright.errors import LoopwrightError


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Sets an attribute, and what it was again when the scope is left, by an error too."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


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


def iterator_state(iterator: Any) -> Any:
    """The place of a `tf.data` iterator, shuffle buffers included, as a tensor that can be saved.

    Raises an error of TensorFlow if the pipeline holds state that it cannot save.
    If this moves: streams have no place; `tf.train.Checkpoint` saves them too.
    """
    fails = 2  # tf.data.experimental.ExternalStatePolicy.FAIL
    resource = iterator._iterator_resource
    return tf.raw_ops.SerializeIterator(resource_handle=resource, external_state_policy=fails)


def restore_iterator(iterator: Any, state: Any) -> None:
    """Puts an iterator over the same pipeline to where `iterator_state` was taken.

    If this moves: streams cannot go on where they were (tested).
    """
    with tf.device("CPU:0"):
        tf.raw_ops.DeserializeIterator(
            resource_handle=iterator._iterator_resource, serialized=state
        )


def holds_failure(state: Any) -> bool:
    """Whether an iterator had read ahead and failed. If this moves: it fails again (tested)."""
    text = tf.io.serialize_tensor(state).numpy()
    return bool(re.search(rb"Iterator::Root::[ -~]*(error_message|status_msg)", text))


@dataclass(frozen=True)
class PipelinePart:
    """One dataset of a pipeline, by what it keeps to itself.

    If this moves: pipelines that cannot be resumed are no longer refused (tested).
    """

    dataset: Any
    kind: str
    inputs: list[Any]
    seeds: tuple[int, int] | None
    """Both 0: TensorFlow draws others in every process."""
    draws_each_pass: bool
    is_ordered: bool
    is_stateful: bool
    stops_on_empty: bool
    operations: set[str]
    """The kinds of all that its functions do."""
    tensors: list[Any]
    file: str
    functions: list[Any]
    """The Python functions it was given."""


def pipeline_parts(dataset: tf.data.Dataset) -> list[PipelinePart]:
    """The datasets that a pipeline is made of, each before what it reads from."""
    seen, todo = list[Any](), [dataset]
    while todo:
        part = todo.pop()
        if not any(part is other for other in seen):
            seen.append(part)
            todo += part._inputs()
    return [_pipeline_part(part) for part in seen]


def pipeline_graphs(dataset: tf.data.Dataset) -> list[Any]:
    """Return the graphs of a pipeline's functions.

    If this moves: an error inside of them is told without its line (tested).
    """
    parts = pipeline_parts(dataset)
    return [function.function.graph for part in parts for function in part.dataset._functions()]


def _pipeline_part(part: Any) -> PipelinePart:
    kind = type(part).__name__.strip("_").removesuffix("Dataset")
    seeds = (part._seed, part._seed2) if hasattr(part, "_seed2") else None
    is_ordered = getattr(part, "_deterministic", "") != "false"
    graphs = [function.function.graph.as_graph_def() for function in part._functions()]
    if kind == "Variant" or "ParallelInterleave" in kind:  # these do not keep what they were told
        variant = tf.data.experimental.to_variant(part)
        text = tf.raw_ops.DatasetToGraphV2(input_dataset=variant, external_state_policy=1)
        graphs.append(tf.compat.v1.GraphDef.FromString(text.numpy()))
    nodes = [node for graph in graphs for node in graph.node]
    nodes += [n for graph in graphs for f in graph.library.function for n in f.node_def]
    definitions = map(op_def_registry.get, {node.op for node in nodes})
    return PipelinePart(
        dataset=part,
        kind=kind,
        inputs=part._inputs(),
        seeds=None if seeds is None else (int(seeds[0]), int(seeds[1])),
        draws_each_pass=(kind == "Shuffle" and part._reshuffle_each_iteration is not False)
        or (kind == "Random" and bool(part._rerandomize)),
        is_ordered=is_ordered and all(node.attr["deterministic"].s != b"false" for node in nodes),
        is_stateful=any(definition and definition.is_stateful for definition in definitions),
        stops_on_empty=getattr(part, "_stop_on_empty_dataset", True),
        operations={node.op for node in nodes},
        tensors=getattr(part, "_tensors", []),
        file=part._filename.numpy().decode() if kind == "Cache" else "",
        functions=[f._func for f in part._functions() if hasattr(f, "_func")],
    )


def gpu_memory_bytes() -> int | None:
    """The memory of the smallest GPU; None if there is none.

    If this moves: the memory of the host counts.
    """
    if not tf.config.list_physical_devices("GPU"):
        return None
    limits = [d.memory_limit for d in device_lib.list_local_devices() if d.device_type == "GPU"]
    return min(limits, default=None)


def workers(strategy: tf.distribute.Strategy) -> tuple[int, int]:
    """How many processes train under a strategy, and which of them this is.

    If this moves: each worker would take itself for the only one, and wait for the others (tested).
    """
    extended = strategy.extended
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return 1, 0
    return extended._num_workers, extended._id_in_cluster


def replica_numbers(variable: Any) -> tuple[range, int]:
    """Which replicas of a variable this process holds, and how many there are in all processes."""
    if not isinstance(variable, tf.distribute.DistributedValues):
        return range(1), 1
    strategy = variable.distribute_strategy
    held = len(strategy.experimental_local_results(variable))
    first = workers(strategy)[1] * held
    return range(first, first + held), strategy.num_replicas_in_sync


def mirrored_strategy(devices: list[str] | None = None) -> tf.distribute.Strategy:
    """A `MirroredStrategy` beside any others in this process.

    Each numbers its collectives from the same start, and the second one meets those of the first.
    If this moves: a second strategy in a process fails with a shape mismatch of collectives.
    """
    tf.distribute.MirroredStrategy._collective_key_base += 100_000
    return tf.distribute.MirroredStrategy(devices)


def inner_graphs(op: Any) -> list[Any]:
    """Return the graphs an operation calls: branches, loop bodies, a `tf.function`.

    If this moves: constants and resources inside branches, loops and `tf.function`s go unseen
    (tested).
    """
    names: list[str] = []
    for attribute, is_list in _function_attributes(op):
        value = op.get_attr(attribute)
        names += [function.name for function in (value if is_list else [value])]
    graphs = [getattr(op.graph._get_function(name), "graph", None) for name in names if name]
    return [graph for graph in graphs if graph is not None]


def inner_inputs(op: Any, inner: Any) -> list[tuple[Any, Any]]:
    """Return pairs of an operation's inputs and the placeholders for them in a graph it calls.

    They are matched from the end: captured values come last, and the condition of a branch is
    not passed on.
    """
    return list(zip(reversed(list(op.inputs)), reversed(list(inner.inputs)), strict=False))


def captured_values(graph: Any) -> dict[str, Any]:
    """Return the eager tensors a graph captured, by the names of their placeholders.

    If this moves: nobody is told that a step captured an array or a queue (tested).
    """
    eager = tf.__internal__.EagerTensor
    return {inner.name: outer for outer, inner in graph.captures if isinstance(outer, eager)}


_known: dict[str, Sequence[tuple[str, bool]]] = {}


def _function_attributes(op: Any) -> Sequence[tuple[str, bool]]:
    """Names of attributes that hold functions, and whether they hold several."""
    if op.type not in _known:  # a definition is copied each time it is asked for
        kinds = {"func": False, "list(func)": True}
        held = [(attribute.name, attribute.type) for attribute in op.op_def.attr]
        _known[op.type] = [(name, kinds[kind]) for name, kind in held if kind in kinds]
    return _known[op.type]


@contextlib.contextmanager
def watching_tapes() -> Iterator[list[tuple[Any, Any]]]:
    """Note the targets and sources of each `tape.gradient`, unless it weighs the targets itself.

    If this moves: the guard against a loss that was not reduced says nothing (tested).
    """
    original, seen = tf.GradientTape.gradient, list[tuple[Any, Any]]()

    @functools.wraps(original)
    def gradient(
        self: Any, target: Any, sources: Any, output_gradients: Any = None, **kwargs: Any
    ) -> Any:
        if output_gradients is None:
            seen.append((target, sources))
        return original(self, target, sources, output_gradients, **kwargs)

    with replaced(tf.GradientTape, "gradient", gradient):
        yield seen
