"""Nested batches: paths of their leaves, and leaves of every kind as tensors."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from loopwright.errors import DataError, message


def leaves(nest: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every leaf with its path: `x[0]`, `x['image']`."""
    if isinstance(nest, Mapping):
        for key, inner in nest.items():
            yield from leaves(inner, f"{path}[{key!r}]")
    elif isinstance(nest, list | tuple):
        for index, inner in enumerate(nest):
            yield from leaves(inner, f"{path}[{index}]")
    else:
        yield path, nest


def convert(nest: Any, path: str) -> Any:
    """The same nest with tensors as leaves; lists become tuples, as in Keras.

    Floats are cast to Keras' floatx; integers, booleans and strings stay.
    """
    return _map_with_path(_tensor, nest, path)


def pack(x: Any, y: Any = None, sample_weight: Any = None) -> Any:
    """A batch as the step sees it: `x`, `(x, y)` or `(x, y, sample_weight)`."""
    if sample_weight is not None:
        return (x, y, sample_weight)
    return x if y is None else (x, y)


def to_floatx(batch: Any) -> Any:
    """Casts every floating tensor of a batch to Keras' floatx."""
    return tf.nest.map_structure(
        lambda t: tf.cast(t, keras.config.floatx()) if t.dtype.is_floating else t, batch
    )


def spec_in_floatx(spec: Any) -> Any:
    """What `to_floatx` makes of a batch of this spec."""
    floatx = tf.as_dtype(keras.config.floatx())

    def cast(leaf: Any) -> Any:
        if not leaf.dtype.is_floating:
            return leaf
        if isinstance(leaf, tf.SparseTensorSpec):
            return tf.SparseTensorSpec(leaf.shape, floatx)
        if isinstance(leaf, tf.RaggedTensorSpec):
            return tf.RaggedTensorSpec(leaf.shape, floatx, leaf.ragged_rank, leaf.row_splits_dtype)
        return tf.TensorSpec(leaf.shape, floatx)

    return tf.nest.map_structure(cast, spec)


def with_any_batch_size(spec: Any) -> Any:
    """The spec with the length of the first axis left open."""

    def open_first(leaf: Any) -> Any:
        if leaf.shape.rank in (None, 0):
            return leaf
        shape = tf.TensorShape([None, *leaf.shape[1:]])
        if isinstance(leaf, tf.SparseTensorSpec):
            return tf.SparseTensorSpec(shape, leaf.dtype)
        if isinstance(leaf, tf.RaggedTensorSpec):
            return tf.RaggedTensorSpec(shape, leaf.dtype, leaf.ragged_rank, leaf.row_splits_dtype)
        return tf.TensorSpec(shape, leaf.dtype)

    return tf.nest.map_structure(open_first, spec)


def length(leaf: Any) -> int:
    """How many examples a whole array has."""
    if isinstance(leaf, tf.SparseTensor):
        return int(leaf.dense_shape[0])
    return int(leaf.nrows()) if isinstance(leaf, tf.RaggedTensor) else int(leaf.shape[0])


def gather(leaf: Any, indices: Any) -> Any:
    """The examples at `indices`, in that order."""
    if not isinstance(leaf, tf.SparseTensor):
        return tf.gather(leaf, indices)
    rows = tf.cast(leaf.indices[:, 0], tf.int64)
    nrows = leaf.dense_shape[0]
    values = tf.gather(tf.RaggedTensor.from_value_rowids(leaf.values, rows, nrows), indices)
    columns = tf.RaggedTensor.from_value_rowids(leaf.indices[:, 1:], rows, nrows)
    columns = tf.gather(columns, indices)
    where = tf.concat([values.value_rowids()[:, None], columns.values], axis=1)
    shape = tf.concat([[values.nrows(out_type=tf.int64)], leaf.dense_shape[1:]], axis=0)
    gathered = tf.SparseTensor(where, values.values, shape)
    static = tf.TensorShape([None]).concatenate(leaf.shape[1:])
    return tf.sparse.reorder(_with_static_shape(gathered, static))


def _with_static_shape(sparse: tf.SparseTensor, static: tf.TensorShape) -> tf.SparseTensor:
    dims = [sparse.dense_shape[i] if d is None else d for i, d in enumerate(static)]
    shape = tf.stack([tf.cast(d, tf.int64) for d in dims])
    return tf.SparseTensor(sparse.indices, sparse.values, shape)


def _map_with_path(function: Callable[[Any, str], Any], nest: Any, path: str) -> Any:
    if isinstance(nest, Mapping):
        return {k: _map_with_path(function, v, f"{path}[{k!r}]") for k, v in nest.items()}
    if isinstance(nest, list | tuple):
        mapped = [_map_with_path(function, v, f"{path}[{i}]") for i, v in enumerate(nest)]
        return type(nest)(*mapped) if hasattr(nest, "_fields") else tuple(mapped)
    return function(nest, path)


def _tensor(leaf: Any, path: str) -> Any:
    if isinstance(leaf, tf.Tensor | tf.RaggedTensor):
        return to_floatx(leaf)
    if isinstance(leaf, tf.SparseTensor):
        # Examples are gathered by row, for which the rows have to be in order.
        return to_floatx(tf.sparse.reorder(leaf))
    if type(leaf).__module__.startswith("scipy.sparse"):
        rows = leaf.tocoo(copy=True)
        # To scipy entries at one place mean their sum, to TensorFlow an error.
        rows.sum_duplicates()
        where = np.stack([rows.row, rows.col], axis=1).astype("int64")
        return to_floatx(tf.sparse.reorder(tf.SparseTensor(where, rows.data, rows.shape)))
    array, columns = _array(leaf)
    if not _has_one_dtype(array):
        raise DataError(
            message(
                f"{path} holds Python objects or dates, not numbers or strings.",
                expected="an array of one dtype",
                received=columns or f"dtype {array.dtype}, first element {_first_kind(array)}",
                do="convert it, for instance .astype('float32'), or pass a dict with one array "
                "per column",
            )
        )
    if np.issubdtype(array.dtype, np.floating):
        array = array.astype(keras.config.floatx(), copy=False)
    return tf.convert_to_tensor(array)


def _array(leaf: Any) -> tuple[np.ndarray, str]:
    """As one array; of a frame, also which column is of which dtype."""
    if not hasattr(leaf, "to_numpy"):
        return np.asarray(leaf), ""
    if leaf.ndim == 1:
        # A pandas Series is a column, as Keras has it.
        return leaf.to_numpy()[:, None], ""
    columns = zip(leaf.columns, leaf.dtypes, strict=True) if hasattr(leaf, "columns") else ()
    return leaf.to_numpy(), ", ".join(f"column {name!r}: {dtype}" for name, dtype in columns)


def _has_one_dtype(array: np.ndarray) -> bool:
    if array.dtype == object:
        return all(isinstance(item, str | bytes) for item in array.flat)
    return array.dtype.kind not in "mMV"


def _first_kind(array: np.ndarray) -> str:
    return type(array.flat[0]).__name__ if array.size else "missing"
