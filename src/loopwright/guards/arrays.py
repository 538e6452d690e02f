"""Mistakes that the arrays given to `fit` show: looked for once, before the first step."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import keras
import numpy as np
import tensorflow as tf

from loopwright.data.arrays import Arrays
from loopwright.data.batches import leaves
from loopwright.data.source import Data
from loopwright.errors import DataError
from loopwright.guards.guard import Finding, examine, refusal, warning
from loopwright.task.keras_model import CompiledModel
from loopwright.task.supervised import Supervised, is_of_keras
from loopwright.task.task import Task

_SORTED_LABELS = warning(
    "sorted-labels", "labels are sorted, with `shuffle=False` or `validation_split`"
)
_SHARED_ROWS = warning("shared-rows", "more than 1 % of the validation rows are also training rows")
_CONSTANT_LABELS = warning("constant-labels", "all labels are the same")

ENOUGH = 256
"""With fewer examples equal labels are probably intended: a trial, a toy."""
ENOUGH_ORDERED = 48
"""So many random labels are never sorted by chance."""
MOST_ROWS, MOST_BYTES = 2**17, 2**25
"""Larger arrays are sampled at random."""
MOST_COMPARED_ROWS, MOST_COMPARED_BYTES = 10_000, 2**23
"""Comparing rows takes longer, so fewer are sampled."""


@final
@dataclass(frozen=True)
class Conditions:
    """How the examples are used."""

    task: Task
    shuffle: bool
    nan_ends_the_run: bool
    undisturbed: Callable[[], contextlib.AbstractContextManager[None]]
    """Restores on exit what calling a model may change."""


@final
class DataSample:
    """Some examples in their order, as NumPy arrays: all of small arrays, a fixed random part."""

    def __init__(self, data: Arrays) -> None:
        most = min(MOST_ROWS, max(64, MOST_BYTES // data.row_bytes))
        self.examples = len(data)
        """The total number of examples."""
        self.places = _places(self.examples, most, seed=self.examples)
        """The indices of those looked at, counted from 0."""
        batch = tf.nest.map_structure(_as_numbers, data.rows(self.places))
        parts: tuple[Any, ...] = batch if isinstance(batch, tuple) else (batch,)
        self.inputs = parts[0]
        self.labels = parts[1] if len(parts) in (2, 3) else None

    @property
    def looked_at(self) -> str:
        """The number of examples in the sample, as text."""
        count = len(self.places)
        return f"{count:,} examples" + ("" if count == self.examples else " looked at")

    def rows(self) -> list[bytes]:
        """Return a random part of the input rows, as bytes."""
        leaves = [leaf.reshape(len(leaf), -1) for _, leaf in _numbers(self.inputs, "x")]
        row_bytes = max(1, sum(leaf[:1].nbytes for leaf in leaves))
        most = min(MOST_COMPARED_ROWS, max(64, MOST_COMPARED_BYTES // row_bytes))
        rows = _places(len(self.places), most, seed=self.examples)
        return [b"".join(leaf[row].tobytes() for leaf in leaves) for row in rows]


@final
@dataclass(frozen=True)
class Examples:
    """The arrays to train and validate on, as guards see them; sampled when first asked for."""

    data: Arrays
    sets: Mapping[str, Arrays]
    """The arrays to validate on, by name."""
    conditions: Conditions

    @cached_property
    def seen(self) -> DataSample:
        """A sample of the training examples."""
        return DataSample(self.data)

    @cached_property
    def held(self) -> dict[str, DataSample]:
        """A sample of each set to validate on."""
        return {name: DataSample(arrays) for name, arrays in self.sets.items()}

    @cached_property
    def split(self) -> list[str]:
        """The names of the sets that `validation_split` took from the training data."""
        return [name for name, arrays in self.sets.items() if arrays.is_of(self.data)]

    @cached_property
    def judged(self) -> tuple[keras.Model, bool] | None:
        """`_known`, if values can be judged: enough examples, which reach the model unmapped."""
        is_enough = len(self.data) >= ENOUGH and not self.data.is_mapped
        return _known(self.conditions.task) if is_enough else None


def check(data: Data | None, sets: Mapping[str, Data], conditions: Conditions) -> None:
    """Warn of data that is probably a mistake; raise for data that cannot be trained on."""
    if isinstance(data, Arrays):
        arrays = {name: held for name, held in sets.items() if isinstance(held, Arrays)}
        examine(GUARDS, Examples(data, arrays, conditions), error=DataError)


def _known(task: Task) -> tuple[keras.Model, bool] | None:
    """Return a model trained on inputs and labels, and whether all its losses are of Keras.

    That is certain of a task that Loopwright or Keras wrote; None for any other.
    """
    if isinstance(task, Supervised):
        model, losses = task.model, vars(task)["_loss"]
    elif isinstance(task, CompiledModel):
        model, losses = task.model, task.model.loss
        own = type(model)
        if (own.train_step, own.compute_loss) != (keras.Model.train_step, keras.Model.compute_loss):
            return None
    else:
        return None
    flat = tf.nest.flatten(losses)
    return model, bool(flat) and all(is_of_keras(loss) for loss in flat)


def _numbers(nest: Any, path: str) -> Iterator[tuple[str, np.ndarray]]:
    """Yield every dense leaf that holds numbers, with its path: `x`, `x['image']`."""
    return ((name, leaf) for name, leaf in leaves(nest, path) if isinstance(leaf, np.ndarray))


def _is_dense(nest: Any) -> bool:
    """Return whether every leaf is a dense array of numbers."""
    return all(isinstance(leaf, np.ndarray) for _, leaf in leaves(nest, ""))


def _as_numbers(leaf: Any) -> Any:
    is_numbers = isinstance(leaf, tf.Tensor) and leaf.dtype != tf.string
    return leaf.numpy() if is_numbers else leaf


def _places(count: int, most: int, *, seed: int) -> np.ndarray:
    if count <= most:
        return np.arange(count)
    return np.unique(np.random.default_rng(seed).integers(0, count, size=most))


def _shared_rows(examples: Examples) -> Iterator[Finding]:
    if len(examples.data) < ENOUGH:
        return
    for name, held in examples.held.items():
        is_comparable = _is_dense(examples.seen.inputs) and _is_dense(held.inputs)
        if not is_comparable or held.examples < ENOUGH_ORDERED:
            continue
        trained, rows = examples.seen.rows(), held.rows()
        known = set(trained)
        count = sum(row in known for row in rows)
        repeated = 1 - len(known) / len(trained)
        if count < 2 or count / len(rows) <= 4 * repeated:
            continue  # training rows repeat each other about as often
        # Of a row in both, one of the samples may have none.
        share = min(1.0, count / len(rows) * examples.seen.examples / len(trained))
        if share <= 0.01:
            continue
        given = f"validation_data[{name[:-1]!r}]" if name else "validation_data"
        where = "the validation_split" if name in examples.split else given
        yield _SHARED_ROWS(
            f"About {share:.0%} of the validation examples are also training examples.",
            expected="validation examples that the model was not trained on",
            received=f"{count:,} of {len(rows):,} rows of {where} are equal to a training row",
            do="split the data before it is copied, augmented or oversampled, and leave these rows "
            "out of one of the two",
        )


def _sorted_labels(examples: Examples) -> Iterator[Finding]:
    conditions, split = examples.conditions, examples.split
    if len(examples.data) < ENOUGH_ORDERED or (not split and conditions.shuffle):
        return
    is_known = _known(conditions.task) is not None
    classes = _classes(examples.seen.labels, is_known=is_known)
    held = _classes(examples.held[split[0]].labels, is_known=is_known) if split else None
    if classes is None:
        return
    whole = classes if held is None else np.concatenate([classes, held])
    count, steps = len(np.unique(whole)), np.diff(whole)
    is_sorted = bool(np.all(steps >= 0) or np.all(steps <= 0))
    if not is_sorted or not 2 <= count <= len(whole) // 8:
        return
    received = f"labels from {whole[0]:g} to {whole[-1]:g}, in order"
    if held is None:
        yield _SORTED_LABELS(
            "The labels are sorted and shuffle is off: a batch holds examples of one class.",
            expected="batches with examples of all classes",
            received=received,
            do="leave shuffle=False out, or shuffle x and y together before fit",
        )
    else:
        only = ", ".join(f"{label:g}" for label in np.unique(held)[:5])
        yield _SORTED_LABELS(
            "The labels are sorted, and validation_split holds out the last examples.",
            expected="all classes in both parts",
            received=f"{received}; labels to validate on: {only}",
            do="shuffle x and y together before fit, or pass validation_data",
        )


def _classes(labels: Any, *, is_known: bool) -> np.ndarray | None:
    """Return labels as class numbers; None where they are not classes."""
    arrays = [values for _, values in _numbers(labels, "y")]
    if len(arrays) != 1 or not _is_dense(labels):
        return None
    (values,) = arrays
    if values.ndim == 2 and values.shape[1] > 1:
        is_one_hot = np.all((values == 0) | (values == 1)) and np.all(values.sum(axis=1) == 1)
        return values.argmax(axis=1).astype("float64") if is_one_hot else None
    if values.ndim > 2 or (values.dtype.kind == "f" and not is_known):
        return None
    values = values.reshape(-1).astype("float64")
    return values if np.all(np.isfinite(values)) and np.all(values % 1 == 0) else None


def _not_finite(examples: Examples) -> Iterator[Finding]:
    """NaN that reaches the loss: in labels of a Keras loss, or in inputs that come out as NaN."""
    judged, conditions, seen = examples.judged, examples.conditions, examples.seen
    if judged is None or not conditions.nan_ends_the_run:
        return
    model, has_keras_losses = judged
    for nest, path in ((seen.labels, "y"), (seen.inputs, "x")):
        for name, leaf in _numbers(nest, path):
            is_bad = ~np.isfinite(leaf) if leaf.dtype.kind == "f" else np.zeros(1, bool)
            if not is_bad.any():
                continue
            where = np.argwhere(is_bad)
            rows = np.unique(where[:, 0])
            if path == "y" and not has_keras_losses:
                continue
            if path == "x" and not _comes_out(model, seen, rows[:4], conditions):
                continue
            places = [(int(seen.places[row]), *map(int, rest)) for row, *rest in where[:3]]
            listed = ", ".join(f"{name}[{', '.join(map(str, place))}]" for place in places)
            yield refusal(
                f"{name} holds NaN or infinity, which makes the loss NaN.",
                expected="finite numbers",
                received=f"{len(rows):,} of {seen.looked_at}: {listed}"
                + (", ..." if len(where) > 3 else ""),
                do="leave these examples out or fill them in, for instance "
                'np.nan_to_num(x); Trainer(..., on_nan="skip") skips their batches',
            )


def _comes_out(
    model: keras.Model, seen: DataSample, rows: np.ndarray, conditions: Conditions
) -> bool:
    """Return whether the model's predictions for these examples are not finite either."""
    inputs = tf.nest.map_structure(lambda leaf: tf.gather(leaf, rows), seen.inputs)
    with contextlib.suppress(Exception), conditions.undisturbed():
        outputs = tf.nest.flatten(model(inputs, training=False))
        return not all(bool(tf.reduce_all(tf.math.is_finite(one))) for one in outputs)
    return False  # the first step shows what it objects to


def _constant_labels(examples: Examples) -> Iterator[Finding]:
    if examples.judged is None or not examples.judged[1]:
        return
    seen = examples.seen
    labels = list(_numbers(seen.labels, "y"))
    if labels and _is_dense(seen.labels) and all(_is_constant(leaf) for _, leaf in labels):
        (name, leaf), *_ = labels
        value = f"every label is {leaf[0].item():g}" if leaf[0].size == 1 else "every row is equal"
        yield _CONSTANT_LABELS(
            f"All labels ({name}) are the same: there is nothing to learn.",
            expected="labels of two classes or more, or targets that differ",
            received=f"{value}, in {seen.looked_at}",
            do="check how the labels were read, filtered or split",
        )


def _is_constant(leaf: np.ndarray) -> bool:
    few = leaf[:: max(1, len(leaf) // 64)]
    return bool(np.all(few == leaf[:1])) and bool(np.all(leaf == leaf[:1]))


GUARDS = [_sorted_labels, _shared_rows, _not_finite, _constant_labels]
