"""What batches are like, as JSON: a task can be built again without its data."""

from typing import Any

import tensorflow as tf


def encoded(spec: Any) -> Any:
    """The spec of a batch as JSON knows it; None if it holds what a file cannot (a namedtuple).

    >>> decoded(encoded((tf.TensorSpec([None, 4]), {"y": tf.TensorSpec([None], "int32")})))
    (TensorSpec(shape=(None, 4), dtype=tf.float32, name=None), {'y': TensorSpec(shape=(None,), \
dtype=tf.int32, name=None)})
    """
    try:
        return None if spec is None else _encoded(spec)
    except TypeError:
        return None


def decoded(content: Any) -> Any:
    """What `encoded` was given."""
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
