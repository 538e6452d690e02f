"""Internals of TensorFlow: graphs, pipelines, devices."""

import contextlib
import functools
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from loopwright.compat import internals
from loopwright.compat.internals import observed, uses
from loopwright.errors import LoopwrightError

# Inside our own graphs AutoGraph is off, and would refuse to convert what they call.
_OUTSIDE_ANY_GRAPH = tf.__internal__.autograph.control_status_ctx()


@uses("tensorflow.__internal__.autograph.tf_convert")
def autograph(function: Callable[..., Any]) -> Callable[..., Any]:
    """Turn `if` and `while` on tensors in a user's step into graph operations.

    A nested `tf.function` would do it too, but `merge_call` is refused inside one.
    """
    convert = tf.__internal__.autograph.tf_convert
    converted = convert(function, _OUTSIDE_ANY_GRAPH, user_requested=True)

    def call(*args: Any) -> Any:
        try:
            return converted(*args)
        except Exception as error:
            # AutoGraph makes an exception of its own from one whose class it does not know.
            if isinstance(error.__context__, LoopwrightError):
                raise error.__context__ from None
            raise

    return call


@uses("tensorflow.__internal__.FuncGraph")
@contextlib.contextmanager
def scratch_graph() -> Iterator[Any]:
    """Open a graph to trace into and throw away.

    `tf.function` would trace a second time when the first trace creates variables.
    """
    graph = tf.__internal__.FuncGraph("loopwright_build")
    with graph.as_default():
        yield graph


@uses(
    "tensorflow.python.eager.def_function.Function._omit_frequent_tracing_warning",
    if_moved="TensorFlow warns of retracing",
)
def compiled(
    function: Callable[..., Any], input_signature: Any = None, *, xla: bool = False
) -> Callable[..., Any]:
    """Return a `tf.function` that does not warn that functions from one line are traced often.

    Every trainer creates its own loop from the same line.
    """
    graph_function = tf.function(
        function, input_signature, autograph=False, jit_compile=xla or None
    )
    graph_function._omit_frequent_tracing_warning = True
    return graph_function


@uses(
    "tensorflow.python.eager.function.ConcreteFunction._call_flat",
    if_moved="XLA compiles at the first step, which takes longer",
)
def run_on_copies(concrete: Any, arguments: Any) -> None:
    """Call a traced function on temporary copies of the variables it holds.

    An XLA step inside a loop is compiled when it first runs: this compiles it without an effect on
    the training.
    """
    call = getattr(concrete, "_call_flat", lambda *_: None)
    own = {id(variable.handle): variable for variable in concrete.graph.variables}
    copies = {
        key: tf.Variable(variable.read_value(), trainable=False, dtype=variable.dtype)
        for key, variable in own.items()
    }
    captured = [
        copies[id(value)].handle if id(value) in copies else value
        for value in concrete.captured_inputs
    ]
    call(tf.nest.flatten(arguments, expand_composites=True), captured)


@uses(
    "tensorflow.__internal__.FuncGraph._watched_variables",
    if_moved="a step that uses variables outside of the task is not refused: keep them in the task",
)
def captured_variables(graph: Any) -> list[Any]:
    """Return the variables that a scratch graph and its functions use; handles if only written."""
    watched = getattr(graph, "_watched_variables", None)
    if watched is None:
        return []
    by_handle = {
        id(v.handle): v
        for v in watched
        if isinstance(v, tf.Variable) and not isinstance(v, tf.distribute.DistributedValues)
    }
    handles = [tensor for tensor in graph.external_captures if tensor.dtype == tf.resource]
    return [by_handle.get(id(handle), handle) for handle in handles if is_variable_handle(handle)]


@uses("tensorflow.python.framework.ops.EagerTensor._handle_data", if_moved="not refused")
def is_variable_handle(handle: Any) -> bool:
    """Return whether a resource is a variable; tables, queues and iterators are resources too.

    Only variables record the dtype and shape of what they hold.
    """
    return getattr(handle, "_handle_data", None) is not None


