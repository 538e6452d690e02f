"""The tensors of a run: variables and iterators copied, written, read and assigned.

    held = snapshot(variables.named(task))      # at a stop; training may continue
    write(directory / "state", held)            # in any thread
    assign(variables.named(task), read(directory / "state"))

The files are TensorFlow's own, `state.index` and `state.data-00000-of-00001`: each tensor has a
checksum, and iterators of `tf.data` are tensors too.
"""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from loopwright.checkpoints.manifest import out_of_memory_explained
from loopwright.compat.messages import reason_in
from loopwright.errors import CheckpointError, NotFiniteError
from loopwright.task import variables as task_variables
from loopwright.task.state import State, apply


def snapshot(variables: Mapping[str, Any]) -> dict[str, tf.Tensor]:
    """Return the current values; they stay the same when the variables change.

    >>> weight = tf.Variable([1.0])
    >>> held = snapshot({"weight": weight})
    >>> _ = weight.assign([2.0])
    >>> held["weight"].numpy().tolist()
    [1.0]
    """
    return {name: task_variables.replicas(v)[0].read_value() for name, v in variables.items()}


def write(prefix: Path, tensors: Mapping[str, Any]) -> None:
    """Write `<prefix>.index` and `<prefix>.data-00000-of-00001` without flushing them to disk.

    The same tensors give the same bytes. Errors of the disk are raised by TensorFlow.
    """
    names = sorted(tensors)  # the order changes the bytes
    with tf.device("CPU:0"):
        tf.raw_ops.SaveV2(
            prefix=os.fspath(prefix),
            tensor_names=names,
            shape_and_slices=[""] * len(names),
            tensors=[tensors[name] for name in names],
        )


def read(prefix: Path, table: Sequence[task_variables.Row] | None = None) -> dict[str, tf.Tensor]:
    """Return the tensors that `write` wrote, or those in `table`; verify their checksums.

    Any damage raises a CheckpointError that names the files. With a table, names, dtypes and shapes
    are compared before anything is read.
    """
    with _explained(prefix), _without_wildcards(prefix) as plain:
        reader = tf.train.load_checkpoint(plain)
        dtypes, shapes = reader.get_variable_to_dtype_map(), reader.get_variable_to_shape_map()
        names = sorted(dtypes) if table is None else [row["name"] for row in table]
        for row in table or ():
            name = row["name"]
            found = (dtypes[name].name, shapes[name]) if name in dtypes else None
            misfit = _misfit(name, row["dtype"], row["shape"], found)
            if misfit:
                raise ValueError(misfit)
        with tf.device("CPU:0"):
            values = tf.raw_ops.RestoreV2(
                prefix=plain,
                tensor_names=names,
                shape_and_slices=[""] * len(names),
                dtypes=[dtypes[name] for name in names],
            )
    return dict(zip(names, values, strict=True))


def read_end(checkpoint: Path, end: Mapping[str, Any]) -> dict[str, tf.Tensor]:
    """Return the variables that callbacks changed at the end of a leg; see `Snapshot.end`."""
    return read(checkpoint / "end") if end.get("changed") else {}


