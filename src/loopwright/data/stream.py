"""Stream: a batched `tf.data.Dataset`, and what prevents a pipeline from being resumed."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

import tensorflow as tf

from loopwright.compat import messages, tensorflow_internals
from loopwright.compat.lines import describe
from loopwright.data.batches import check_labelled, sampled_digest, weighted
from loopwright.data.bottleneck import parts_before, slow_pipeline
from loopwright.data.readers import (
    End,
    IteratorReader,
    ReplayReader,
    Reseeded,
    StreamReader,
    UnsavedReader,
    opened,
)
from loopwright.data.source import Data, Epochs, Feed, Objection
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
"""By a part of the name of the operation that TensorFlow refuses."""

_UNSAVABLE = {
    "CopyToDevice": "TensorFlow cannot save prefetch_to_device(): remove it",
    "ShuffleAndRepeat": "shuffle_and_repeat() loses its position between two epochs: use shuffle()",
    "Snapshot": "snapshot() cannot be restored after its files have been written: remove it",
}
_UNORDERED = "deterministic=False: elements come in the order in which they are ready"
_DRAWING = re.compile("(Shuffle|Random).*Dataset")
_NAMES = {
    "Shuffle": "shuffle()",
    "Random": "Dataset.random(), sample_from_datasets() or similar",
    "ParallelMap": "map()",
    "ParallelBatch": "batch()",
    "ParallelInterleave": "interleave()",
}


def unsavable(dataset: tf.data.Dataset) -> str | None:
    """Return what prevents saving and restoring the position; None if nothing does.

    >>> numbers = tf.data.Dataset.range(10)
    >>> unsavable(numbers.shuffle(10).batch(2))
    >>> print(unsavable(numbers.map(lambda n: tf.random.uniform(())).batch(2)))
    it draws random numbers (RandomUniform): use tf.random.stateless_* with a seed for each example
    """
    if dataset.options().experimental_warm_start:
        return "its options set experimental_warm_start, which starts reading too early"
    parts = tensorflow_internals.pipeline_parts(dataset)
    for part in parts:
        if part.kind in _UNSAVABLE:
            return _UNSAVABLE[part.kind]
        if part.kind == "Cache" and any(p.draws_each_pass for p in parts_before(part)):
            return "cache() keeps the order of a shuffle before it: put it first"
        if part.file and not tf.io.gfile.exists(f"{part.file}.index"):
            return (
                f"cache({part.file!r}) cannot be used again if a run ends while it is written: "
                "read the dataset once before training, or cache in memory"
            )
        if part.kind == "DirectedInterleave" and not part.stops_on_empty:
            lengths = [int(data.cardinality()) for data in part.inputs]
            is_endless = [length == tf.data.INFINITE_CARDINALITY for length in lengths]
            # The first input selects from the others.
            if not is_endless[0] or all(is_endless):
                continue
            return (
                "sample_from_datasets() never ends if it is restored after one of its datasets has "
                "ended: repeat() them, or pass stop_on_empty_dataset=True"
            )
    operations = {kind for part in parts if part.is_stateful for kind in part.operations}
    text = _error_of_saving(dataset) if operations else None
    if text is None:
        return None
    # By the operation that TensorFlow names, or by others in the pipeline.
    for candidate in (messages.stateful_operation(text), *sorted(operations)):
        for name, explanation in _STATEFUL.items():
            if name in candidate and "Stateless" not in candidate:
                return explanation.format(candidate)
    return f"TensorFlow cannot save it: {messages.reason_in(text)}"


def unrepeatable(dataset: tf.data.Dataset) -> str | None:
    """Return what makes a pipeline yield different batches on a second read; None if unknown.

    >>> numbers = tf.data.Dataset.range(10)
    >>> unrepeatable(numbers.map(lambda n: n, 2, deterministic=False).batch(2))
    'map() has deterministic=False: elements come in the order in which they are ready'
    """
    if dataset.options().deterministic is False:
        return f"its options set {_UNORDERED}"
    for part in tensorflow_internals.pipeline_parts(dataset):
        name = _NAMES.get(part.kind, part.kind)
        if part.seeds == (0, 0):
            return f"{name} has no seed: pass seed=1"
        if part.kind == "Variant" and any(_DRAWING.search(kind) for kind in part.operations):
            return "it has a shuffle made inside a tf.function, where its seed is not visible"
        if not part.is_ordered:
            return f"{name} has {_UNORDERED}"
        if "Timestamp" in part.operations:
            return "it reads the clock (tf.timestamp)"
    return None


def reseeded(dataset: tf.data.Dataset, passes: int) -> Reseeded | None:
    """Return the parts that draw new seeds for each pass, after `passes` passes."""
    parts = tensorflow_internals.pipeline_parts(dataset)
    drawing = [part.dataset for part in parts if part.draws_each_pass]
    structure = " ".join(part.kind for part in parts)
    return Reseeded(drawing, passes, structure) if drawing else None


def with_exact_state(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Return the same elements, from an iterator whose state matches what was read.

    A fused shuffle and repeat loses its position between two epochs, and a symbolic state does not
    belong to the same moment as the seeds saved with it.
    """
    options = tf.data.Options()
    options.experimental_symbolic_checkpoint = False
    return dataset.with_options(options)


