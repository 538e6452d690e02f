"""The only place that touches internals of Keras and TensorFlow.

Each adaptation is scoped, has a test that fails when the internal moves (`test_adaptations.py`),
and says what happens then.
"""

import contextlib
import dis
import functools
import inspect
import os
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf
from keras.src.losses import loss as keras_loss
from tensorflow.python.client import device_lib
from tensorflow.python.framework import op_def_registry
from tensorflow.python.ops import random_ops_util

from loopwright.errors import LoopwrightError, StepError, message

# Inside our own graphs AutoGraph is off, and would refuse to convert what they call.
_OUTSIDE_ANY_GRAPH = tf.__internal__.autograph.control_status_ctx()

_FAR_APART = 0x61C88647
"""Between the seeds of two replicas: people take small numbers, one after the other."""


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


def gpu_memory_bytes() -> int | None:
    """The memory of the smallest GPU; None if there is none.

    If this moves: the memory of the host counts.
    """
    if not tf.config.list_physical_devices("GPU"):
        return None
    limits = [d.memory_limit for d in device_lib.list_local_devices() if d.device_type == "GPU"]
    return min(limits, default=None)


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

    with _replaced(random_ops_util, "get_key_counter_alg", by_name):
        yield


def slow_random_numbers() -> str | None:
    """A note for plans, where `random_numbers_for_xla` finds nothing to adapt."""
    if hasattr(random_ops_util, "get_key_counter_alg"):
        return None
    return (
        f"random numbers inside XLA are drawn slowly: TensorFlow {tf.__version__} has moved "
        "get_key_counter_alg"
    )


@contextlib.contextmanager
def losses_as_for_one_device() -> Iterator[None]:
    """Stops Keras loss objects from dividing by the number of replicas.

    Gradients are weighted by examples when they are reduced, so that plain functions, Keras
    losses and regularisation all count the same. If this moves: Keras losses weigh too little
    with several replicas, which `tests/test_strategies.py` shows.
    """
    with (
        _replaced(keras_loss, "scale_loss_for_distribution", lambda value: value),
        _replaced(keras_loss, "unscale_loss_for_distribution", lambda value: value),
    ):
        yield


@contextlib.contextmanager
def replicas_draw_apart(count: int) -> Iterator[None]:
    """Has each of `count` replicas draw random numbers of its own from a `SeedGenerator`.

    Keras gives every replica a copy of one seed: all would drop the same units, and a GAN would
    see as many times less noise. The copies stay equal, so that they mean the same to any number
    of replicas; the first one draws what one device draws. If this moves: replicas draw the same
    numbers again (tested).
    """
    if count == 1:
        yield
        return
    owner = keras.random.SeedGenerator
    drawn = owner.next

    def apart(self: Any, *args: Any, **kwargs: Any) -> Any:
        seed, context = drawn(self, *args, **kwargs), tf.distribute.get_replica_context()
        if context is None:
            return seed
        number = tf.cast(context.replica_id_in_sync_group, seed.dtype) % count
        return seed + tf.stack([number * _FAR_APART, tf.zeros_like(number)])

    with _replaced(owner, "next", apart):
        yield


@contextlib.contextmanager
def optimizers_reduce_nothing() -> Iterator[None]:
    """Takes the sum over replicas out of Keras optimizers while a step is traced.

    With one replica there is nothing to sum, but TensorFlow registers a gradient for the sum that
    it keeps for ever, and with it the whole graph. With several, `minimize` has summed already.
    If this moves: memory grows with each trainer, and updates are as many times too large as
    there are replicas (both tested).
    """
    name = "_all_reduce_sum_gradients"
    with _replaced(_defining_class(name), name, lambda self, pairs: list(pairs)):
        yield


@contextlib.contextmanager
def plain_apply_refused() -> Iterator[Callable[[], contextlib.AbstractContextManager[None]]]:
    """Refuses `optimizer.apply` in a step, because nobody would divide by the number of replicas.

    Yields a context manager inside which it is allowed: for gradients that are reduced.
    """
    allowed = 0

    def refusing(apply: Callable[..., Any]) -> Callable[..., Any]:
        def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not allowed:
                raise StepError(_own_apply(type(self).__name__))
            return apply(self, *args, **kwargs)

        return checked

    @contextlib.contextmanager
    def reduced() -> Iterator[None]:
        nonlocal allowed
        allowed += 1
        try:
            yield
        finally:
            allowed -= 1

    owners = {_defining_class("apply"), keras.optimizers.LossScaleOptimizer}
    with contextlib.ExitStack() as stack:
        for owner in owners:
            stack.enter_context(_replaced(owner, "apply", refusing(vars(owner)["apply"])))
        yield reduced


