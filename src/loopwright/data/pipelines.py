"""Pipelines of `tf.data` that would not go on in another process as they would have in this one."""

import re
from typing import Any

import tensorflow as tf

from loopwright.compat import tensorflow_internals
from loopwright.compat.tensorflow_internals import PipelinePart
from loopwright.data.source import Reseeded

_STATEFUL = {
    "PyFunc": "it calls Python code (from_generator, py_function or numpy_function)",
    "SeedGenerator": "there is a shuffle inside the function of a flat_map, interleave or map",
    "Rng": "it draws from a tf.random.Generator, which is not saved with it",
    "Variable": "it uses a variable, which is not saved with it (Keras' Random* layers have one: "
    "put them into the step)",
    "Random": "it draws random numbers ({0}): use tf.random.stateless_* with a seed for each "
    "example",
    "Multinomial": "it draws random numbers ({0}): use tf.random.stateless_categorical",
    "TruncatedNormal": "it draws random numbers ({0}): use tf.random.stateless_truncated_normal",
}
"""By a part of the name of what TensorFlow objects to."""

_DRAWING = re.compile("(Shuffle|Random).*Dataset")
_NAMES = {
    "Shuffle": "shuffle()",
    "Random": "Dataset.random(), sample_from_datasets() or similar",
    "ParallelMap": "map()",
    "ParallelBatch": "batch()",
    "ParallelInterleave": "interleave()",
}


def unresumable(dataset: tf.data.Dataset) -> str | None:
    """What keeps the state of an iterator from going on in another process; None: nothing.

    >>> numbers = tf.data.Dataset.range(10)
    >>> unresumable(numbers.shuffle(10, seed=1).batch(2))
    >>> print(unresumable(numbers.map(lambda n: tf.random.uniform(())).batch(2)))
    it draws random numbers (RandomUniform): use tf.random.stateless_* with a seed for each example
    """
    found = unrepeatable(dataset)
    return unsavable(dataset) if found is None else found


def unsavable(dataset: tf.data.Dataset) -> str | None:
    """Return what keeps an iterator's position from being saved and restored; None: nothing.

    >>> unsavable(tf.data.Dataset.range(10).shuffle(10).batch(2))
    """
    if dataset.options().experimental_warm_start:
        return "its options say experimental_warm_start: it reads before it is asked"
    parts = tensorflow_internals.pipeline_parts(dataset)
    for part in parts:
        if part.kind == "CopyToDevice":
            return "TensorFlow cannot save prefetch_to_device(): leave it out"
        if part.kind == "ShuffleAndRepeat":
            return "shuffle_and_repeat() loses its place between two epochs: write shuffle()"
        if part.kind == "Snapshot":
            return "snapshot() cannot be restored when its files have been written: leave it out"
        if part.kind == "Cache" and any(p.draws_each_pass for p in _before(part)):
            return "cache() keeps the order of a shuffle before it: put it first"
        if part.file and not tf.io.gfile.exists(f"{part.file}.index"):
            return (
                f"cache({part.file!r}) cannot be used again if a run ends while it is written: "
                "read the dataset once before training, or cache in memory"
            )
        if part.kind == "DirectedInterleave" and _may_hang(part):
            return (
                "sample_from_datasets() goes on for ever if it is restored when one of its "
                "datasets has ended: repeat() them, or pass stop_on_empty_dataset=True"
            )
    operations = {kind for part in parts if part.is_stateful for kind in part.operations}
    objection = _objection_of_tensorflow(dataset) if operations else None
    return None if objection is None else _explained(objection, operations)


def unrepeatable(dataset: tf.data.Dataset) -> str | None:
    """What makes a pipeline give other batches when it is read again; None: nothing known.

    >>> numbers = tf.data.Dataset.range(10)
    >>> unrepeatable(numbers.map(lambda n: n, 2, deterministic=False).batch(2))
    'map() has deterministic=False: what is ready first comes first'
    """
    if dataset.options().deterministic is False:
        return "its options say deterministic=False: what is ready first comes first"
    for part in tensorflow_internals.pipeline_parts(dataset):
        name = _NAMES.get(part.kind, part.kind)
        if part.seeds == (0, 0):
            return f"{name} has no seed: pass seed=1"
        if part.kind == "Variant" and any(_DRAWING.search(kind) for kind in part.operations):
            return "a shuffle in it was made inside a tf.function, where it cannot be seen"
        if not part.is_ordered:
            return f"{name} has deterministic=False: what is ready first comes first"
        if "Timestamp" in part.operations:
            return "it looks at the clock (tf.timestamp)"
    return None