def watched(dataset: tf.data.Dataset, last: list[Any]) -> tf.data.Dataset:
    """Return the same batches; `last` holds the leaves of the last one that was read."""
    spec = dataset.element_spec

    def hold(*leaves: Any) -> None:
        last[:] = leaves

    def watch(*batch: Any) -> Any:
        whole = _unstar(batch, spec)
        tf.numpy_function(hold, tf.nest.flatten(whole, expand_composites=True), [])
        return whole

    options = tf.data.Options()
    # A map made parallel by TensorFlow, or a prefetch added by it, would read ahead.
    options.experimental_optimization.apply_default_optimizations = False
    options.experimental_optimization.inject_prefetch = False
    return dataset.map(watch).with_options(options)


def is_batched(dataset: tf.data.Dataset) -> bool:
    """Return whether the pipeline makes batches, as far as its parts show.

    >>> is_batched(tf.data.Dataset.range(10).batch(2).map(lambda n: n + 1))
    True
    >>> is_batched(tf.data.Dataset.range(10).batch(2).unbatch())
    False
    """
    for part in tensorflow_internals.pipeline_parts(dataset):
        if "atch" in part.kind:
            return "Unbatch" not in part.kind
        if part.kind == "Tensor" or any("Batch" in kind for kind in part.operations):
            return True  # from_tensors is one batch; a flat_map may batch inside
    return False


def seeds(dataset: tf.data.Dataset) -> list[list[int]]:
    """Return the seeds of all parts; `image_dataset_from_directory` draws its own."""
    return [
        list(p.seeds) for p in tensorflow_internals.pipeline_parts(dataset) if p.seeds is not None
    ]


def held_tensors(dataset: tf.data.Dataset) -> list[tf.Tensor]:
    """Return the tensors a pipeline was made from: arrays, names of files."""
    return [t for part in tensorflow_internals.pipeline_parts(dataset) for t in part.tensors]


def _error_of_saving(dataset: tf.data.Dataset) -> str | None:
    """Return TensorFlow's error when it serializes a pipeline together with its state.

    Asking an iterator for its state would raise it too, but would draw seeds on the way, and so
    change the order of later epochs.
    """
    options = tf.data.Options()
    options.experimental_external_state_policy = tf.data.experimental.ExternalStatePolicy.FAIL
    variant = tf.data.experimental.to_variant(dataset.with_options(options))
    try:
        tf.raw_ops.DatasetToGraphV2(input_dataset=variant, external_state_policy=2)
    except tf.errors.OpError as error:
        return error.message
    return None