def _own_apply(optimizer: str) -> str:
    return message(
        f"The step calls {optimizer}.apply itself, with several replicas.",
        expected="self.minimize(...) or self.apply(...), which average over replicas",
        received="optimizer.apply or optimizer.apply_gradients",
        do="write self.apply(gradients, variables, optimizer)",
    )


@contextlib.contextmanager
def without_accumulation(optimizer: keras.optimizers.Optimizer) -> Iterator[None]:
    """Makes one `apply` of an accumulating optimizer an ordinary update.

    Keras' own accumulation branches inside a replica, which `tf.distribute` refuses. Its
    `iterations` must go on counting updates, not calls: Adam and schedules read it.
    If this moves: accumulation differs between one and several replicas (tested).
    """
    steps = optimizer.gradient_accumulation_steps
    if not steps:
        yield
        return
    owner = _defining_class("iterations")
    original = owner.iterations

    def iterations(self: Any) -> Any:
        return self._iterations // steps if self is optimizer else original.fget(self)

    with (
        _replaced(optimizer, "gradient_accumulation_steps", None),
        _replaced(owner, "iterations", property(iterations)),
    ):
        yield


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _defining_class(attribute: str) -> Any:
    return next(cls for cls in keras.optimizers.Optimizer.__mro__ if attribute in vars(cls))


def accumulators(optimizer: keras.optimizers.Optimizer, variables: list[Any]) -> list[Any]:
    """The optimizer's own gradient accumulators for `variables`, as `tf.Variable`s."""
    stored = optimizer._accumulated_gradients
    return [stored[optimizer._get_variable_index(variable)].value for variable in variables]


def trained_by(optimizer: keras.optimizers.Optimizer) -> list[Any]:
    """The variables an optimizer was built for, in its own order."""
    return list(optimizer._trainable_variables)


def update_counter(optimizer: keras.optimizers.Optimizer) -> Any:
    """The optimizer's count of calls, which `iterations` divides by the accumulation steps."""
    return optimizer._iterations


def counter_in(graph: Any, optimizer: keras.optimizers.Optimizer) -> Any:
    """The optimizer's count of calls as a graph has captured it; None if it has not."""
    handle = update_counter(optimizer).value.handle
    return next((inner for outer, inner in graph.captures if outer is handle), None)


@contextlib.contextmanager
def watching_losses() -> Iterator[Callable[[keras.Layer], bool]]:
    """Notes which layers are asked for their `losses`; yields a question about one of them.

    If this moves: the guard against forgotten model losses says nothing.
    """
    original = keras.Layer.losses
    asked: list[keras.Layer] = []

    def losses(self: keras.Layer) -> Any:
        asked.append(self)
        return original.fget(self)

    def was_asked(layer: keras.Layer) -> bool:
        return any(layer is inner for outer in asked for inner in layers_in(outer))

    with _replaced(keras.Layer, "losses", property(losses)):
        yield was_asked


@dataclass(frozen=True)
class Called:
    """What a step called while it was traced."""

    layers: list[tuple[keras.Layer, Any]] = field(default_factory=list)
    """Layers and models, not those inside others, with their `training` argument."""
    losses: list[tuple[str, Any, Any]] = field(default_factory=list)
    """Keras losses by name, with their two arguments."""