@uses(
    "tensorflow.python.framework.auto_control_deps_utils.get_read_write_resource_inputs",
    if_moved="a metric that no step updates is reported as 0, without a warning",
)
def written_handles(graph: Any) -> set[int] | None:
    """Return the ids of variables' handles that a scratch graph may change, in functions too."""
    utils = "tensorflow.python.framework.auto_control_deps_utils"
    inputs_of = internals.find(f"{utils}.get_read_write_resource_inputs")
    if inputs_of is None:
        return None
    pairs = zip(graph.internal_captures, graph.external_captures, strict=True)
    handles = {id(inner): id(outer) for inner, outer in pairs}
    written = [tensor for op in graph.get_operations() for tensor in inputs_of(op)[1]]
    return {handles[id(tensor)] for tensor in written if id(tensor) in handles}


def captures_of(graph: Any, handles: Collection[int]) -> list[Any]:
    """Return the placeholders in a scratch graph for the variables with these handles."""
    pairs = zip(graph.internal_captures, graph.external_captures, strict=True)
    return [inner for inner, outer in pairs if id(outer) in handles]


@uses("tensorflow.python.data.ops.iterator_ops.OwnedIterator._iterator_resource")
def iterator_state(iterator: Any) -> Any:
    """Return the position of a `tf.data` iterator, shuffle buffers included, as a tensor.

    Raises an error of TensorFlow if the pipeline holds state that cannot be saved.
    """
    fails = 2  # tf.data.experimental.ExternalStatePolicy.FAIL
    resource = iterator._iterator_resource
    return tf.raw_ops.SerializeIterator(resource_handle=resource, external_state_policy=fails)


@uses("tensorflow.python.data.ops.iterator_ops.OwnedIterator._iterator_resource")
def restore_iterator(iterator: Any, state: Any) -> None:
    """Move an iterator over the same pipeline to the position of `iterator_state`."""
    with tf.device("CPU:0"):
        tf.raw_ops.DeserializeIterator(
            resource_handle=iterator._iterator_resource, serialized=state
        )


def holds_failure(state: Any) -> bool:
    """Return whether an iterator had prefetched data that failed."""
    text = tf.io.serialize_tensor(state).numpy()
    return bool(re.search(rb"Iterator::Root::[ -~]*(error_message|status_msg)", text))


@dataclass(frozen=True)
class PipelinePart:
    """One dataset of a pipeline, with the settings that it does not publish."""

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
    """The kinds of all operations in its functions."""
    tensors: list[Any]
    file: str
    functions: list[Any]
    """The Python functions it was given."""
    graphs: list[Any]
    """The graphs of these functions."""


@uses("tensorflow.data.Dataset._inputs", "tensorflow.data.Dataset._functions")
def pipeline_parts(dataset: tf.data.Dataset) -> list[PipelinePart]:
    """Return the datasets that a pipeline is made of, each before what it reads from."""
    seen, todo = list[Any](), [dataset]
    while todo:
        part = todo.pop()
        if not any(part is other for other in seen):
            seen.append(part)
            todo += part._inputs()
    return [_pipeline_part(part) for part in seen]


@uses("tensorflow.python.ops.stateful_random_ops.global_generator", if_moved="not put back")
def global_generator() -> tf.Variable | None:
    """Return the state of TensorFlow's global generator; None if the program has made none.

    `tf.random.get_global_generator()` would make one, which is refused with op determinism.
    """
    module = internals.module("tensorflow.python.ops.stateful_random_ops")
    generator = getattr(module, "global_generator", None)
    return None if generator is None else generator.state


@uses("tensorflow.python.eager.context.Context._rng", if_moved="rehearsals consume seeds")
def hold_operation_seeds() -> Callable[[], None]:
    """Hold the generator of the seeds that `tf.random.set_seed` gives to eager operations.

    Return a function that puts it back, if it was used.
    """
    current = internals.find("tensorflow.python.eager.context.context")
    context: Any = current and current()
    own = getattr(context, "_rng", None)
    state = None if own is None else own.getstate()

    def put_back() -> None:
        if own is not None and own.getstate() != state:
            own.setstate(state)
            context.clear_kernel_cache()  # it has operations that have drawn by these seeds

    return put_back