_INSTEAD = (
    "pass arrays or a PyDataset; or change the pipeline; or, if reading it again yields the same "
    "batches, declare that with lw.Stream(dataset, replay=True)"
)
LENGTH = 'steps_per_epoch or until="10000 steps"'
STEPS = "validation_steps (in evaluate and predict: steps)"


@final
class Stream(Data):
    """A batched `tf.data.Dataset`: finite, of unknown length, or endless.

    `replay=True`: the position of the iterator cannot be saved, so a resumed run reads the dataset
    again up to its position; the dataset has to yield the same batches again, which is checked.

    >>> stream = Stream(tf.data.Dataset.range(10).batch(4))
    >>> stream.training(Epochs()).steps_per_epoch
    3
    """

    def __init__(self, dataset: tf.data.Dataset, *, replay: bool = False) -> None:
        _check_is_batched(dataset)
        if dataset.cardinality() == 0:
            raise DataError(
                "The dataset is empty.",
                expected="at least one batch",
                received="a dataset of 0 batches",
                do="check its files and filters; drop_remainder drops all of a small set",
            )
        self._dataset, self._replay = dataset, replay
        self._spec, self._length = dataset.element_spec, int(dataset.cardinality())

    @property
    def calls_python(self) -> bool:
        """Whether the pipeline calls Python code, which may have a state of its own."""
        parts = tensorflow_internals.pipeline_parts(self._dataset)
        return any("PyFunc" in kind for part in parts for kind in part.operations)

    def attributes(self) -> dict[str, Any]:
        """Return the variables that the functions of the pipeline use.

        Generators and the seeds of Keras layers are among them.
        """
        parts = tensorflow_internals.pipeline_parts(self._dataset)
        graphs = [graph for part in parts for graph in part.graphs]
        used = [v for graph in graphs for v in tensorflow_internals.captured_variables(graph)]
        return {"variables": [v for v in used if isinstance(v, tf.Variable)]}

    def weighted_by_class(self, class_weight: Mapping[int, float]) -> "Stream":
        """Return the data with a sample weight for each label, by its class."""
        check_labelled(self._spec)
        labelled = self._dataset.map(lambda x, y: weighted((x, y), class_weight))
        return Stream(labelled, replay=self._replay)

    def objection_to_resume(self) -> Objection | None:
        """Return what in the pipeline would yield different batches next time."""
        lost = unsavable(self._dataset)
        found = unrepeatable(self._dataset) or (None if self._replay else lost)
        if found is None:
            return None
        return Objection(found, _INSTEAD, loses_position=lost is not None)

    def fingerprint(self) -> dict[str, Any]:
        """Return the spec and number of batches, the seeds, and a digest of the source tensors."""
        return {
            "batches": describe(self._spec, "batch"),
            "length": self._length,
            "seeds": seeds(self._dataset),
            "bytes": sampled_digest(held_tensors(self._dataset)),
        }

    def training(self, epochs: Epochs) -> Feed:
        """Return the dataset repeated, in its own order.

        With `replay` the batches read before are read again and dropped; otherwise the reader
        restores its state.
        """
        spec, length = self._spec, self._length
        steps_per_epoch, after = epochs.steps_per_epoch, epochs.after
        is_endless = steps_per_epoch is None and length == tf.data.INFINITE_CARDINALITY
        if is_endless and not epochs.may_be_endless:
            raise DataError(endless("This dataset", LENGTH))
        # With steps_per_epoch, an epoch continues where the last one stopped: epochs cut the
        # stream, they do not restart it.
        is_marked = steps_per_epoch is None and length == tf.data.UNKNOWN_CARDINALITY
        end: End = "marked" if is_marked else "exhausted"
        dataset, last = self._dataset, list[Any]()
        is_repeatable = unrepeatable(dataset) is None
        # An order that cannot be repeated has no seeds to keep.
        seeded = reseeded(dataset, epochs.first_epoch) if is_repeatable else None
        replays = self._replay and is_repeatable
        is_savable = replays or unsavable(dataset) is None
        if replays:
            dataset = watched(dataset, last)

        def repeated() -> tf.data.Dataset:
            whole = _with_marked_epochs(dataset) if is_marked else dataset.repeat()
            return with_exact_state(whole)

        def reader() -> StreamReader:
            if replays:
                elements = after.batches + after.ends * is_marked
                iterator, _ = opened(repeated, end, seeded, saves_state=False)
                return ReplayReader(iterator, spec, end, last, elements)
            if not is_savable:
                return UnsavedReader(iter(repeated()), spec, end)
            return IteratorReader(*opened(repeated, end, seeded, saves_state=True), spec, end)

        return _StreamFeed(
            batch_spec=spec,
            end=end,
            steps_per_epoch=steps_per_epoch or (None if is_marked or is_endless else length),
            pipeline=dataset,
            dataset=repeated,
            reader=reader,
        )

    def one_pass(self, *, steps: int | None) -> Feed:
        """Return the dataset once."""
        if steps is None and self._length == tf.data.INFINITE_CARDINALITY:
            raise DataError(endless("This dataset", STEPS))
        dataset = self._dataset if steps is None else self._dataset.take(steps)
        known = [n for n in (self._length, steps) if n is not None and n >= 0]
        return Feed(
            batch_spec=dataset.element_spec,
            dataset=lambda: dataset,
            steps_per_epoch=min(known, default=None),
        )


