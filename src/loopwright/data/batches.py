"""Batches: nested tensors, their specs, digests and class weights."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from loopwright.errors import DataError


def leaves(nest: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield every leaf with its path: `x[0]`, `x['image']`."""
    if isinstance(nest, Mapping):
        for key, inner in nest.items():
            yield from leaves(inner, f"{path}[{key!r}]")
    elif isinstance(nest, list | tuple):
        for index, inner in enumerate(nest):
            yield from leaves(inner, f"{path}[{index}]")
    else:
        yield path, nest


def convert(nest: Any, path: str) -> Any:
    """Convert the leaves of a nest to tensors, and its lists to tuples, as Keras does.

    Floats are cast to Keras' floatx; integers, booleans and strings keep their dtype.
    """
    if isinstance(nest, Mapping):
        return {k: convert(inner, f"{path}[{k!r}]") for k, inner in nest.items()}
    if isinstance(nest, list | tuple):
        tensors = [convert(inner, f"{path}[{i}]") for i, inner in enumerate(nest)]
        return type(nest)(*tensors) if hasattr(nest, "_fields") else tuple(tensors)
    return _tensor(nest, path)


def to_floatx(batch: Any) -> Any:
    """Cast every floating tensor of a batch to Keras' floatx."""
    return tf.nest.map_structure(
        lambda t: tf.cast(t, keras.config.floatx()) if t.dtype.is_floating else t, batch
    )


def spec_in_floatx(spec: Any) -> Any:
    """Return the spec of the batches that `to_floatx` returns."""
    floatx = tf.as_dtype(keras.config.floatx())

    def cast(leaf: Any) -> Any:
        return _like(leaf, leaf.shape, floatx) if leaf.dtype.is_floating else leaf

    return tf.nest.map_structure(cast, spec)


def with_any_batch_size(spec: Any) -> Any:
    """Return the spec with the length of the first axis left open."""

    def open_first(leaf: Any) -> Any:
        if leaf.shape.rank in (None, 0):
            return leaf
        return _like(leaf, tf.TensorShape([None, *leaf.shape[1:]]), leaf.dtype)

    return tf.nest.map_structure(open_first, spec)


def _like(spec: Any, shape: tf.TensorShape, dtype: tf.DType) -> Any:
    """Return a spec of the same kind with another shape and dtype."""
    if isinstance(spec, tf.SparseTensorSpec):
        return tf.SparseTensorSpec(shape, dtype)
    if isinstance(spec, tf.RaggedTensorSpec):
        return tf.RaggedTensorSpec(shape, dtype, spec.ragged_rank, spec.row_splits_dtype)
    return tf.TensorSpec(shape, dtype)


def length(leaf: Any) -> int:
    """Return the number of examples in an array."""
    if isinstance(leaf, tf.SparseTensor):
        return int(leaf.dense_shape[0])
    return int(leaf.nrows()) if isinstance(leaf, tf.RaggedTensor) else int(leaf.shape[0])


def gather(leaf: Any, indices: Any) -> Any:
    """Return the examples at `indices`, in that order."""
    if not isinstance(leaf, tf.SparseTensor):
        return tf.gather(leaf, indices)
    rows = tf.cast(leaf.indices[:, 0], tf.int64)
    nrows = leaf.dense_shape[0]
    values = tf.gather(tf.RaggedTensor.from_value_rowids(leaf.values, rows, nrows), indices)
    columns = tf.RaggedTensor.from_value_rowids(leaf.indices[:, 1:], rows, nrows)
    columns = tf.gather(columns, indices)
    where = tf.concat([values.value_rowids()[:, None], columns.values], axis=1)
    shape = tf.concat([[values.nrows(out_type=tf.int64)], leaf.dense_shape[1:]], axis=0)
    # Only a shape of single numbers keeps what is known of it in a graph.
    known = [None, *leaf.shape[1:]]
    lengths = [shape[i] if length is None else length for i, length in enumerate(known)]
    static = tf.stack([tf.cast(length, tf.int64) for length in lengths])
    return tf.sparse.reorder(tf.SparseTensor(where, values.values, static))


def _tensor(leaf: Any, path: str) -> Any:
    if isinstance(leaf, tf.Tensor | tf.RaggedTensor):
        return to_floatx(leaf)
    if isinstance(leaf, tf.SparseTensor):
        # Gathering examples by row needs sorted rows.
        return to_floatx(tf.sparse.reorder(leaf))
    if type(leaf).__module__.startswith("scipy.sparse"):
        rows = leaf.tocoo(copy=True)
        # SciPy sums duplicate entries; TensorFlow rejects them.
        rows.sum_duplicates()
        where = np.stack([rows.row, rows.col], axis=1).astype("int64")
        return to_floatx(tf.sparse.reorder(tf.SparseTensor(where, rows.data, rows.shape)))
    array, columns = _array(leaf)
    is_mixed = array.dtype == object and not all(isinstance(i, str | bytes) for i in array.flat)
    if is_mixed or array.dtype.kind in "mMV":
        first = type(array.flat[0]).__name__ if array.size else "missing"
        raise DataError(
            f"{path} holds Python objects or dates, not numbers or strings.",
            expected="an array of one dtype",
            received=columns or f"dtype {array.dtype}, first element {first}",
            do="convert it, for instance .astype('float32'), or pass a dict with one array "
            "per column",
        )
    if np.issubdtype(array.dtype, np.floating):
        array = array.astype(keras.config.floatx(), copy=False)
    return tf.convert_to_tensor(array)