def reseeded(dataset: tf.data.Dataset, passes: int) -> Reseeded | None:
    """The parts that draw other seeds for each pass, of which there were `passes` before."""
    parts = tensorflow_internals.pipeline_parts(dataset)
    drawing = [part.dataset for part in parts if part.draws_each_pass]
    structure = " ".join(part.kind for part in parts)
    return Reseeded(drawing, passes, structure) if drawing else None


def with_exact_state(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The same elements, from an iterator whose state is that of what was read.

    The place in a fused shuffle and repeat is lost between two epochs, and a symbolic state is
    that of another moment than the seeds beside it.
    """
    options = tf.data.Options()
    options.experimental_symbolic_checkpoint = False
    return dataset.with_options(options)


def watched(dataset: tf.data.Dataset, last: list[Any]) -> tf.data.Dataset:
    """The same batches; `last` holds the leaves of the one that was read last."""
    spec = dataset.element_spec

    def hold(*leaves: Any) -> None:
        last[:] = leaves

    def watch(*batch: Any) -> Any:
        whole = batch if type(spec) is tuple else batch[0]
        tf.numpy_function(hold, tf.nest.flatten(whole, expand_composites=True), [])
        return whole

    options = tf.data.Options()
    # A map that TensorFlow makes parallel, or a prefetch that it adds, would read ahead.
    options.experimental_optimization.apply_default_optimizations = False
    options.experimental_optimization.inject_prefetch = False
    return dataset.map(watch).with_options(options)


def is_batched(dataset: tf.data.Dataset) -> bool:
    """Return whether the pipeline makes batches, as far as its parts tell.

    >>> is_batched(tf.data.Dataset.range(10).batch(2).map(lambda n: n + 1))
    True
    >>> is_batched(tf.data.Dataset.range(10).batch(2).unbatch())
    False
    """
    for part in tensorflow_internals.pipeline_parts(dataset):
        if "atch" in part.kind:
            return "Unbatch" not in part.kind
        if part.kind == "Tensor" or any("Batch" in kind for kind in part.operations):
            return True  # from_tensors gives one batch; a flat_map may batch inside
    return False


def seeds(dataset: tf.data.Dataset) -> list[list[int]]:
    """The seeds of its parts; not all are given: `image_dataset_from_directory` draws its own."""
    return [
        list(p.seeds) for p in tensorflow_internals.pipeline_parts(dataset) if p.seeds is not None
    ]


def held_tensors(dataset: tf.data.Dataset) -> list[tf.Tensor]:
    """What it was made from: arrays, names of files."""
    return [t for part in tensorflow_internals.pipeline_parts(dataset) for t in part.tensors]


def _before(part: PipelinePart) -> list[PipelinePart]:
    """What a part reads from, directly or not."""
    return tensorflow_internals.pipeline_parts(part.dataset)[1:]


def _may_hang(part: PipelinePart) -> bool:
    selector, *inputs = part.inputs
    endless = tf.data.INFINITE_CARDINALITY
    return (
        not part.stops_on_empty
        and selector.cardinality() == endless
        and any(data.cardinality() != endless for data in inputs)
    )


def _objection_of_tensorflow(dataset: tf.data.Dataset) -> str | None:
    """What TensorFlow says when it has to write a pipeline down together with its state.

    Asking an iterator for its state would do it too, but would draw seeds on the way, and so
    change the order of the epochs to come.
    """
    options = tf.data.Options()
    options.experimental_external_state_policy = tf.data.experimental.ExternalStatePolicy.FAIL
    variant = tf.data.experimental.to_variant(dataset.with_options(options))
    try:
        tf.raw_ops.DatasetToGraphV2(input_dataset=variant, external_state_policy=2)
    except tf.errors.OpError as error:
        return error.message
    return None


def _explained(text: str, operations: set[str]) -> str:
    """In words, if it is known by what it does, or else by what its functions do."""
    match = re.search(r"(\w+) is stateful", text)
    kind = match[1] if match else ""
    for candidate in (kind, *sorted(operations)):
        for name, explanation in _STATEFUL.items():
            if name in candidate and "Stateless" not in candidate:
                return explanation.format(candidate)
    return f"TensorFlow does not save it: {text.rpartition('}} ')[2]}"