@uses(
    "tensorflow.python.data.ops.shuffle_op._ShuffleDataset._seed",
    "tensorflow.python.data.ops.shuffle_op._ShuffleDataset._seed2",
    "tensorflow.python.data.ops.shuffle_op._ShuffleDataset._reshuffle_each_iteration",
    "tensorflow.python.data.ops.random_op._RandomDataset._rerandomize",
    "tensorflow.python.data.ops.map_op._ParallelMapDataset._deterministic",
    "tensorflow.python.data.ops.directed_interleave_op._DirectedInterleaveDataset._stop_on_empty_dataset",
    "tensorflow.python.data.ops.from_tensors_op._TensorDataset._tensors",
    "tensorflow.python.data.ops.cache_op.CacheDataset._filename",
    "tensorflow.python.data.ops.structured_function.StructuredFunctionWrapper._func",
    if_moved="such a pipeline is resumed without a warning, and may give other batches",
)
def _pipeline_part(part: Any) -> PipelinePart:
    kind = type(part).__name__.strip("_").removesuffix("Dataset")
    seeds = (part._seed, part._seed2) if hasattr(part, "_seed2") else None
    is_ordered = getattr(part, "_deterministic", "") != "false"
    file = getattr(part, "_filename", None) if kind == "Cache" else None
    traced = [function.function.graph for function in part._functions()]
    graphs = [graph.as_graph_def() for graph in traced]
    if kind == "Variant" or "ParallelInterleave" in kind:  # these do not keep their arguments
        variant = tf.data.experimental.to_variant(part)
        text = tf.raw_ops.DatasetToGraphV2(input_dataset=variant, external_state_policy=1)
        graphs.append(tf.compat.v1.GraphDef.FromString(text.numpy()))
    nodes = [node for graph in graphs for node in graph.node]
    nodes += [n for graph in graphs for f in graph.library.function for n in f.node_def]
    definitions = map(_definition_of, {node.op for node in nodes})
    reshuffles = getattr(part, "_reshuffle_each_iteration", True) is not False
    return PipelinePart(
        dataset=part,
        kind=kind,
        inputs=part._inputs(),
        seeds=None if seeds is None else (int(seeds[0]), int(seeds[1])),
        draws_each_pass=(kind == "Shuffle" and reshuffles)
        or (kind == "Random" and bool(getattr(part, "_rerandomize", True))),
        is_ordered=is_ordered and all(node.attr["deterministic"].s != b"false" for node in nodes),
        is_stateful=any(definition and definition.is_stateful for definition in definitions),
        stops_on_empty=getattr(part, "_stop_on_empty_dataset", True),
        operations={node.op for node in nodes},
        tensors=getattr(part, "_tensors", []),
        file="" if file is None else file.numpy().decode(),
        functions=[f._func for f in part._functions() if hasattr(f, "_func")],
        graphs=traced,
    )


@uses(
    "tensorflow.python.client.device_lib.list_local_devices",
    if_moved="the memory of the host decides whether data is kept on the GPU",
)
def gpu_memory_bytes() -> int | None:
    """Return the memory of the smallest GPU; None if there is none."""
    if not tf.config.list_physical_devices("GPU"):
        return None
    devices = internals.find("tensorflow.python.client.device_lib.list_local_devices") or list
    return min((d.memory_limit for d in devices() if d.device_type == "GPU"), default=None)


