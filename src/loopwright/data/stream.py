"""Stream: a `tf.data.Dataset` that its owner has batched."""

import re
from collections.abc import Mapping
from typing import Any, final

import tensorflow as tf

from loopwright.compat import messages, tensorflow_internals
from loopwright.compat.error_messages import describe
from loopwright.compat.tensorflow_internals import PipelinePart
from loopwright.data.batches import batch_digest, check_labelled, sampled_digest, weighted
from loopwright.data.bottleneck import slow_pipeline
from loopwright.data.source import (
    NOTHING_READ,
    Data,
    Feed,
    Objection,
    Read,
    Reseeded,
    cannot_go_on,
    mark_epochs,
)
from loopwright.errors import DataError, message

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
    if (unsaved := tensorflow_internals.unsaved_positions()) is not None:
        return unsaved
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
    if (unknown := tensorflow_internals.uninspected_pipelines()) is not None:
        return unknown
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
    for candidate in (messages.stateful_operation(text), *sorted(operations)):
        for name, explanation in _STATEFUL.items():
            if name in candidate and "Stateless" not in candidate:
                return explanation.format(candidate)
    return f"TensorFlow does not save it: {messages.kernel_message(text)}"


_INSTEAD = (
    "give arrays or a PyDataset; or change the pipeline; or, if reading it again gives the same "
    "batches, say so with lw.Stream(dataset, replay=True)"
)
STEPS = "validation_steps (in evaluate and predict: steps)"


@final
class Stream(Data):
    """A batched `tf.data.Dataset`: finite, of unknown length, or endless.

    `replay=True`: a run that goes on reads it again up to its place, because its iterator cannot
    be saved; it has to give the same batches again, which is checked.

    >>> stream = Stream(tf.data.Dataset.range(10).batch(4))
    >>> stream.training(seed=0, first_epoch=0, shuffle=True, steps_per_epoch=None).steps_per_epoch
    3
    """

    def __init__(self, dataset: tf.data.Dataset, *, replay: bool = False) -> None:
        _check_is_batched(dataset)
        if dataset.cardinality() == 0:
            raise DataError(
                message(
                    "The dataset is empty.",
                    expected="at least one batch",
                    received="a dataset of 0 batches",
                    do="check its files and filters; drop_remainder drops all of a small set",
                )
            )
        self._dataset = dataset
        self._replay = replay

    @property
    def can_be_read_again(self) -> bool:
        """Always."""
        return True

    def weighted_by_class(self, class_weight: Mapping[int, float]) -> "Stream":
        """The data with sample weights that follow from the class of each label."""
        check_labelled(self._dataset.element_spec)
        labelled = self._dataset.map(lambda x, y: weighted((x, y), class_weight))
        return Stream(labelled, replay=self._replay)

    def objection_to_resume(self) -> Objection | None:
        """What in the pipeline would give other batches the next time."""
        look = unrepeatable if self._replay else unresumable
        found = look(self._dataset)
        if found is None:
            return None
        is_lost = unsavable(self._dataset) is not None
        return cannot_go_on(found, _INSTEAD, loses_position=is_lost)

    def fingerprint(self) -> dict[str, Any]:
        """What the batches are like, how many there are, and what they are made from."""
        spec, length = self._dataset.element_spec, int(self._dataset.cardinality())
        return {
            "batches": describe(spec, "batch"),
            "length": length,
            "seeds": seeds(self._dataset),
            "bytes": sampled_digest(held_tensors(self._dataset)),
        }

    def training(
        self,
        *,
        seed: int,
        first_epoch: int,
        shuffle: bool,
        steps_per_epoch: int | None,
        after: Read = NOTHING_READ,
    ) -> Feed:
        """The dataset over and over; its own order is left as it is.

        What was read before is read again and thrown away where it is declared `replay`;
        elsewhere the reader has a state to go back to.
        """
        spec, length = self._dataset.element_spec, int(self._dataset.cardinality())
        if steps_per_epoch is None and length == tf.data.INFINITE_CARDINALITY:
            raise DataError(endless("This dataset", "steps_per_epoch"))
        # With steps_per_epoch a stream goes on where it stopped: epochs cut it, they do not
        # restart it.
        is_marked = steps_per_epoch is None and length == tf.data.UNKNOWN_CARDINALITY
        dataset, last = (self._dataset, list[Any]())
        is_repeatable = unrepeatable(dataset) is None
        replays = self._replay and is_repeatable
        if replays:
            dataset = watched(dataset, last)

        def repeated() -> tf.data.Dataset:
            whole = mark_epochs(dataset) if is_marked else dataset.repeat()
            return with_exact_state(whole)

        position = "replay" if replays else "iterator"
        if position == "iterator" and unsavable(self._dataset) is not None:
            position = "none"
        # An order that nobody can repeat has no seeds to keep.
        from_here = reseeded(self._dataset, first_epoch) if is_repeatable else None
        return Feed(
            repeated,
            spec,
            "marked" if is_marked else "exhausted",
            steps_per_epoch or (None if is_marked else length),
            position=position,
            skip=after.batches + after.ends * is_marked if replays else 0,
            reseeded=from_here,
            last_digest=lambda: batch_digest(last) if last else None,
            bottleneck=lambda slower: slow_pipeline(dataset, is_slower_than_step=slower),
        )

    def one_pass(self, *, steps: int | None) -> Feed:
        """The dataset once."""
        length = int(self._dataset.cardinality())
        if steps is None and length == tf.data.INFINITE_CARDINALITY:
            raise DataError(endless("This dataset", STEPS))
        dataset = self._dataset if steps is None else self._dataset.take(steps)
        known = [n for n in (length, steps) if n is not None and n >= 0]
        return Feed(lambda: dataset, dataset.element_spec, "exhausted", min(known, default=None))


def endless(what: str, argument: str) -> str:
    """The message for data that has no end."""
    return message(
        f"{what} has no end, so an epoch has none either.",
        expected="a number of steps, or data that ends",
        received="endless data (repeat() without a count?)",
        do=f"pass {argument}, or leave out repeat(): Loopwright repeats by itself",
    )


def _check_is_batched(dataset: tf.data.Dataset) -> None:
    spec = dataset.element_spec
    for leaf in tf.nest.flatten(spec):
        if not hasattr(leaf, "shape"):
            raise DataError(
                message(
                    "The dataset gives something else than tensors.",
                    expected="batches: tensors whose first axis counts examples",
                    received=f"{type(leaf).__name__.removesuffix('Spec')} in {spec}",
                    do="leave None out; put .flat_map(lambda w: w.batch(n)) after .window(n)",
                )
            )
    shapes = [leaf.shape for leaf in tf.nest.flatten(spec)]
    firsts = {shape[0] for shape in shapes if shape.rank}
    scalar = any(shape.rank == 0 for shape in shapes)
    differ = None not in firsts and len(firsts) > 1
    if scalar or (differ and not is_batched(dataset)):
        raise DataError(
            message(
                "The dataset was never batched.",
                expected="batches: the first axis of every tensor counts examples",
                received=describe(spec, "element"),
                do="add .batch(32) to the dataset",
            )
        )