def assign(named: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
    """Assign every variable its tensor, on all replicas; additional tensors are ignored.

    All are compared first: after an error, no variable has changed.
    """
    for row in task_variables.table(named):
        tensor = tensors.get(row["name"])
        found = None if tensor is None else (tensor.dtype.name, tensor.shape.as_list())
        misfit = _misfit(row["name"], row["dtype"], row["shape"], found)
        if misfit:
            raise CheckpointError(
                "The tensors do not match the variables of the task; none was changed.",
                expected="a tensor of the same dtype and shape for every variable",
                received=misfit,
                do="use the task that they were saved with",
            )
    with out_of_memory_explained("The state of a checkpoint cannot be restored"):
        given = [(own, tensors[n]) for n, v in named.items() for own in task_variables.replicas(v)]
        apply(State(tuple(given)))


def digest(tensors: Mapping[str, Any]) -> str:
    """Return a checksum of names, dtypes, shapes and bytes: equal if runs are bit-identical.

    >>> one, two = {"a": tf.constant([0.0])}, {"a": tf.constant([-0.0])}
    >>> digest(one) == digest(dict(one)), digest(one) == digest(two)
    (True, False)
    """
    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        found.update(f"{name!r} {tensor.dtype.name} {tensor.shape.as_list()}\n".encode())
        is_number = tensor.dtype not in (tf.string, tf.variant)
        found.update(np.asarray(tensor).tobytes() if is_number else _serialized(tensor))
    return found.hexdigest()


def differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the names of tensors that are missing afterwards, or not the same to the bit.

    >>> differing({"a": tf.constant([0.0])}, {"a": tf.constant([-0.0])})
    ['a']
    """
    return [
        name
        for name, value in before.items()
        if name not in after or digest({"": value}) != digest({"": after[name]})
    ]


def non_finite(tensors: Mapping[str, Any]) -> list[str]:
    """Return the names of tensors with NaN or infinity.

    >>> non_finite({"loss": tf.constant([1.0, float("nan")]), "step": tf.constant(3)})
    ['loss']
    """
    return [name for name, tensor in tensors.items() if not _is_finite(tensor)]


def require_finite(tensors: Mapping[str, Any], step: int) -> None:
    """Raise if a tensor has NaN or infinity: such a state must not be saved."""
    names = non_finite(tensors)
    if names:
        raise NotFiniteError(
            f"After step {step} the state contains NaN or infinity, and is not saved.",
            expected="finite numbers in every variable",
            received=", ".join(task_variables.shortened(names)),
            do="lower the learning rate or clip gradients (the optimizer's clipnorm=), and "
            "look for bad examples in the data; earlier checkpoints are unchanged",
            step=step,
        )


def _is_finite(tensor: Any) -> bool:
    if tensor.dtype.is_complex:
        return _is_finite(tf.math.real(tensor)) and _is_finite(tf.math.imag(tensor))
    if not tensor.dtype.is_floating:
        return True
    # A sum is faster, but overflows with large numbers.
    is_finite = tf.math.is_finite(tf.reduce_sum(tensor))
    return bool(is_finite) or bool(tf.reduce_all(tf.math.is_finite(tensor)))


def _serialized(tensor: Any) -> bytes:
    # One by one: the state of an iterator may be too large to be serialized as a whole.
    items = tf.unstack(tensor) if tensor.dtype == tf.variant and tensor.shape.rank else [tensor]
    return b"".join(tf.io.serialize_tensor(item).numpy() for item in items)


def _misfit(
    name: str,
    dtype: str,
    shape: Sequence[int | None] | None,
    found: tuple[str, Sequence[int]] | None,
) -> str | None:
    """Return how a found tensor differs from the expected one; None if it matches."""
    if found is None:
        return f"{name} is missing"
    if dtype == found[0] and tf.TensorShape(shape).is_compatible_with(found[1]):
        return None
    wanted, is_now = (f"{d} {task_variables.shape_text(s)}" for d, s in ((dtype, shape), found))
    return f"{name} should be {wanted}, but is {is_now}"


@contextlib.contextmanager
def _explained(prefix: Path) -> Iterator[None]:
    try:
        with out_of_memory_explained(f"The tensors in {prefix}.index cannot be read"):
            yield
    except CheckpointError:
        raise
    except Exception as error:  # damaged files raise many kinds
        raise CheckpointError(
            f"The tensors in {prefix}.index and {prefix}.data-00000-of-00001 cannot be read.",
            expected="both files as they were written",
            received=reason_in(str(error)),
            do="restore them from a copy, or resume from an earlier checkpoint",
        ) from error


@contextlib.contextmanager
def _without_wildcards(prefix: Path) -> Iterator[str]:
    """Yield a path to the same files without wildcards, like those of `run[1]`."""
    path = os.path.abspath(prefix)
    if not set(path) & set("[]*?\\"):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="loopwright-") as directory:
        link = os.path.join(directory, "checkpoint")
        os.symlink(os.path.dirname(path), link)
        yield os.path.join(link, os.path.basename(path))