def workers(strategy: tf.distribute.Strategy) -> tuple[int, int]:
    """Return how many processes train under a strategy, and the index of this one."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return 1, 0
    resolver = strategy.cluster_resolver
    jobs = resolver.cluster_spec().as_dict()
    counts = {job: len(jobs[job]) for job in ("chief", "worker") if job in jobs}
    before = counts.get("chief", 0) if resolver.task_type == "worker" else 0
    return max(1, sum(counts.values())), before + (resolver.task_id or 0)


@uses(
    "tensorflow.distribute.MirroredStrategy._collective_key_base",
    if_moved="a second MirroredStrategy in a process fails with a shape mismatch of collectives",
)
def mirrored_strategy(devices: list[str] | None = None) -> tf.distribute.Strategy:
    """Return a `MirroredStrategy` that works next to others in this process.

    Each numbers its collectives from the same start: a second one would collide with the first.
    """
    kind = tf.distribute.MirroredStrategy
    if hasattr(kind, "_collective_key_base"):
        kind._collective_key_base += 100_000
    return kind(devices)


@uses(
    "tensorflow.Graph._get_function",
    if_moved="guards do not see what is inside of branches, loops and tf.functions",
)
def inner_graphs(op: Any) -> list[Any]:
    """Return the graphs an operation calls: branches, loop bodies, a `tf.function`."""
    names: list[str] = []
    for attribute, kind in _function_attributes(op.type).items():
        value = op.get_attr(attribute)
        names += [function.name for function in (value if kind == "list(func)" else [value])]
    function_of = getattr(op.graph, "_get_function", lambda _: None)
    graphs = [getattr(function_of(name), "graph", None) for name in names if name]
    return [graph for graph in graphs if graph is not None]


def is_function(operation: str) -> bool:
    """Return whether the type of a node is the name of a `tf.function`, which counts up."""
    return operation.startswith("__")


def has_own_state(operation: str) -> bool:
    """Return whether operations of this type draw from a state, print, or call Python.

    Those on variables do not count, nor do assertions and calls: what they call does.

    >>> has_own_state("RandomUniform"), has_own_state("PrintV2"), has_own_state("AssignVariableOp")
    (True, True, False)
    """
    definition = _definition_of(operation)
    if definition is None or not definition.is_stateful or operation == "Assert":
        return False
    resource = tf.resource.as_datatype_enum
    is_of_variables = any(each.type == resource for each in definition.input_arg)
    return not (is_of_variables or _function_attributes(operation))


# Made here and not while a step is traced: each graph takes a number of those that name functions.
_EMPTY_GRAPH = tf.Graph()


@functools.cache
def _definition_of(operation: str) -> Any:
    """Return the definition of a type of operations; None for the name of a `tf.function`."""
    try:
        return _EMPTY_GRAPH.op_def_for_type(operation)
    except RuntimeError:
        return None


def inner_inputs(op: Any, inner: Any) -> list[tuple[Any, Any]]:
    """Return pairs of an operation's inputs and the placeholders for them in a graph it calls.

    They are matched from the end: captured values come last, and the condition of a branch is
    not passed on.
    """
    return list(zip(reversed(list(op.inputs)), reversed(list(inner.inputs)), strict=False))


def captured_values(graph: Any) -> dict[str, Any]:
    """Return the eager tensors a graph captured, by the names of their placeholders."""
    pairs = [(outer, inner) for outer, inner in graph.captures if isinstance(outer, tf.Tensor)]
    return {inner.name: outer for outer, inner in pairs if not tf.is_symbolic_tensor(outer)}


@functools.cache
def _function_attributes(operation: str) -> dict[str, str]:
    """Return the attributes that hold functions, and whether they are a `func` or a list."""
    held = getattr(_definition_of(operation), "attr", ())
    return {each.name: each.type for each in held if each.type in ("func", "list(func)")}


@uses("tensorflow.GradientTape.gradient")
@contextlib.contextmanager
def watching_tapes() -> Iterator[list[tuple[Any, Any]]]:
    """Record the targets and sources of each `tape.gradient` without `output_gradients`."""
    seen = list[tuple[Any, Any]]()

    def note(
        _: Any, tape: Any, target: Any, sources: Any, output_gradients: Any = None, **kwargs: Any
    ) -> None:
        if output_gradients is None:
            seen.append((target, sources))

    with observed(tf.GradientTape, "gradient", note):
        yield seen