def _array(leaf: Any) -> tuple[np.ndarray, str]:
    """Return a leaf as one array and, for a data frame, the dtypes of its columns."""
    if not hasattr(leaf, "to_numpy"):
        return np.asarray(leaf), ""
    if leaf.ndim == 1:
        # A pandas Series is a column, as in Keras.
        return leaf.to_numpy()[:, None], ""
    columns = zip(leaf.columns, leaf.dtypes, strict=True) if hasattr(leaf, "columns") else ()
    return leaf.to_numpy(), ", ".join(f"column {name!r}: {dtype}" for name, dtype in columns)


def check_labelled(batch: Any) -> None:
    """Raise if a batch, of tensors or specs, cannot take class weights."""
    parts = batch if isinstance(batch, tuple) else (batch,)
    if len(parts) == 2 and hasattr(parts[1], "shape"):
        return
    received = {1: "no labels", 2: "labels for several outputs"}.get(len(parts), "sample_weight")
    raise DataError(
        "class_weight needs one array of labels and no sample_weight.",
        expected="fit(x, y, class_weight={0: 1.0, 1: 5.0}), or batches of (x, y)",
        received=received,
        do="pass y, and only one of class_weight and sample_weight; for several outputs pass "
        "sample_weight",
    )


def weighted(batch: Any, class_weight: Mapping[int, float]) -> Any:
    """Add one weight per label to `(x, y)`, as Keras does; unnamed classes weigh 1."""
    check_labelled(batch)
    x, y = batch
    labels = y
    if len(labels.shape) > 1:
        labels = tf.argmax(labels, -1) if labels.shape[-1] != 1 else tf.squeeze(labels, -1)
    if labels.dtype.is_floating:
        labels = tf.round(labels)
    labels = tf.cast(labels, tf.int64)
    weights = tf.ones_like(labels, tf.float32)
    for number, weight in class_weight.items():
        weights = tf.where(labels == number, tf.constant(weight, tf.float32), weights)
    return x, y, to_floatx(weights)


SAMPLED_ROWS = 1024


def batch_digest(batch: Any) -> str:
    """Return the SHA-256 of all values in a batch, their dtypes and shapes.

    >>> batch_digest(np.zeros(2)) == batch_digest(tf.zeros(2, tf.float64))
    True
    >>> batch_digest(np.zeros(2)) == batch_digest(np.zeros((2, 1)))
    False
    """
    return _digest(tf.nest.flatten(batch, expand_composites=True))


def sampled_digest(leaves: Iterable[Any]) -> str:
    """Return the SHA-256 of some rows of each array, including the first and the last."""
    return _digest(map(_some_rows, leaves))


def _some_rows(leaf: Any) -> Any:
    if leaf.shape.rank == 0:
        return leaf
    count = len(leaf)
    places = np.linspace(0, max(count - 1, 0), min(count, SAMPLED_ROWS)).astype("int64")
    return tf.gather(leaf, places)


def _digest(leaves: Iterable[Any]) -> str:
    seen = hashlib.sha256()
    for leaf in leaves:
        seen.update(tf.io.serialize_tensor(leaf).numpy())
    return seen.hexdigest()


def encoded(spec: Any) -> Any:
    """Return the spec of a batch as JSON values; None if it has none (a namedtuple).

    >>> decoded(encoded((tf.TensorSpec([None, 4]), {"y": tf.TensorSpec([None], "int32")})))
    (TensorSpec(shape=(None, 4), dtype=tf.float32, name=None), {'y': TensorSpec(shape=(None,), \
dtype=tf.int32, name=None)})
    """
    try:
        return None if spec is None else _encoded(spec)
    except TypeError:
        return None


def decoded(content: Any) -> Any:
    """Return the spec that `encoded` was called with."""
    (kind, value), *_ = content.items()
    match kind:
        case "dict":
            return {key: decoded(item) for key, item in value.items()}
        case "tuple":
            return tuple(map(decoded, value))
        case "list":
            return list(map(decoded, value))
        case "sparse":
            return tf.SparseTensorSpec(value["shape"], value["dtype"])
        case "ragged":
            rank, splits = value["ragged_rank"], value["row_splits"]
            return tf.RaggedTensorSpec(value["shape"], value["dtype"], rank, splits)
        case _:
            return tf.TensorSpec(value["shape"], value["dtype"])


def _encoded(spec: Any) -> dict[str, Any]:
    kind: Any = type(spec)
    if kind is dict and all(isinstance(key, str) for key in spec):
        return {"dict": {key: _encoded(item) for key, item in spec.items()}}
    if kind in (tuple, list):
        return {kind.__name__: [_encoded(item) for item in spec]}
    kinds = {tf.TensorSpec: "tensor", tf.SparseTensorSpec: "sparse", tf.RaggedTensorSpec: "ragged"}
    if kind not in kinds:
        raise TypeError(kind.__name__)
    shape = None if spec.shape.rank is None else spec.shape.as_list()
    content: dict[str, Any] = {"shape": shape, "dtype": spec.dtype.name}
    if kind is tf.RaggedTensorSpec:
        content |= {"ragged_rank": spec.ragged_rank, "row_splits": spec.row_splits_dtype.name}
    return {kinds[kind]: content}