@final
@dataclass(frozen=True, kw_only=True)
class _StreamFeed(Feed):
    """A repeated pipeline, whose reader depends on how its position can be saved."""

    pipeline: tf.data.Dataset
    reader: Callable[[], StreamReader]

    def open(self) -> StreamReader:
        return self.reader()

    def bottleneck(self, is_slower_than_step: bool) -> str:
        return slow_pipeline(self.pipeline, is_slower_than_step=is_slower_than_step)


def _with_marked_epochs(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Repeat the dataset with an empty Optional after each pass.

    An epoch of unknown length that simply ended inside a compiled loop would raise there, lose
    the totals, and might have changed variables in a step without a batch.
    """
    spec = dataset.element_spec
    end = tf.data.Dataset.from_tensors(0).map(lambda _: tf.experimental.Optional.empty(spec))
    batches = dataset.map(lambda *batch: tf.experimental.Optional.from_value(_unstar(batch, spec)))
    return batches.concatenate(end).repeat()


def _unstar(batch: tuple[Any, ...], spec: Any) -> Any:
    # tf.data unpacks a tuple, but not a namedtuple, into the arguments of a mapped function.
    return batch if type(spec) is tuple else batch[0]


def endless(what: str, argument: str) -> str:
    """Return the error message for endless data without a number of steps."""
    return message(
        f"{what} is endless, so the length of an epoch is unknown.",
        expected="a number of steps, or data that ends",
        received="endless data (repeat() without a count?)",
        do=f"pass {argument}, or remove repeat(): Loopwright repeats the data itself",
    )


def _check_is_batched(dataset: tf.data.Dataset) -> None:
    spec = dataset.element_spec
    for leaf in tf.nest.flatten(spec):
        if not hasattr(leaf, "shape"):
            raise DataError(
                "The dataset yields something other than tensors.",
                expected="batches: tensors whose first axis counts examples",
                received=f"{type(leaf).__name__.removesuffix('Spec')} in {spec}",
                do="remove None; put .flat_map(lambda w: w.batch(n)) after .window(n)",
            )
    shapes = [leaf.shape for leaf in tf.nest.flatten(spec)]
    firsts = {shape[0] for shape in shapes if shape.rank}
    scalar = any(shape.rank == 0 for shape in shapes)
    differ = None not in firsts and len(firsts) > 1
    if scalar or (differ and not is_batched(dataset)):
        raise DataError(
            "The dataset was never batched.",
            expected="batches: the first axis of every tensor counts examples",
            received=describe(spec, "element"),
            do="add .batch(32) to the dataset",
        )