@contextlib.contextmanager
def watching_calls() -> Iterator[Called]:
    """Notes the layers and Keras losses that a step calls.

    If this moves: the guards against inference mode and swapped arguments say nothing.
    """
    called, depth = Called(), threading.local()
    layer_call, loss_call = keras.Layer.__call__, keras.losses.Loss.__call__

    # AutoGraph leaves functions of Keras alone: `wraps` lets these pass as such.
    @functools.wraps(layer_call)
    def of_layer(self: Any, *args: Any, **kwargs: Any) -> Any:
        outer = getattr(depth, "value", 0)
        if not outer:
            called.layers.append((self, kwargs.get("training")))
        depth.value = outer + 1
        try:
            return layer_call(self, *args, **kwargs)
        finally:
            depth.value = outer

    @functools.wraps(loss_call)
    def of_loss(self: Any, y_true: Any, y_pred: Any, *args: Any, **kwargs: Any) -> Any:
        called.losses.append((type(self).__name__, y_true, y_pred))
        return loss_call(self, y_true, y_pred, *args, **kwargs)

    def of_function(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def noted(y_true: Any, y_pred: Any, *args: Any, **kwargs: Any) -> Any:
            called.losses.append((function.__name__, y_true, y_pred))
            return function(y_true, y_pred, *args, **kwargs)

        return noted

    with contextlib.ExitStack() as stack:
        stack.enter_context(_replaced(keras.Layer, "__call__", of_layer))
        stack.enter_context(_replaced(keras.losses.Loss, "__call__", of_loss))
        for name, function in list(vars(keras.losses).items()):
            if inspect.isfunction(function) and _takes_labels(function):
                stack.enter_context(_replaced(keras.losses, name, of_function(function)))
        yield called


def layers_in(layer: keras.Layer) -> list[keras.Layer]:
    """The layer itself and all layers inside it, however deep."""
    return list(layer._flatten_layers())


def _takes_labels(function: Callable[..., Any]) -> bool:
    return list(inspect.signature(function).parameters)[:2] == ["y_true", "y_pred"]


def build_compiled_model(task: Any, batch_spec: Any) -> None:
    """Creates what a compiled model makes lazily, as Keras' own `fit` does before it trains.

    If this moves: with several replicas a compiled model has to arrive built, optimizer included.
    """
    batch = tf.nest.map_structure(lambda s: keras.KerasTensor(s.shape, s.dtype.name), batch_spec)
    task.model._symbolic_build(data_batch=batch)


def better(metric: keras.metrics.Metric) -> str | None:
    """`"max"` or `"min"`, where the metric says which is better.

    If this moves: `EarlyStopping("val_accuracy")` asks for a mode.
    """
    return {"up": "max", "down": "min"}.get(getattr(metric, "_direction", None) or "")


def take_initial_epoch(model: keras.Model) -> int:
    """The epoch with which `BackupAndRestore` asks Keras' own `fit` to go on; 0 if it did not.

    If this moves: nobody is told that epochs count from zero here.
    """
    epoch = getattr(model, "_initial_epoch", None) or 0
    if epoch:
        model._initial_epoch = None
    return epoch


def is_bookkeeping(attribute: str) -> bool:
    """Whether Keras keeps lists in this attribute, of what its objects hold in others as well.

    If this moves: the names of some variables change, and checkpoints from before are refused.
    """
    return attribute in _BOOKKEEPING or attribute.startswith("_self_")


_BOOKKEEPING = frozenset(
    [
        "_layers",
        "_metrics",
        "_variables",
        "_trainable_variables",
        "_non_trainable_variables",
        "_seed_generators",
        "_functional",
        "_operations",
        "_loss_tracker",
        "_compile_metrics",
        "_compile_loss",
    ]
)


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


def iterator_state(iterator: Any) -> Any:
    """The place of a `tf.data` iterator, shuffle buffers included, as a tensor that can be saved.

    Raises an error of TensorFlow if the pipeline holds state that it cannot save.
    If this moves: streams have no place; `tf.train.Checkpoint` saves them too.
    """
    fails = 2  # tf.data.experimental.ExternalStatePolicy.FAIL
    resource = iterator._iterator_resource
    return tf.raw_ops.SerializeIterator(resource_handle=resource, external_state_policy=fails)


def restore_iterator(iterator: Any, state: Any) -> None:
    """Puts an iterator over the same pipeline to where `iterator_state` was taken."""
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


def pipeline_parts(dataset: tf.data.Dataset) -> list[PipelinePart]:
    """The datasets that a pipeline is made of, each before what it reads from."""
    seen, todo = list[Any](), [dataset]
    while todo:
        part = todo.pop()
        if not any(part is other for other in seen):
            seen.append(part)
            todo += part._inputs()
    return [_pipeline_part(part) for part in seen]


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
    )


def was_left_on_purpose() -> bool:
    """Whether a generator of ours is being closed because a loop over it was left by `break`.

    An exception in the body of the loop closes it as well, and looks the same from inside: only
    the instruction at which the loop is tells them apart.
    If this moves: a run that was left by `break` is not taken for finished, and goes on when it is
    started again (tested).
    """
    ours = os.path.dirname(__file__)
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(ours):
        frame = frame.f_back
    if frame is None:
        return False
    leaving = {"POP_TOP", "POP_ITER"}
    codes = dis.get_instructions(frame.f_code)
    return any(code.offset == frame.f_lasti and code.opname in leaving for code in codes)


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
