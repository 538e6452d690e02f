"""Examples changed one by one with NumPy code, each with a seed of its own."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from loopwright.data import batches
from loopwright.errors import DataError, message

ExampleMap = Callable[[Any, int], Any]
"""f(example, seed) -> example, with a seed that is a function of (seed, epoch, index)."""


def example_seed(seed: int, epoch: int, index: int) -> int:
    """The seed of one example in one epoch.

    >>> example_seed(0, 0, 1) == example_seed(0, 0, 1) != example_seed(0, 1, 1)
    True
    """
    # SeedSequence takes non-negative integers only.
    entropy = [seed & 0xFFFFFFFFFFFFFFFF, epoch, index]
    return int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0])


def require_dense(named: Mapping[str, Any]) -> None:
    """Refuses to map what has no NumPy array per example."""
    for name, nest in named.items():
        for path, leaf in batches.leaves(nest, name):
            if not isinstance(leaf, tf.Tensor):
                raise DataError(
                    message(
                        "map changes one example at a time, as NumPy arrays.",
                        expected="dense arrays",
                        received=f"{path} is a {type(leaf).__name__}",
                        do="convert it to a dense array, or do this in a tf.data.Dataset",
                    )
                )


def mapped(
    function: ExampleMap, batch: Any, first: int, seed: int, failures: list[DataError]
) -> Callable[..., Any]:
    """`run(epoch, indices, examples)`, which calls `function` for each example of a batch.

    It is tried on the example `first`, to know what comes out of it.
    """

    def numpy_examples(examples: Any, count: int) -> list[Any]:
        flat = [np.asarray(leaf) for leaf in tf.nest.flatten(examples)]
        return [tf.nest.pack_sequence_as(batch, [f[i] for f in flat]) for i in range(count)]

    def one(example: Any, epoch: int, index: int) -> Any:
        try:
            return function(example, example_seed(seed, epoch, index))
        except Exception as error:
            what = f"map failed for example {index}: {type(error).__name__}: {error}"
            raise DataError(
                message(what, do="see the error above, raised by the function given as map")
            ) from error

    def stacked(column: Any, spec: Any) -> Any:
        arrays = [np.asarray(value) for value in column]
        shapes = {array.shape for array in arrays} | {tuple(spec.shape[1:])}
        if len(shapes) > 1:
            raise DataError(
                message(
                    "map gave examples of different shapes.",
                    expected="one shape for all examples, that of the first one",
                    received=" and ".join(map(str, sorted(shapes))),
                    do="crop, resize or pad them in map",
                )
            )
        return np.stack(arrays).astype(spec.dtype.as_numpy_dtype, copy=False)

    sample = tf.nest.map_structure(lambda leaf: batches.gather(leaf, [first]), batch)
    made = batches.convert(one(numpy_examples(sample, 1)[0], 0, first), "map")
    specs = [tf.TensorSpec([None, *leaf.shape], leaf.dtype) for leaf in tf.nest.flatten(made)]

    def apply(epoch: Any, some: Any, *flat: Any) -> list[Any]:
        examples = numpy_examples(tf.nest.pack_sequence_as(batch, list(flat)), len(some))
        try:
            results = [
                one(e, int(epoch), int(index)) for e, index in zip(examples, some, strict=True)
            ]
            columns = zip(*(tf.nest.flatten(result) for result in results), strict=True)
            return [stacked(column, spec) for column, spec in zip(columns, specs, strict=True)]
        except DataError as failure:
            # Kept for the trainer: from here it would arrive wrapped in TensorFlow's.
            failures.append(failure)
            raise

    def run(epoch: Any, some: Any, examples: Any) -> Any:
        flat = tf.nest.flatten(examples)
        results = tf.numpy_function(apply, [epoch, some, *flat], [spec.dtype for spec in specs])
        for result, spec in zip(results, specs, strict=True):
            result.set_shape(spec.shape)
        return tf.nest.pack_sequence_as(made, results)

    return run
