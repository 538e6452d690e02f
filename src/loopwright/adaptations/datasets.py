"""Pipelines of `tf.data`: the place of an iterator, and what each part keeps to itself."""

import re
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_registry


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
